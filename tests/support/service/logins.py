"""Logins of Postgres, as an operator creates them for one process or tool."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db import roles
from service.db.engine import Engine
from tests.support.service.db_harness import Database


@asynccontextmanager
async def logged_in(db: Database, role: str) -> AsyncIterator[Engine]:
    """Yield an engine with a new login that has exactly the rights of `role`."""
    parsed = make_url(db.url)
    login = f"{parsed.database}_{role}"
    await db.rows(f"CREATE ROLE {login} LOGIN PASSWORD 'secret' IN ROLE {role}")
    url = parsed.set(username=login, password="secret").render_as_string(hide_password=False)
    engine = await roles.open_engine(url, role, pool_size=2)
    try:
        yield engine
    finally:
        await engine.dispose()
        await db.rows(f"DROP ROLE {login}")


async def may(conn: AsyncConnection, statement: str) -> bool:
    """Whether a statement is permitted: it succeeds, or fails for another reason than a missing right. It is undone."""
    try:
        await conn.execute(text(statement))
    except DBAPIError as error:
        refusal = str(error.orig)
        return "permission denied" not in refusal and "must be owner" not in refusal
    finally:
        await conn.rollback()
    return True
