"""Bringing a database to the schema of this version of Lethe."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from service.db.engine import asyncpg_url
from service.db.roles import grant
from service.db.transactions import transaction
from service.errors import ConfigurationError

#: Advisory lock that whoever migrates takes (the bytes of "lethe").
_MIGRATION_LOCK = 0x6C65746865
#: SQLSTATE of a missing right.
_NO_RIGHT = "42501"
_MIGRATIONS = Path(__file__).parent / "migrations"


async def upgrade(url: str, revision: str = "head") -> None:
    """Apply the migrations up to `revision`, and give the application's role its rights on what there is then.

    Starters that collide take turns. Raises `Unavailable`, and `ConfigurationError` when there is something to apply
    that the login has no right to.
    """

    def work(connection: Connection) -> None:
        _migrate(connection, command.upgrade, revision)
        grant(connection)

    try:
        await _run(url, work)
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != _NO_RIGHT:
            raise
        raise ConfigurationError(
            "The database is not at the schema of this version, and this login has no right to change it.",
            "Run `./lethe migrate` once with the DATABASE_URL of the tables' owner.",
        ) from None


async def downgrade(url: str, revision: str) -> None:
    """Take migrations back to `revision` (`base`: all of them, with all data). Raises `Unavailable`."""
    await _run(url, lambda connection: _migrate(connection, command.downgrade, revision))


async def current(url: str) -> str | None:
    """Return the revision of the database, None when it has none. Raises `Unavailable`."""
    found: list[str | None] = []
    await _run(url, lambda conn: found.append(revision_of(conn)))
    return found[0]


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the database that a connection is to, None when it has none."""
    return MigrationContext.configure(connection).get_current_revision()


@cache
def head() -> str:
    """Return the revision this version of Lethe needs."""
    revision = ScriptDirectory.from_config(_config(None)).get_current_head()
    assert revision is not None
    return revision


def take_turn(connection: Connection) -> None:
    """Wait until no other transaction migrates this database, and keep others out until the caller's ends."""
    connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))


def _migrate(connection: Connection, move: Callable[[Config, str], None], revision: str) -> None:
    # Before Alembic is entered: it keeps the migration under way in a global of its module.
    take_turn(connection)
    move(_config(connection), revision)


async def _run(url: str, work: Callable[[Connection], None]) -> None:
    # Not the service's engine: a migration may take longer than its statements may.
    engine = create_async_engine(asyncpg_url(url), poolclass=NullPool)
    try:
        async with transaction(engine) as conn:
            await conn.run_sync(work)
    finally:
        await engine.dispose()


def _config(connection: Connection | None) -> Config:
    # In code, not from a file of Alembic's: there is none beside an installed Lethe.
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config
