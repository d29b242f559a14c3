"""A newly trained model under `--repair always`: earlier deletions are repaired before it is served."""

from pathlib import Path
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from model_store.replacement import Replacement
from model_store.store import Store
from projector.forgetting.status import RepairStatus
from service.access.own_slots import OwnSlots
from service.access.request_keys import RequestKeys
from service.db.engine import Connection
from service.domain.states import ImportStatus
from service.domain.versions import Version
from service.settings import Settings
from service.unlearner.importer import ImportSteps
from service.unlearner.staged import Staged
from tests.support.everyday import everyday
from tests.support.service.db_harness import until
from tests.support.service.imports import asked, ended, trained
from tests.support.service.repair_world import Served, events, retrained
from tests.support.service.repairs import TOLERANCE, Gate, assert_retrained, crash, model_of, repaired
from tests.support.service.running import running

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("interrupted", everyday([False, True], True))
async def test_what_is_excluded_at_import_is_repaired_before_the_model_is_served(
    settings: Settings, new_model: Path, interrupted: bool
) -> None:
    """Even if a crash falls between the pointer and the coefficients of the repaired weights."""
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await lethe.completed(await lethe.delete("7", "9"))
        with pytest.MonkeyPatch.context() as patch, capture_logs():
            if interrupted:
                patch.setattr(Store, "write_beta", crash)
            import_id = await asked(settings, new_model, exclude_deleted=True)

            async def is_over() -> bool:
                return bool(lethe.failures) or (await model_of(lethe))["version"] == 2

            await until(is_over)
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        record = await ended(settings, import_id)
        assert (record.status, record.version is None) == (ImportStatus.COMPLETED, False)
        imported = record.version
        assert imported is not None
        assert (imported.deleted_nodes, imported.repair) == (2, RepairStatus.CONVERGED)
        assert imported.repair_iterations is not None
        assert imported.distance_bound_before_relative is not None
        assert imported.distance_bound_after_relative is not None
        assert imported.distance_bound_after_relative <= 1e-8 < imported.distance_bound_before_relative
        assert imported.span_residual is not None
        assert 0 <= imported.span_residual < 1e-8
        model = await model_of(lethe)
        assert (model["version"], model["repair"], model["guarantee"]) == (2, "converged", "retrained")
        served = Served(settings.model_dir)
        assert served.distance(retrained(new_model, nodes=["7", "9"])) <= TOLERANCE
        assert served.is_tidy()
        state = await lethe.completed(await lethe.delete("12"))
        assert_retrained(state, version=3)
        assert state["audit"]["injected_norm_before"] > 0
        assert served.distance(retrained(new_model, nodes=["7", "9", "12"])) <= TOLERANCE


async def test_an_import_is_completed_once_nothing_of_it_is_left_to_erase(
    settings: Settings, new_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, base = ImportSteps.complete, settings.model_dir / "base"
    then: list[dict[str, bytes]] = []

    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in base.iterdir()}

    async def watched(self: ImportSteps, connection: Connection, version: Version) -> None:
        then.append(content())
        await complete(self, connection, version)

    monkeypatch.setattr(ImportSteps, "complete", watched)
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await lethe.completed(await lethe.delete("7", "9"))
        features = await lethe.client.post("/deletions", json={"kind": "features", "nodes": ["11"]})
        await lethe.completed(features.json())
        import_id = await asked(settings, new_model, exclude_deleted=True)
        assert (await ended(settings, import_id)).status is ImportStatus.COMPLETED
    assert then == [content()]


async def test_deletions_and_a_stop_do_not_wait_for_the_repair_of_an_import(
    settings: Settings, new_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletions meanwhile also leave the new model before it is served."""
    advance, held_up = Staged.advance, []
    is_open = False

    def held(self: Staged, until: float) -> bool:
        if self.is_repaired or is_open:
            return advance(self, until)
        held_up.append(self)
        return False

    async def is_held_up() -> bool:
        return bool(held_up)

    monkeypatch.setattr(Staged, "advance", held)
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await lethe.completed(await lethe.delete("9"))
        import_id = await asked(settings, new_model, exclude_deleted=True)
        await until(is_held_up)
        assert_retrained(await lethe.completed(await lethe.delete("12")), version=2)
    held_up.clear()
    async with running(settings) as lethe:
        await until(is_held_up)
        assert_retrained(await lethe.completed(await lethe.delete("20")), version=3)
        is_open = True
        imported = (await ended(settings, import_id)).version
        assert imported is not None
        assert (imported.number_before, imported.number, imported.deleted_nodes) == (3, 4, 3)
        assert imported.repair is RepairStatus.CONVERGED
        answer = (await lethe.client.post("/predict", json={"nodes": ["9", "12", "20", "13"]})).json()
        assert (answer["deleted"], answer["model_version"]) == (["9", "12", "20"], 4)
        assert lethe.failures == []
    served = Served(settings.model_dir)
    assert served.distance(retrained(new_model, nodes=["9", "12", "20"])) <= TOLERANCE
    assert served.is_tidy()


async def test_keys_of_requests_that_are_not_in_the_database_are_kept_while_an_import_is_amid_its_steps(
    settings: Settings, new_model: Path
) -> None:
    """Only after the import is it known whether that database belongs here: a backup may be older."""
    unknown = uuid4()
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setattr(Replacement, "install", crash)
        async with running(settings) as lethe:
            await until(lethe.is_ready)
            import_id = await asked(settings, new_model)
            await until(lethe.has_failed)
        with OwnSlots.open(settings.home / "keys" / "requests") as slots:
            slots.reserve([unknown])
        keys = RequestKeys(slots.folder)
        async with running(settings) as lethe:
            await until(lethe.has_failed)
            assert [set(page) for page in keys.held()] == [{unknown}]
    async with running(settings) as lethe:
        assert (await ended(settings, import_id)).status is ImportStatus.COMPLETED
        await until(lambda: _has_none(keys))


async def _has_none(keys: RequestKeys) -> bool:
    return keys.count() == 0


async def test_a_model_that_takes_the_place_of_one_under_repair_ends_the_wait(
    deferring: Settings, tmp_path: Path, gate: Gate
) -> None:
    another = trained(tmp_path / "another", dataset="synthetic:n=160,d=12,classes=3,seed=4")
    async with running(deferring) as lethe:
        await until(lethe.is_ready)
        accepted = await lethe.delete("7")
        assert (await lethe.completed(accepted))["repair"] == "pending"
        record = await ended(deferring, await asked(deferring, another, exclude_deleted=True))
        assert record.status is ImportStatus.COMPLETED
        gate.is_open = True
        state = await repaired(lethe, accepted, status="none")
        assert state["explanation"].endswith("a newly trained model replaced this one.")
        assert state["guarantee"] == "span"
        assert (await events(deferring.database_url))[accepted["id"]] == ["applied", "completed", "not_repaired"]
        assert (await model_of(lethe))["repair"] == "converged"
