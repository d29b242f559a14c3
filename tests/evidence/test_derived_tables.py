"""Only triggers write what they derive from requests; the application's role may only read it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.engine import create_engine
from service.db.roles import API_ROLE, DERIVED, UNLEARNER_ROLE
from service.db.transactions import transaction
from service.predictions.version_rows import VersionRepository
from service.reports.summary import fold
from service.requests.moves import RequestMoves
from tests.support.evidence.totals import assert_totals_are_right
from tests.support.service.db_harness import Database, Said

#: A temporary table that imitates the one whose changes a trigger's function processes.
FORGED_TABLE = "CREATE TEMPORARY TABLE requests (LIKE public.requests)"
FORGED_TRIGGER = """
    CREATE TRIGGER forged AFTER INSERT ON requests REFERENCING NEW TABLE AS added
        FOR EACH STATEMENT EXECUTE FUNCTION public.{}()
"""


@asynccontextmanager
async def application(db: Database) -> AsyncIterator[AsyncConnection]:
    """Yield a connection that works as the application's role."""
    engine = create_engine(db.url, pool_size=1, role=UNLEARNER_ROLE)
    try:
        async with engine.connect() as conn:
            yield conn
    finally:
        await engine.dispose()


async def through_all_states(db: Database) -> None:
    """Take requests through accepted, applied, measured, completed, failed and cancelled, folding totals between."""
    ids = [await db.accept(str(n)) for n in range(4)]
    async with transaction(db.engine) as conn:
        await fold(conn)
    batch_id = await db.applied(ids[:2])
    async with transaction(db.engine) as conn:
        await VersionRepository(conn).finish(batch_id, span_residual=3e-15, durations_ms={})
        await RequestMoves(conn).mark_completed({ids[0]: Said()})
        await RequestMoves(conn).mark_failed(ids[2], "Its features are broken.")
    await db.intake.cancel(ids[3], db.api_key_id)
    async with transaction(db.engine) as conn:
        await fold(conn)


@pytest.mark.parametrize("table", sorted(DERIVED))
async def test_the_applications_role_cannot_write_what_triggers_derive(db: Database, table: str) -> None:
    await db.accept("1")
    async with application(db) as conn:
        assert (await conn.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one() > 0
        await conn.rollback()
        for statement in (
            f"INSERT INTO {table} DEFAULT VALUES",
            f"UPDATE {table} SET model = 'x'" if table != "request_search" else f"UPDATE {table} SET status = 'failed'",
            f"DELETE FROM {table}",
            f"TRUNCATE {table}",
        ):
            with pytest.raises(DBAPIError, match="permission denied"):
                await conn.execute(text(statement))
            await conn.rollback()


async def test_all_that_happens_to_requests_reaches_them_from_the_applications_role(db: Database) -> None:
    owner, engine, asking = db.engine, create_engine(db.url, role=UNLEARNER_ROLE), create_engine(db.url, role=API_ROLE)
    db.engine, db.intake._engine = engine, asking
    try:
        await through_all_states(db)
    finally:
        db.engine = owner
        await engine.dispose()
        await asking.dispose()
    await assert_totals_are_right(db)


async def test_their_functions_serve_no_trigger_of_the_applications_role(db: Database) -> None:
    """They have the owner's rights: on a table of one's own, they would write any content."""
    functions = await db.rows("SELECT proname FROM pg_proc WHERE prosecdef AND prorettype = 'trigger'::regtype")
    assert len(functions) == 13
    # Names are resolved in the tables' schema, not where a writer could shadow them.
    settings = await db.rows("SELECT DISTINCT proconfig FROM pg_proc WHERE prosecdef")
    assert [one["proconfig"] for one in settings] == [["search_path=public, pg_temp"]]
    async with application(db) as conn:
        for function in functions:
            await conn.execute(text(FORGED_TABLE))
            with pytest.raises(DBAPIError, match="permission denied for function"):
                await conn.execute(text(FORGED_TRIGGER.format(function["proname"])))
            await conn.rollback()
