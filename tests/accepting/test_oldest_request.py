"""How long the request at the head of the queue has waited though it could have been taken up."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from service.db.transactions import transaction
from service.deletions.moves import RequestMoves
from service.deletions.requests import RequestRepository
from service.domain.records import LONGEST_BATCH_S, OldestRequest
from tests.support.service.db_harness import MODEL, Database, open_database

MOST_S = 40.0


@pytest.fixture
async def db(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(database_url, tmp_path) as database:
        yield database


async def oldest(db: Database) -> OldestRequest | None:
    async with transaction(db.engine) as conn:
        return await RequestRepository(conn).oldest(MODEL)


async def accepted(db: Database, node: str, ago_s: float) -> UUID:
    request_id = await db.accept(node)
    await db.rows(
        "UPDATE requests SET received_at = now() - make_interval(secs => :ago), queued_at = now() - "
        "make_interval(secs => :ago) WHERE id = :id",
        id=request_id,
        ago=ago_s,
    )
    return request_id


async def take(db: Database, request_id: UUID, ago_s: float) -> None:
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).take([request_id])
    await db.rows(
        "UPDATE requests SET taken_at = now() - make_interval(secs => :ago) WHERE id = :id", id=request_id, ago=ago_s
    )


async def fail(db: Database, request_id: UUID, ago_s: float) -> None:
    async with transaction(db.engine) as conn:
        await RequestMoves(conn).mark_failed(request_id, "It names what is not there.")
    await db.rows(
        "UPDATE requests SET failed_at = now() - make_interval(secs => :ago) WHERE id = :id", id=request_id, ago=ago_s
    )


async def test_an_empty_queue_has_no_oldest_request(db: Database) -> None:
    assert await oldest(db) is None
    await fail(db, await db.accept("1"), 0.0)
    assert await oldest(db) is None


async def test_it_waits_since_it_was_queued_when_nothing_before_it_went_on(db: Database) -> None:
    await accepted(db, "1", 50.0)
    await accepted(db, "2", 10.0)
    found = await oldest(db)
    assert found is not None
    assert found.waits_s == pytest.approx(50.0, abs=5.0)
    assert (found.is_under_way, found.is_stuck(MOST_S)) == (False, True)


async def test_in_a_long_queue_it_waits_since_the_one_before_it_went_on(db: Database) -> None:
    first = await accepted(db, "1", 3600.0)
    await accepted(db, "2", 3500.0)
    await fail(db, first, 5.0)
    found = await oldest(db)
    assert found is not None
    assert found.waits_s == pytest.approx(5.0, abs=5.0)
    assert not found.is_stuck(MOST_S)


async def test_those_that_overtook_it_do_not_hide_that_it_waits(db: Database) -> None:
    await accepted(db, "1", 300.0)
    later = await accepted(db, "2", 200.0)
    await fail(db, later, 1.0)
    found = await oldest(db)
    assert found is not None
    assert found.is_stuck(MOST_S)


@pytest.mark.parametrize(("ago_s", "is_stuck"), [(LONGEST_BATCH_S - 60.0, False), (LONGEST_BATCH_S + 60.0, True)])
async def test_behind_a_batch_it_may_wait_for_as_long_as_a_batch_may_take(
    db: Database, ago_s: float, is_stuck: bool
) -> None:
    under_way = await accepted(db, "1", 2000.0)
    await accepted(db, "2", 1990.0)
    await take(db, under_way, ago_s)
    await db.batch([under_way])
    found = await oldest(db)
    assert found is not None
    assert (found.is_under_way, found.is_stuck(MOST_S)) == (True, is_stuck)


async def test_one_that_is_begun_again_and_again_does_not_get_on(db: Database) -> None:
    request_id = await accepted(db, "1", LONGEST_BATCH_S + 60.0)
    await take(db, request_id, 1.0)
    found = await oldest(db)
    assert found is not None
    assert (found.is_under_way, found.is_stuck(MOST_S)) == (True, True)


async def test_one_that_is_tried_again_waits_since_then(db: Database) -> None:
    request_id = await accepted(db, "1", 3600.0)
    await fail(db, request_id, 1800.0)
    await db.intake.retry(request_id, db.api_key_id)
    found = await oldest(db)
    assert found is not None
    assert not found.is_stuck(MOST_S)
