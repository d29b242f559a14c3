"""Readiness fails on evidence of a fault: residuals above rounding, a wrong clock."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from projector.forgetting.status import RepairStatus
from service.access.keyring import Keyring
from service.db import clock, locks
from service.db.locks import Lock
from service.db.transactions import transaction
from service.domain.figures import MOST_RESIDUAL, MOST_UNREPAIRED
from service.domain.lease_report import Check
from service.domain.states import Cause
from service.observability.metrics import UnlearningMetrics
from service.predictions.reader import Reader
from service.predictions.version_rows import VersionRepository
from service.processes.readiness import Readiness, api_probes
from service.queue.stream import DeletionStream
from tests.support.service.db_harness import MODEL, Database, made


async def checks(db: Database, home: Path) -> dict[str, Check]:
    redis = Redis.from_url("redis://127.0.0.1:1/0")
    found = api_probes(
        home=home,
        model=MODEL,
        engine=db.engine,
        redis=DeletionStream(redis, MODEL).ping,
        keyring=Keyring.open(home / "keys"),
        key_files=db.slots.check_file,
        predictions=lambda: Reader(home).predict_many(()),
        max_wait_s=0.0,
    )
    made = {check.name: check for check in await Readiness(found, timeout_s=10.0, state=lambda: None)()}
    await redis.aclose()
    return made


async def test_readiness_names_the_lock_that_keeps_deletions_from_being_accepted(db: Database, tmp_path: Path) -> None:
    assert (await checks(db, tmp_path))["intake"].ok
    async with transaction(db.engine) as connection:
        await locks.take(connection, Lock.INTAKE)
        found = (await checks(db, tmp_path))["intake"]
    assert not found.ok
    assert "lock_intake" in found.detail
    assert "pg_terminate_backend" in found.remedy
    assert (await checks(db, tmp_path))["intake"].ok


@pytest.mark.parametrize(("table", "name"), [("versions", "span"), ("batches", "coefficient")])
async def test_a_residual_that_rounding_does_not_explain_fails_readiness_until_a_later_one_is_right(
    db: Database, tmp_path: Path, table: str, name: str
) -> None:
    assert (await checks(db, tmp_path))["residuals"].ok

    async def batch(version: int, residual: float) -> None:
        batch_id = await db.applied([await db.accept(str(version))], version)
        async with transaction(db.engine) as connection:
            await VersionRepository(connection).finish(batch_id, span_residual=1e-15, durations_ms={})
        await db.rows(f"UPDATE {table} SET {name}_residual = :residual WHERE id = :id", residual=residual, id=batch_id)

    await batch(1, 3e-3)
    found = (await checks(db, tmp_path))["residuals"]
    assert not found.ok
    # Without the right to read the audit, one sees that there is a residual, but not its size.
    assert f"The {name} residual is above" in found.detail
    assert "3.0e-03" not in found.detail
    assert "recheck" in found.remedy
    await batch(2, 1e-14)
    assert (await checks(db, tmp_path))["residuals"].ok


async def test_a_batch_that_a_later_version_repaired_is_held_to_what_its_own_weights_can_be(
    db: Database, tmp_path: Path
) -> None:
    residual = MOST_UNREPAIRED / 2
    assert residual > MOST_RESIDUAL
    first = made(1, repair=RepairStatus.PENDING, span_residual=residual)
    later = made(2, cause=Cause.REPAIR, repair=RepairStatus.CONVERGED, repair_version=2)
    async with transaction(db.engine) as connection:
        await VersionRepository(connection).insert(first)
        await VersionRepository(connection).finish(first.id, span_residual=residual, durations_ms={})
        await VersionRepository(connection).insert(later)
    # As the repair's commit notifies those who wait; it is not measured yet.
    await db.rows("UPDATE versions SET repair = 'converged', repair_version = 2 WHERE number = 1")
    assert (await checks(db, tmp_path))["residuals"].ok
    async with transaction(db.engine) as connection:
        await VersionRepository(connection).finish(later.id, span_residual=residual, durations_ms={})
    assert not (await checks(db, tmp_path))["residuals"].ok


async def test_a_clock_that_is_off_fails_readiness(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await checks(db, tmp_path))["clock"].ok
    monkeypatch.setattr(clock, "MOST_APART_S", -1.0)
    found = (await checks(db, tmp_path))["clock"]
    assert (found.ok, "NTP" in found.remedy) == (False, True)


def test_residuals_above_rounding_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = UnlearningMetrics(registry)
    for residual in (1e-15, 1e-3, 1e-9, 0.5):
        metrics.measured(residual, RepairStatus.CONVERGED)
    # Before a repair, the residual may be as large as the square of the condition number.
    metrics.measured(1e-7, RepairStatus.PENDING)
    assert registry.get_sample_value("lethe_residual_exceeded_total", {"residual": "span"}) == 2
    assert registry.get_sample_value("lethe_residual_exceeded_total", {"residual": "coefficient"}) == 0
