"""Direct database access for commands that no API key may request from a running Lethe, and `lethe migrate`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from service.cli.console import Json, interrupted, print_result, show_progress
from service.cli.server import Home, settings_of_used
from service.settings import Settings, load_settings

if TYPE_CHECKING:
    from service.db.engine import Connection, Engine


_T = TypeVar("_T")


@asynccontextmanager
async def opened(url: str) -> "AsyncIterator[Engine]":
    """Open a database, with one connection at a time, until the block ends."""
    from service.db.engine import create_engine

    engine = create_engine(url, pool_size=1)
    try:
        yield engine
    finally:
        await engine.dispose()


def with_database(home: Path, work: "Callable[[Connection, Settings], Awaitable[_T]]") -> _T:
    """Run `work(connection, settings)` in one transaction on the database of `home`, which may be empty.

    Uses the login of `DATABASE_URL`, which owns the tables.
    """
    from service.db import migrate, schema
    from service.db.transactions import transaction
    from service.processes.private_servers import open_servers

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


def migrate_command(home: Home = Path("var"), as_json: Json = False) -> None:
    """Migrate the database to this version. `lethe serve` also does this at its start.

    Uses DATABASE_URL, or the private Postgres of LETHE_HOME.

    Example: [bold]DATABASE_URL=postgresql://lethe@db/lethe ./lethe migrate[/bold]
    """
    from service.db import migrate, schema
    from service.processes.private_servers import open_servers

    left = "The migration is one transaction: it was applied entirely or not at all. Run the same command again."
    with (
        interrupted(lambda: left),
        open_servers(load_settings(home=home)) as settings,
        show_progress("Migrating the tables"),
    ):
        assert settings.database_url is not None
        before = asyncio.run(schema.current(settings.database_url))
        asyncio.run(migrate.upgrade(settings.database_url))
    after = schema.head()
    said = (
        f"is at revision {before} already"
        if before == after
        else f"was upgraded from {before or 'empty'} to revision {after}"
    )
    print_result({"before": before, "after": after}, as_json, f"The database {said}.")
