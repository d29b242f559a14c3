"""Pages of the requests in a state are complete, even if requests leave the state meanwhile."""

from uuid import UUID

from service.access.cursors import PageCursor
from service.db.transactions import transaction
from service.domain.states import RequestStatus
from service.reports.queries import AuditFilters
from service.reports.search import Page, search
from service.requests.moves import RequestMoves
from tests.support.service.db_harness import Database

QUEUED = AuditFilters(status=RequestStatus.QUEUED)


async def page(db: Database, limit: int, cursor: PageCursor | None = None) -> Page:
    async with transaction(db.engine) as conn:
        return await search(conn, QUEUED, cursor, limit)


async def accepted(db: Database, count: int, days_ago: int) -> list[UUID]:
    """Return requests of one day, newest first."""
    ids = [await db.accept(f"{days_ago} {number}") for number in range(count)]
    for request_id in ids:
        await db.rows(
            "UPDATE requests SET received_at = received_at - make_interval(days => :days) WHERE id = :id",
            days=days_ago,
            id=request_id,
        )
    return ids[::-1]


async def test_a_list_that_drains_while_it_is_paged_misses_none_that_stays(db: Database) -> None:
    ids = [one for days_ago in range(4) for one in await accepted(db, 5, days_ago)]
    stays, seen, cursor = set(ids[::2]), set(), None
    while True:
        found = await page(db, 2, cursor)
        seen |= {entry.request.id for entry in found.entries}
        # The next entries have left by then, and so has the cursor's.
        async with transaction(db.engine) as conn:
            gone = [one for one in ids if one not in stays][:3]
            for request_id in gone:
                await RequestMoves(conn).mark_failed(request_id, "Its features are broken.")
        ids = [one for one in ids if one not in gone]
        if found.next_cursor is None:
            break
        cursor = found.next_cursor
    assert stays <= seen
