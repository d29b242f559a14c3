"""Pages of the requests in a state are not cut short by requests that leave it meanwhile."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.audit_records import search as audit_search
from service.audit_records.queries import AuditFilters
from service.audit_records.search import Page, search
from service.db.transactions import transaction
from service.deletions.moves import RequestMoves
from service.domain.states import RequestStatus
from service.vault.cursors import PageCursor
from tests.support.service.db_harness import Database, open_database

QUEUED = AuditFilters(status=RequestStatus.QUEUED)


@pytest.fixture
async def db(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    async with open_database(database_url, tmp_path) as database:
        yield database


async def page(db: Database, limit: int, cursor: PageCursor | None = None) -> Page:
    async with transaction(db.engine) as conn:
        return await search(conn, QUEUED, cursor, limit)


async def accepted(db: Database, count: int, days_ago: int) -> list[UUID]:
    """Requests of one day, newest first."""
    ids = [await db.accept(f"{days_ago} {number}") for number in range(count)]
    for request_id in ids:
        await db.rows(
            "UPDATE requests SET received_at = received_at - make_interval(days => :days) WHERE id = :id",
            days=days_ago,
            id=request_id,
        )
    return ids[::-1]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Database, list[UUID]], None]:
    """Has requests fail after a search has learned which days to look in, and before it looks."""

    def arrange(db: Database, leaving: list[UUID]) -> None:
        days = audit_search._days

        async def then_they_leave(*arguments: Any) -> object:
            found = await days(*arguments)
            async with transaction(db.engine) as conn:
                for request_id in leaving:
                    await RequestMoves(conn).mark_failed(request_id, "Its features are broken.")
            leaving.clear()
            return found

        monkeypatch.setattr(audit_search, "_days", then_they_leave)

    return arrange


@pytest.mark.parametrize("leaving", [1, 2, 4])
async def test_a_page_is_filled_from_the_days_before_when_requests_leave_meanwhile(
    db: Database, between: Callable[[Database, list[UUID]], None], leaving: int
) -> None:
    older = await accepted(db, 3, days_ago=2)
    old = await accepted(db, 1, days_ago=1)
    new = await accepted(db, 4, days_ago=0)
    between(db, new[:leaving])
    left = [*new[leaving:], *old, *older]
    first = await page(db, 3)
    assert [entry.request.id for entry in first.entries] == left[:3]
    assert first.next_cursor is not None
    rest = await page(db, 10, first.next_cursor)
    assert [entry.request.id for entry in rest.entries] == left[3:]
    assert rest.next_cursor is None
