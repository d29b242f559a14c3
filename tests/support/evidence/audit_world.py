"""A small generated audit, with requests in every state and at distant times."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import text

from benchmarks.performance.audit.events import MODEL, generate
from service.access.cursors import PageCursor
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.reports.queries import AuditEntry, AuditFilters, Order
from service.reports.search import Page, count, search
from tests.support.databases import Templates

#: End of the generated requests.
UNTIL = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAYS = 9


@dataclass
class AuditWorld:
    """A database with an audit."""

    url: str
    engine: Engine

    async def rows(self, statement: str, **values: object) -> list[Any]:
        """Run one statement and return its rows."""
        async with self.engine.begin() as conn:
            result = await conn.execute(text(statement), values)
            return list(result.all()) if result.returns_rows else []

    async def page(
        self,
        filters: AuditFilters,
        cursor: PageCursor | None = None,
        limit: int = 50,
        order: Order = Order.NEWEST,
    ) -> Page:
        """Return one page of a search."""
        async with transaction(self.engine) as conn:
            return await search(conn, filters, cursor, limit, order)

    async def counted(self, filters: AuditFilters) -> int:
        """Count the results of a search, as shown beside its first page."""
        async with transaction(self.engine) as conn:
            return await count(conn, filters)

    async def found(self, filters: AuditFilters, limit: int = 50, order: Order = Order.NEWEST) -> list[AuditEntry]:
        """Return all pages of a search."""
        entries: list[AuditEntry] = []
        cursor = None
        while True:
            page = await self.page(filters, cursor, limit, order)
            entries += page.entries
            if page.next_cursor is None:
                return entries
            cursor = page.next_cursor


@contextmanager
def audit_database(templates: Templates, model: str) -> Iterator[str]:
    """`postgresql://…` of a database with a generated audit of `model`."""

    with templates.copy(f"audit of {model}", partial(_fill, model)) as url:
        yield url


async def _fill(model: str, url: str) -> None:
    await generate(url, events=1000, days=DAYS, until=UNTIL, model=model)


async def _drill(url: str) -> None:
    await _fill(MODEL, url)
    engine = create_engine(url)
    await AuditWorld(url, engine).rows("""
        INSERT INTO drills (request_id, model, cohort, requested_at)
        SELECT id, model, row_number() OVER (ORDER BY received_at), received_at
        FROM requests WHERE status = 'completed' ORDER BY received_at LIMIT 3
    """)
    await engine.dispose()


@asynccontextmanager
async def generated(templates: Templates) -> AsyncIterator[AuditWorld]:
    """Yield a generated audit that tests may change; some of the completed requests were drills."""
    with templates.copy("audit with drills", _drill) as url:
        engine = create_engine(url)
        try:
            yield AuditWorld(url, engine)
        finally:
            await engine.dispose()
