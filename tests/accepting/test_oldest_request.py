"""The waiting time of the request at the head of the queue, while it could be processed."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from service.db import lease as leases
from service.db.transactions import transaction
from service.domain.lease_report import Condition, LeaseReport, Phase
from service.domain.records import OldestRequest
from service.requests.lookup import RequestRepository
from service.requests.moves import RequestMoves
from tests.support.service.db_harness import MODEL, Database, open_database

MOST_S = 40.0
LONG_S = 24 * 3600.0


@pytest.fixture
async def db(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    """A database whose unlearner has served for a long time."""
    async with open_database(database_url, tmp_path) as database:
        await report_phase(database, Phase.SERVING, LONG_S)
        yield database


async def report_phase(db: Database, phase: Phase, ago_s: float) -> None:
    """An unlearner has acquired the lease, and reported that it is at `phase`."""
    lease = await leases.acquire(db.engine, MODEL, "one", LONG_S)
    assert lease is not None
    await leases.renew(db.engine, lease, LeaseReport(Condition(phase)))
    earlier = ", ".join(f"{at} = {at} - make_interval(secs => :ago)" for at in ("held_since", "serving_since"))
    await db.rows(f"UPDATE leases SET {earlier}", ago=ago_s)


async def oldest(db: Database) -> OldestRequest:
    async with transaction(db.engine) as conn:
        found = await RequestRepository(conn).oldest(MODEL)
    assert found is not None
    return found


async def backdate(db: Database, request_id: UUID, ago_s: float, *columns: str) -> None:
    earlier = ", ".join(f"{at} = now() - make_interval(secs => :ago)" for at in columns)
    await db.rows(f"UPDATE requests SET {earlier} WHERE id = :id", id=request_id, ago=ago_s)


async def accepted(db: Database, node: str, ago_s: float) -> UUID:
    request_id = await db.accept(node)
    await backdate(db, request_id, ago_s, "received_at", "queued_at")
    return request_id


async def take(db: Database, request_id: UUID, ago_s: float) -> None:
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).take([request_id])
    await backdate(db, request_id, ago_s, "taken_at")


async def fail(db: Database, request_id: UUID, ago_s: float) -> None:
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_failed(request_id, "It names what is not there.")
    await backdate(db, request_id, ago_s, "failed_at")


async def test_it_waits_since_it_was_queued_when_nothing_before_it_went_on(db: Database) -> None:
    await accepted(db, "1", 50.0)
    await accepted(db, "2", 10.0)
    found = await oldest(db)
    assert found.waits_s == pytest.approx(50.0, abs=5.0)
    assert found.is_stuck(MOST_S)


async def test_those_that_overtook_it_do_not_hide_that_it_waits(db: Database) -> None:
    await accepted(db, "1", 300.0)
    later = await accepted(db, "2", 200.0)
    await fail(db, later, 1.0)
    assert (await oldest(db)).is_stuck(MOST_S)


@pytest.mark.parametrize("is_committed", [False, True])
async def test_behind_a_batch_that_the_unlearner_has_in_hand_it_waits_for_as_long_as_that_takes(
    db: Database, is_committed: bool
) -> None:
    under_way = await accepted(db, "1", 7300.0)
    await accepted(db, "2", 7290.0)
    await take(db, under_way, 7285.0)
    if is_committed:
        await db.batch([under_way])
    assert not (await oldest(db)).is_stuck(MOST_S)


async def test_one_that_waited_too_long_before_a_batch_overtook_it_is_stuck_meanwhile(db: Database) -> None:
    await accepted(db, "1", 300.0)
    await take(db, await accepted(db, "2", 200.0), 100.0)
    assert (await oldest(db)).is_stuck(MOST_S)


async def test_it_waits_for_an_unlearner_only_since_that_serves(db: Database) -> None:
    await accepted(db, "1", 3600.0)
    await report_phase(db, Phase.SERVING, 5.0)
    found = await oldest(db)
    assert found.waits_s == pytest.approx(5.0, abs=5.0)
    assert not found.is_stuck(MOST_S)


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.FAILED, Phase.HELD_UP])
async def test_while_no_unlearner_serves_it_waits_and_is_not_stuck(db: Database, phase: Phase) -> None:
    await accepted(db, "1", 3600.0)
    await report_phase(db, phase, 1800.0)
    found = await oldest(db)
    assert found.waits_s == pytest.approx(3600.0, abs=5.0)
    assert not found.is_stuck(MOST_S)


async def test_while_nobody_holds_the_lease_it_is_not_stuck(db: Database) -> None:
    await accepted(db, "1", 3600.0)
    await db.rows("UPDATE leases SET expires_at = now() - interval '30 min'")
    assert not (await oldest(db)).is_stuck(MOST_S)


async def test_one_that_is_tried_again_is_in_nobodys_hand_until_it_is_taken_up_again(db: Database) -> None:
    request_id = await accepted(db, "1", 3600.0)
    await take(db, request_id, 1900.0)
    await fail(db, request_id, 1800.0)
    await db.intake.retry(request_id, db.api_key_id)
    await db.rows("UPDATE requests SET queued_at = now() - interval '60 s'")
    assert (await oldest(db)).is_stuck(MOST_S)
