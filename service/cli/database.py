"""A command's own way to the database, for what no key may ask a running Lethe for."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from service.cli.server import settings_of_used
from service.settings import Settings

if TYPE_CHECKING:
    from service.db.engine import Connection, Engine

_T = TypeVar("_T")


@asynccontextmanager
async def opened(url: str) -> "AsyncIterator[Engine]":
    """Connections to a database, one at a time, until the block ends."""
    from service.db.engine import create_engine

    engine = create_engine(url, pool_size=1)
    try:
        yield engine
    finally:
        await engine.dispose()


def with_database(home: Path, work: "Callable[[Connection, Settings], Awaitable[_T]]") -> _T:
    """Runs `work(connection, settings)` in one transaction on the database of `home`, which may still be empty.

    With the login of `DATABASE_URL`, that of the tables' owner.
    """
    from service.db import migrate, schema
    from service.db.transactions import transaction
    from service.embedded import open_servers

    async def run(settings: Settings) -> _T:
        assert settings.database_url is not None
        if await schema.current(settings.database_url) is None:
            await migrate.upgrade(settings.database_url)
        async with opened(settings.database_url) as engine:
            await schema.require_current(engine)
            async with transaction(engine) as connection:
                return await work(connection, settings)

    with open_servers(settings_of_used(home)) as settings:
        return asyncio.run(run(settings))
