"""A newly trained model replaces the served one: no prediction fails, and nothing deleted comes back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from structlog.testing import capture_logs

from model_store import replacement
from model_store.disk import durable
from model_store.errors import ImportUnderWay
from model_store.replacement import Replacement, copying_lock
from model_store.store import Store
from projector.graph.graph import feature_rows
from service.domain.records import Pointer
from service.domain.scopes import Scope
from service.domain.states import ImportStatus
from service.errors import Conflict
from service.predictions.version_rows import PointerRepository
from service.settings import Settings
from service.unlearner import loading
from service.unlearner.agreement import agreed_pointer
from service.unlearner.causes import ImportRepository
from service.unlearner.staged import ImportRefused
from tests.support.everyday import everyday
from tests.support.service.api_harness import serving as without_unlearner
from tests.support.service.bodies import node_body, refused
from tests.support.service.db_harness import until
from tests.support.service.imports import NEW_NODES, asked, beside, copy_of, ended, repository, trained
from tests.support.service.repairs import Crash, crash
from tests.support.service.running import NODES, Lethe, running


@pytest.mark.ci
async def test_a_model_that_a_later_lease_has_written_to_is_refused_by_that(
    settings: Settings, new_model: Path, tmp_path: Path
) -> None:
    served = copy_of(new_model, tmp_path / "served")
    served.claim_base(fencing=99)
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        record = await ended(settings, await asked(settings, served.path))
        assert record.refusal is not None
        assert "served elsewhere under a higher fencing number (99)" in record.refusal
        assert "as `./lethe train` wrote it" in record.refusal
        assert beside(settings) == []


async def test_a_model_is_replaced_under_a_stream_of_predictions_without_a_failure(
    settings: Settings, new_model: Path
) -> None:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await lethe.completed(await lethe.delete("7", "9"))
        with pytest.raises(ImportRefused, match="2 nodes") as refusal:
            await asked(settings, new_model)
        assert "--exclude-deleted" in refusal.value.remedy
        assert beside(settings) == []

        done = asyncio.Event()
        answers: list[dict[str, Any]] = []

        async def predict() -> None:
            while not done.is_set():
                response = await lethe.client.post("/predict", json={"nodes": ["100", "7"]})
                assert response.status_code == 200, response.text
                answers.append(response.json())
                readiness = await lethe.client.get("/readyz")
                assert readiness.status_code == 200, readiness.text
                await asyncio.sleep(0)  # an answer from memory never waits, so nothing else would run

        predicting = asyncio.create_task(predict())
        record = await ended(settings, await asked(settings, new_model, exclude_deleted=True))
        done.set()
        await predicting

        assert record.status is ImportStatus.COMPLETED
        imported = record.version
        assert imported is not None
        assert (imported.number_before, imported.number, imported.deleted_nodes) == (1, 2, 2)
        assert imported.span_residual is not None
        assert 0 <= imported.span_residual < 1e-8
        versions = [answer["model_version"] for answer in answers]
        assert versions == sorted(versions)
        assert {1, 2} == set(versions)
        assert all(answer["deleted"] == ["7"] for answer in answers)
        assert len(answers[-1]["predictions"][0]["probabilities"]) == 4

        described = (await lethe.client.get("/model")).json()
        assert (described["version"], described["live_nodes"], described["loss"]) == (2, NEW_NODES - 2, "ovr")
        assert described["weights_sha256"] == imported.weights_sha256
        assert described["span_residual"] == imported.span_residual
        summary = (await lethe.client.get("/audit/summary")).json()
        [*_, today] = (await lethe.client.get("/audit/series")).json()["points"]
        left = (described["rank"], described["live_nodes"])
        assert (summary["rank"], summary["live_nodes"]) == (today["rank_after"], today["live_nodes"]) == left
        refused(await lethe.client.get("/predict/7"), 410, "node-deleted")
        refused(await lethe.client.get(f"/predict/{NODES - 1}"), 404, "not-found")

        store = Store.open(settings.model_dir)
        assert beside(settings) == []
        assert [ref.version for ref in store.versions()] == [2]
        base = store.load_base()
        assert [base.graph.node_ids[row] for row in (7, 8, 9)] == ["", "8", ""]
        state = await lethe.completed(await lethe.delete("8"))
        assert (state["audit"]["model_version_before"], state["audit"]["model_version_after"]) == (2, 3)
        assert state["audit"]["span_residual"] < 1e-8
        assert lethe.failures == []


@pytest.mark.ci
async def test_features_and_edges_that_were_deleted_do_not_come_back(settings: Settings, small_model: Path) -> None:
    graph = Store.open(small_model).load_base().graph
    edge = (str(int(graph.adjacency.indices[graph.adjacency.indptr[20]])), "20")
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        for body in ({"kind": "features", "nodes": ["11"]}, {"kind": "edge", "edges": [edge]}, node_body("7")):
            response = await lethe.client.post("/deletions", json=body)
            assert response.status_code == 202, response.text
            await lethe.completed(response.json())
        record = await ended(settings, await asked(settings, small_model, exclude_deleted=True))
        imported = record.version
        assert imported is not None
        assert (imported.deleted_nodes, imported.deleted_features, imported.deleted_edges) == (1, 1, 1)
        base = Store.open(settings.model_dir).load_base().graph
        assert not feature_rows(base.features, np.array([7, 11])).any()
        assert base.adjacency[int(edge[0]), 20] == 0
        assert (await lethe.client.get("/model")).json()["edges"] == base.edges
        again = (await lethe.client.post("/deletions", json={"kind": "edge", "edges": [edge]})).json()
        assert (await lethe.completed(again))["explanation"].startswith("Nothing was left to do")
        await lethe.completed(await lethe.delete("8"))


async def test_queued_requests_resolve_by_external_id_in_the_new_model(settings: Settings, tmp_path: Path) -> None:
    """A request for a node that it lacks fails, and says so."""
    smaller = trained(tmp_path / "smaller", dataset="synthetic:n=30,d=8,classes=2,seed=1")
    async with running(settings) as lethe:
        await until(lethe.is_ready)
    assert settings.database_url is not None
    async with without_unlearner(settings.database_url, settings.home, model="small") as api:
        writer = await api.client(Scope.DELETIONS_WRITE)
        known, absent = [(await writer.post("/deletions", json=node_body(node))).json() for node in ("9", "35")]
        import_id = await asked(settings, smaller)
        with pytest.raises(Conflict, match="is still running"):
            await asked(settings, smaller)
        with copying_lock(settings.model_dir), pytest.raises(ImportUnderWay):
            await asked(settings, smaller)
    async with running(settings) as lethe:
        assert (await ended(settings, import_id)).status is ImportStatus.COMPLETED
        state = await lethe.completed(known)
        assert (state["audit"]["model_version_before"], state["audit"]["model_version_after"]) == (1, 2)

        async def has_failed() -> bool:
            return bool((await lethe.state(absent))["status"] == "failed")

        await until(has_failed)
        assert "not in the model" in (await lethe.state(absent))["failure"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("dataset", "name", "reason"),
    [
        ("synthetic:n=40,d=8,classes=2,seed=1", "another", "is named 'another'; the served model is 'small'"),
        (None, "small", "contains data that was deleted"),
    ],
)
async def test_a_model_that_cannot_be_taken_is_refused_by_the_service_which_goes_on(
    lethe_with_deletion: Lethe, tmp_path: Path, new_model: Path, dataset: str | None, name: str, reason: str
) -> None:
    lethe = lethe_with_deletion
    model = new_model if dataset is None else trained(tmp_path / "other", dataset=dataset, name=name)
    import_id = UUID(int=7)
    # After the command's own check: a node may be deleted between it and the swap.
    with copying_lock(lethe.settings.model_dir):
        Replacement(lethe.settings.model_dir, str(import_id)).stage(partial(copy_of, model))
        async with repository(lethe.settings) as imports:
            await imports.ask(import_id, "small", exclude_deleted=False)
    record = await ended(lethe.settings, import_id)
    assert record.status is ImportStatus.REFUSED
    assert record.refusal is not None
    assert reason in record.refusal

    async def is_gone() -> bool:
        return beside(lethe.settings) == []

    await until(is_gone)
    await lethe.completed(await lethe.delete("8"))
    assert (await lethe.client.get("/model")).json()["version"] == 2
    assert lethe.failures == []


@pytest.fixture
async def lethe_with_deletion(settings: Settings) -> AsyncIterator[Lethe]:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await lethe.completed(await lethe.delete("7"))
        yield lethe


def at_the_pointer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PointerRepository, "advance", crash)


def before_the_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replacement, "install", crash)


def between_the_moves(patch: pytest.MonkeyPatch) -> None:
    def rename(source: Path, target: Path) -> None:
        if target.name == "model":
            crash()
        durable.rename(source, target)

    patch.setattr(replacement, "rename", rename)


def before_the_erasure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replacement, "erase_replaced", crash)


def before_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ImportRepository, "complete", crash)


@pytest.mark.ci
@pytest.mark.parametrize(
    "point",
    everyday([at_the_pointer, before_the_move, between_the_moves, before_the_erasure, before_the_end], at_the_pointer),
)
async def test_an_import_that_a_crash_interrupts_is_finished_at_the_next_start(
    settings: Settings, new_model: Path, point: Callable[[pytest.MonkeyPatch], None]
) -> None:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await lethe.completed(await lethe.delete("7"))
        # Captured: rendering the crash with all its locals would take seconds.
        with pytest.MonkeyPatch.context() as patch, capture_logs():
            import_id = await asked(settings, new_model, exclude_deleted=True)
            point(patch)
            await until(lethe.has_failed)
        assert isinstance(lethe.failures[0], Crash)
    async with running(settings) as lethe:
        record = await ended(settings, import_id)
        assert record.status is ImportStatus.COMPLETED
        assert record.version is not None
        assert (record.version.number, record.version.deleted_nodes) == (2, 1)
        await until(lethe.is_ready)
        described = (await lethe.client.get("/model")).json()
        assert (described["version"], described["live_nodes"]) == (2, NEW_NODES - 1)
        assert described["weights_sha256"] == record.version.weights_sha256
        refused(await lethe.client.get("/predict/7"), 410, "node-deleted")
        await lethe.completed(await lethe.delete("8"))
        store = Store.open(settings.model_dir)
        assert beside(settings) == []
        assert store.load_base().graph.node_ids[7] == ""
        assert [ref.version for ref in store.versions()] == [3]


async def test_the_copy_of_an_import_that_is_asked_for_while_the_service_starts_is_kept(
    settings: Settings, new_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[UUID] = []

    async def late(*arguments: Any) -> Pointer:
        """After the session has looked for an import, and before it removes leftovers."""
        if not begun:
            begun.append(await asked(settings, new_model))
        return await agreed_pointer(*arguments)

    monkeypatch.setattr(loading, "agreed_pointer", late)
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        assert (await ended(settings, begun[0])).status is ImportStatus.COMPLETED
        assert beside(settings) == []
