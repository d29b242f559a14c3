"""Migrate a database to the schema of this version of Lethe."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from alembic import command, op
from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.roles import grant
from service.db.schema import MIGRATIONS, connected, head, require_ours, revision_of
from service.db.transactions import NO_RIGHT, sqlstate
from service.errors import ConfigurationError

#: Alembic's table, exactly as Alembic creates it; a migration takes its lock. Two starts may run this concurrently.
_MAKE_TABLE = """
    DO $$ BEGIN
        IF to_regclass('alembic_version') IS NULL THEN
            CREATE TABLE alembic_version (
                version_num varchar(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY
            );
        END IF;
    EXCEPTION WHEN duplicate_table OR unique_violation THEN NULL;
    END $$
"""
#: A login without this right cannot migrate and need not wait.
_TAKE_TURN = """
    DO $$ BEGIN
        IF has_table_privilege('alembic_version', 'UPDATE') THEN
            LOCK TABLE alembic_version IN SHARE ROW EXCLUSIVE MODE;
        END IF;
    END $$
"""


async def _accept(connection: AsyncConnection) -> None:
    """Accept any database, because none can be checked without a model."""


async def upgrade(url: str, belongs: Callable[[AsyncConnection], Awaitable[None]] = _accept) -> None:
    """Apply the migrations, then grant the application's role its rights on all present tables.

    `belongs` inspects the migrated database and raises if it is the wrong one; nothing has changed then. Concurrent
    starts take turns. Raises `Unavailable`, `UnknownSchema`, and `ConfigurationError` if the login may not apply a
    needed migration.
    """
    try:
        async with connected(url) as connection:
            # Before entering Alembic, which keeps the current migration in a global of its module.
            await connection.run_sync(take_turn)
            await require_ours(connection)
            if await revision_of(connection) == head():
                await connection.run_sync(grant)
            else:
                await connection.run_sync(_apply)
            await belongs(connection)
    except DBAPIError as error:
        if sqlstate(error) != NO_RIGHT:
            raise
        raise ConfigurationError(
            "The database is not at the schema of this version, and this login may not change it.",
            "Run `./lethe migrate` once with the login that owns the tables as DATABASE_URL.",
        ) from None


def take_turn(connection: Connection) -> None:
    """Wait until no other transaction migrates this database; keep others out until the caller's ends."""
    connection.exec_driver_sql(_MAKE_TABLE)
    connection.exec_driver_sql(_TAKE_TURN)


def execute_files(migration: str, *names: str) -> None:
    """Execute `<name>.sql` of a migration's folder in this order: `r0001` is that of `r0001_initial.py`."""
    folder = Path(migration).with_name(Path(migration).name.partition("_")[0])
    for name in names:
        for statement in (folder / f"{name}.sql").read_text().split(";\n\n"):
            op.get_bind().exec_driver_sql(statement)


def _apply(connection: Connection) -> None:
    # In code, because an installed Lethe has no Alembic configuration file.
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    grant(connection)
