import asyncio
import math
from dataclasses import replace

import pytest
from sqlalchemy import text

from projector.forgetting.status import RepairProgress
from service.db.clock import boottime
from service.db.engine import create_engine
from service.db.lease import acquire, holder, release, renew
from service.db.transactions import CommitUnanswered, fence, fenced_transaction, transaction, wait_for_writers
from service.domain.lease_report import Check, Condition, Holder, LeaseReport, Phase
from service.domain.records import Lease
from service.errors import LeaseLost, Unavailable
from service.predictions.version_rows import PointerRepository
from tests.support.service.db_harness import (
    MODEL,
    POINTER,
    Database,
    Proxy,
    is_waiting,
    next_pointer,
    until,
)


async def _acquired(db: Database, holder: str = "one") -> Lease:
    lease = await acquire(db.engine, MODEL, holder, 60)
    assert lease is not None
    return lease


async def _expire(db: Database) -> None:
    await db.rows("UPDATE leases SET expires_at = clock_timestamp() - interval '1 s'")


async def test_one_holder_at_a_time_and_a_greater_fencing_number_for_the_next(db: Database) -> None:
    first = await _acquired(db)
    assert await acquire(db.engine, MODEL, "two", 60) is None
    await _expire(db)
    second = await _acquired(db, "two")
    assert second.fencing > first.fencing
    assert await acquire(db.engine, MODEL, "one", 60) is None


async def test_its_holder_may_take_it_again_at_once_under_a_greater_number(db: Database) -> None:
    first = await _acquired(db)
    second = await _acquired(db)
    assert second.fencing == first.fencing + 1
    with pytest.raises(LeaseLost):
        await renew(db.engine, first)
    assert await acquire(db.engine, MODEL, "two", 60) is None


async def test_of_many_that_ask_at_once_one_gets_the_lease(db: Database) -> None:
    for _ in range(3):
        answers = await asyncio.gather(*(acquire(db.engine, MODEL, f"holder {n}", 60) for n in range(8)))
        assert len([lease for lease in answers if lease]) == 1
        await _expire(db)
    assert await db.value("SELECT fencing FROM leases") == 3


async def test_a_released_lease_is_free_at_once_and_its_number_keeps_growing(db: Database) -> None:
    first = await _acquired(db)
    await release(db.engine, first)
    await release(db.engine, first)
    second = await _acquired(db, "two")
    assert second.fencing == first.fencing + 1
    await release(db.engine, first)
    assert await renew(db.engine, second)


async def test_renewal_moves_the_end_by_postgres_clock_and_the_holders_own(db: Database) -> None:
    lease = await _acquired(db)
    await db.rows("UPDATE leases SET expires_at = clock_timestamp() + interval '5 s'")
    before = boottime()
    renewed = await renew(db.engine, lease)
    assert (renewed.name, renewed.holder, renewed.fencing) == (lease.name, lease.holder, lease.fencing)
    assert before + 40 <= renewed.give_up_at <= boottime() + 40
    assert await db.value("SELECT expires_at > clock_timestamp() + interval '50 s' FROM leases")


async def test_the_holder_gives_up_before_postgres_does(db: Database) -> None:
    before = boottime()
    lease = await _acquired(db)
    assert lease.give_up_at < before + lease.ttl_seconds
    with pytest.raises(LeaseLost):
        async with fenced_transaction(db.engine, replace(lease, give_up_at=before)):
            raise AssertionError("entered with a lease too near its end")


async def test_a_lease_that_ran_out_or_was_taken_cannot_be_renewed_nor_written_under(db: Database) -> None:
    lease = await _acquired(db)
    await _expire(db)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            await renew(db.engine, lease)
        with pytest.raises(LeaseLost):
            async with fenced_transaction(db.engine, lease) as conn:
                await PointerRepository(conn).advance(0, next_pointer(POINTER, lease.fencing))
        with pytest.raises(LeaseLost):
            async with transaction(db.engine) as conn:
                await wait_for_writers(conn, lease)
        await acquire(db.engine, MODEL, "two", 60)
    async with transaction(db.engine) as conn:
        assert await PointerRepository(conn).read(MODEL) == POINTER


async def test_a_takeover_waits_for_a_write_that_is_under_way(db: Database) -> None:
    lease = await _acquired(db)
    async with fenced_transaction(db.engine, lease) as conn:
        await _expire(db)
        takeover = asyncio.create_task(acquire(db.engine, MODEL, "two", 60))
        await until(lambda: is_waiting(db))
        await PointerRepository(conn).advance(0, next_pointer(POINTER, lease.fencing))
    taken = await takeover
    assert taken is not None
    async with transaction(db.engine) as conn:
        assert await PointerRepository(conn).read(MODEL) == next_pointer(POINTER, lease.fencing)


async def test_a_write_that_meets_a_takeover_waits_and_is_refused(db: Database) -> None:
    lease = await _acquired(db)
    async with transaction(db.engine) as taking:
        await taking.exec_driver_sql("UPDATE leases SET holder = 'two', fencing = fencing + 1")
        writing = asyncio.create_task(_write(db, lease))
        await until(lambda: is_waiting(db))
    with pytest.raises(LeaseLost):
        await writing


async def _write(db: Database, lease: Lease) -> None:
    async with transaction(db.engine) as conn:
        await fence(conn, lease)


async def test_a_stopped_holder_cannot_keep_its_transaction_open(db: Database) -> None:
    assert await db.value("SHOW idle_in_transaction_session_timeout") == "15s"
    assert await db.value("SHOW transaction_timeout") == "1min"


async def test_a_holder_stopped_amid_a_statement_loses_its_locks(db: Database) -> None:
    """asyncpg prepares without a Sync: for Postgres the statement has begun, and no transaction is idle."""
    await _acquired(db)

    async def stop_amid_a_statement() -> None:
        async with transaction(db.engine) as conn:
            await conn.execute(text("SET LOCAL idle_in_transaction_session_timeout = '100ms'"))
            # A running timer is only stopped and started, not changed.
            for limit in ("0", "200ms"):
                await conn.execute(text(f"SET LOCAL transaction_timeout = '{limit}'"))
            await conn.execute(text("SELECT * FROM leases FOR UPDATE"))
            driver = (await conn.get_raw_connection()).driver_connection
            assert driver is not None
            await driver.prepare("SELECT 1 AS stopped_before_it_was_executed")
            async with transaction(db.engine) as other:
                await other.execute(text("SELECT * FROM leases FOR UPDATE"))
                taken.append("the row")
            await conn.execute(text("SELECT 1"))

    taken: list[str] = []
    with pytest.raises(Unavailable):
        await stop_amid_a_statement()
    assert taken


async def test_reading_after_an_unanswered_commit_waits_for_its_outcome(db: Database) -> None:
    lease = await _acquired(db)
    async with Proxy(db.url) as proxy:
        engine = create_engine(proxy.url)
        proxy.at_commit = "delay"
        with pytest.raises(CommitUnanswered):
            async with fenced_transaction(engine, lease) as conn:
                await PointerRepository(conn).advance(0, next_pointer(POINTER, lease.fencing))
        await engine.dispose()
        reading = asyncio.create_task(_settled_version(db, lease))
        await until(lambda: is_waiting(db))
        proxy.release.set()
        assert await reading == 1


async def _settled_version(db: Database, lease: Lease) -> int:
    async with transaction(db.engine) as conn:
        await wait_for_writers(conn, lease)
        pointer = await PointerRepository(conn).read(MODEL)
    assert pointer is not None
    return pointer.version


async def _holder(db: Database, name: str = MODEL) -> Holder:
    async with transaction(db.engine) as conn:
        found = await holder(conn, name)
    assert found is not None
    return found


async def test_what_a_holder_is_at_is_read_by_whoever_does_not_share_its_memory(db: Database) -> None:
    async with transaction(db.engine) as conn:
        assert await holder(conn, MODEL) is None
    lease = await _acquired(db)
    begun = await _holder(db)
    assert (begun.report, begun.is_held, begun.served_s) == (LeaseReport(Condition(Phase.LOADING)), True, None)
    report = LeaseReport(
        Condition(Phase.SERVING, "An import waits for room."),
        RepairProgress(iterations=3, products=17, bound_relative=0.004),
        "cuda:0",
        (Check("device", False, "It does not compute.", "See the driver."), Check("keys", True, "complete")),
    )
    lease = await renew(db.engine, lease, report)
    found = await _holder(db)
    assert (found.report, found.is_held) == (report, True)
    assert found.served_s is not None
    assert found.served_s >= 0.0
    await renew(db.engine, lease)
    assert (await _holder(db)).report == report, "a renewal that says nothing leaves what was said"
    await _expire(db)
    assert (await _holder(db)).is_held is False
    again = await _acquired(db, "two")
    begun = await _holder(db)
    assert begun.report == LeaseReport(Condition(Phase.LOADING)), "what its predecessor said is not said of it"
    assert begun.served_s is not None, "but when one last served is known still"
    await release(db.engine, again)
    assert (await _holder(db)).report.condition == Condition(Phase.STOPPED)


async def test_no_report_keeps_a_lease_from_being_renewed(db: Database) -> None:
    lease = await _acquired(db)
    for bound in (math.inf, math.nan, None):
        reason = "The file a\0b\udcff is away. " * 1_000
        report = LeaseReport(
            Condition(Phase.FAILED, reason), RepairProgress(0, 0, bound), "cpu", (Check("keys", False, reason),)
        )
        lease = await renew(db.engine, lease, report)
        found = (await _holder(db)).report
        assert str(found.condition.reason).startswith("The file ab? is away.")
        assert found.repair == RepairProgress(0, 0, None)
        assert (await _holder(db)).served_s is None, "it does not serve"
