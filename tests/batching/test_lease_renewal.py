"""Lease renewal: the lease never ends unnoticed, and work under it ends with it."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from model_store.store import Store
from model_store.versions import VersionRef
from model_store.work import Work
from service.db import lease as leases
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.domain.lease_report import Condition, LeaseReport, Phase
from service.domain.records import Lease
from service.errors import KeyMissing, LeaseLost, StateMismatch
from service.unlearner.lease_keeper import LeaseKeeper, RenewalFailed, holding
from tests.support.service.db_harness import MODEL, Database, until
from tests.support.service.kinds_world import make_model
from tests.support.service.running import running, settings_of


async def _acquired(db: Database) -> Lease:
    """Acquire a lease that is renewed immediately, and lasts longer than any test here."""
    lease = await leases.acquire(db.engine, MODEL, "one", 60)
    assert lease is not None
    return replace(lease, ttl_seconds=0.1)


async def _until_ended(keeper: LeaseKeeper) -> None:
    async def has_ended() -> bool:
        try:
            keeper.check()
        except RenewalFailed:
            return True
        return False

    await until(has_ended)


async def test_an_unforeseen_error_of_the_renewal_is_logged_and_ends_what_runs_under_the_lease(db: Database) -> None:
    lease = await _acquired(db)
    # Not an outage, which would be waited out: the statement itself is refused.
    await db.rows("ALTER TABLE leases RENAME COLUMN expires_at TO ends_at")
    with capture_logs() as logs:
        async with holding(db.engine, lease) as keeper:
            await _until_ended(keeper)
            with pytest.raises(RenewalFailed) as failed:
                _ = keeper.lease
    assert "expires_at does not exist" in str(failed.value.__cause__)
    assert [line["log_level"] for line in logs if line["event"] == "lease.renewal_failed"] == ["error"]


@pytest.mark.parametrize(
    "error", [StateMismatch("Another version.", "Restore."), KeyMissing("No key.", "Restore."), OSError("away")]
)
async def test_what_a_successor_has_done_is_no_contradiction_to_one_that_lost_its_lease(
    db: Database, error: Exception
) -> None:
    lease = await _acquired(db)
    for held, said in ((lease, type(error)), (replace(lease, give_up_at=0.0), LeaseLost)):
        with pytest.raises(said), LeaseKeeper(db.engine, held).blaming_loss():
            raise error


async def test_a_renewal_waits_for_its_time_and_none_outlives_the_block(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await _acquired(db)
    waits: list[float] = []
    renewed_after: list[int] = []

    async def pause(keeper: LeaseKeeper, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            await asyncio.Event().wait()

    async def renew(engine: Engine, held: Lease, report: LeaseReport | None) -> Lease:
        renewed_after.append(len(waits))
        if len(renewed_after) > 2:
            raise LeaseLost("It was renewed too often.", "Wait.")
        return held

    async def is_over() -> bool:
        return len(waits) == 3 or len(renewed_after) > 2

    monkeypatch.setattr(LeaseKeeper, "_pause", pause)
    monkeypatch.setattr(leases, "renew", renew)
    async with holding(db.engine, lease):
        await until(is_over)
    assert (waits, renewed_after) == ([lease.ttl_seconds / 4] * 3, [1, 2])
    assert "lease-renewal" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_others_read_of_a_change_long_before_the_next_renewal(db: Database) -> None:
    lease = await leases.acquire(db.engine, MODEL, "one", 600)
    assert lease is not None
    reports = [LeaseReport(Condition(Phase.LOADING))]

    async def is_published() -> bool:
        async with transaction(db.engine) as connection:
            holder = await leases.holder(connection, MODEL)
        return holder is not None and holder.report == reports[-1]

    # Renewed every 150 s, longer than any test waits.
    async with holding(db.engine, lease, lambda: reports[-1]):
        for phase in (Phase.SERVING, Phase.HELD_UP, Phase.SERVING):
            reports.append(LeaseReport(Condition(phase, "since then"), device="cpu"))
            await until(is_published)


@pytest.mark.ci
async def test_the_unlearner_begins_again_after_a_renewal_that_failed_for_no_foreseen_reason(
    tmp_path: Path, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew = leases.renew
    failed: list[str] = []

    async def fails_once(engine: Engine, lease: Lease, report: LeaseReport | None) -> Lease:
        if not failed:
            failed.append(lease.name)
            raise RuntimeError("nobody foresaw this")
        return await renew(engine, lease, report)

    make_model(tmp_path / "trained")
    settings = settings_of(tmp_path / "trained", tmp_path / "home", database_url, redis_url)
    settings = settings.model_copy(update={"lease_ttl_s": 5.0})
    with capture_logs() as logs:
        async with running(settings) as lethe:
            await until(lethe.is_ready)
            monkeypatch.setattr(leases, "renew", fails_once)

            async def began_again() -> bool:
                return sum(line["event"] == "unlearner.serving" for line in logs) == 2

            await until(began_again)
            await lethe.completed(await lethe.delete("5"))
            assert lethe.failures == []
    events = [line["event"] for line in logs]
    assert "lease.renewal_failed" in events
    assert "unlearner.failed" in events
    assert "lease.lost" not in events


@pytest.mark.ci
async def test_the_row_shows_from_the_start_to_the_end_what_the_unlearner_is_at(
    tmp_path: Path, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "trained")
    settings = settings_of(tmp_path / "trained", tmp_path / "home", database_url, redis_url)
    engine = create_engine(database_url)

    async def reported() -> LeaseReport:
        async with transaction(engine) as connection:
            holder = await leases.holder(connection, "small")
        assert holder is not None
        return holder.report

    async with running(settings) as lethe:
        await until(lethe.is_ready)

        async def is_serving() -> bool:
            return (await reported()).condition == Condition(Phase.SERVING)

        await until(is_serving)
        assert (await reported()).device == "cpu"
        begin = Work.begin
        begun: list[str] = []

        def recorded(work: Work, what: str, amount: float = 0) -> None:
            begun.append(what)
            begin(work, what, amount)

        monkeypatch.setattr(Work, "begin", recorded)
        await lethe.completed(await lethe.delete("5"))
        assert "Writing the new version" in begun
    assert (await reported()).condition == Condition(Phase.STOPPED)
    await engine.dispose()


@pytest.mark.ci
async def test_no_renewal_waits_for_a_session_that_names_the_committed_version_on_the_disk(
    tmp_path: Path, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_current = Store.set_current
    off_the_event_loop: list[bool] = []

    def fails_at_first(store: Store, ref: VersionRef) -> None:
        off_the_event_loop.append(threading.current_thread() is not threading.main_thread())
        if len(off_the_event_loop) == 1:
            raise OSError("the disk is away")
        set_current(store, ref)

    make_model(tmp_path / "trained")
    settings = settings_of(tmp_path / "trained", tmp_path / "home", database_url, redis_url)
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        monkeypatch.setattr(Store, "set_current", fails_at_first)
        await lethe.completed(await lethe.delete("5"))
    assert len(off_the_event_loop) > 1
    assert all(off_the_event_loop)
