"""Bringing a database to the schema of this version of Lethe."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import ClassVar, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from service.db.engine import Engine, asyncpg_url
from service.db.roles import grant
from service.db.transactions import transaction
from service.errors import ConfigurationError, LetheError

T = TypeVar("T")

#: Advisory lock that whoever migrates takes (the bytes of "lethe").
_MIGRATION_LOCK = 0x6C65746865
#: SQLSTATE of a missing right.
_NO_RIGHT = "42501"
#: Revisions of before the first release.
_UNRELEASED = re.compile("00[01][0-9]")
_MIGRATIONS = Path(__file__).parent / "migrations"


class SchemaForeign(LetheError):
    """The database has a schema that this version of Lethe neither has nor can bring to its own."""

    slug: ClassVar[str] = "schema-foreign"
    title: ClassVar[str] = "Schema of another version"


async def upgrade(url: str) -> None:
    """Apply the migrations, and give the application's role its rights on what there is then.

    Starters that collide take turns. Raises `Unavailable`, `SchemaForeign`, and `ConfigurationError` when there is
    something to apply that the login has no right to.
    """

    def work(connection: Connection) -> None:
        # Before Alembic is entered: it keeps the migration under way in a global of its module.
        take_turn(connection)
        require_known(revision_of(connection))
        command.upgrade(_config(connection), "head")
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


async def current(url: str) -> str | None:
    """Return the revision of the database, None when it has none. Raises `Unavailable`."""
    return await _run(url, revision_of)


async def require_current(engine: Engine) -> None:
    """Raise `SchemaForeign` or `ConfigurationError` for a database of another version, `Unavailable` in an outage."""
    async with transaction(engine) as connection:
        revision = await connection.run_sync(revision_of)
    require_known(revision)
    if revision != head():
        raise ConfigurationError(
            f"The database is at revision {revision or 'none'}, and this version of Lethe needs {head()}.",
            "Run `./lethe serve --role prepare` once with the DATABASE_URL of the tables' owner.",
        )


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the database that a connection is to, None when it has none."""
    return MigrationContext.configure(connection).get_current_revision()


@cache
def head() -> str:
    """Return the revision this version of Lethe needs."""
    revision = _scripts().get_current_head()
    assert revision is not None
    return revision


def require_known(revision: str | None) -> None:
    """Raise `SchemaForeign` for the revision of a database that no migration of this version leads on from."""
    if revision is None or revision in {one.revision for one in _scripts().walk_revisions()}:
        return
    if _UNRELEASED.fullmatch(revision):
        raise SchemaForeign(
            f"The database has the schema {revision}, of a Lethe before 0.1.0, which no released version goes on from.",
            "Export what it holds with the Lethe that made it. Then name an empty database in DATABASE_URL and a fresh "
            "LETHE_HOME, train the model on data without what was deleted, and serve it.",
        )
    raise SchemaForeign(
        f"The database has the schema {revision}, which this version of Lethe does not know: a later one made it.",
        "Use that version or one after it, or restore a backup of this version's database and LETHE_HOME.",
    )


def take_turn(connection: Connection) -> None:
    """Wait until no other transaction migrates this database, and keep others out until the caller's ends."""
    connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))


async def _run(url: str, work: Callable[[Connection], T]) -> T:
    # Not the service's engine: a migration may take longer than its statements may.
    engine = create_async_engine(asyncpg_url(url), poolclass=NullPool)
    try:
        async with transaction(engine) as conn:
            return await conn.run_sync(work)
    finally:
        await engine.dispose()


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(None))


def _config(connection: Connection | None) -> Config:
    # In code, not from a file of Alembic's: there is none beside an installed Lethe.
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    if connection is not None:
        config.attributes["connection"] = connection
    return config
