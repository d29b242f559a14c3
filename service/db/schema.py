"""The schema of a database, and the schemas that this version of Lethe knows; `service.db.migrate` upgrades it.

Nothing here needs Alembic, whose import takes a quarter of a second: serving processes only check.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from service.db.engine import connection_to, require_own_session, unlimit
from service.db.postgres_urls import OWN_SESSION
from service.db.roles import API_ROLE, UNLEARNER_ROLE
from service.db.transactions import NO_RIGHT, sqlstate, transaction
from service.errors import ConfigurationError, LetheError

#: Beside `service`, in a checkout, in the image and in an installation.
MIGRATIONS = Path(__file__).parents[2] / "migrations"
#: Names of a migration and its predecessor, None for the first.
_NAMES = re.compile(r"""^(revision|down_revision) = ["']?(\w+)["']?$""", re.MULTILINE)
#: Revisions from before the first release.
_UNRELEASED = re.compile(r"00[01][0-9]|0\.[0-9]+\.0")
_IS_MIGRATED = text("SELECT to_regclass('alembic_version') IS NOT NULL")
_REVISION = text("SELECT version_num FROM alembic_version")
_FOREIGN = text("""
    SELECT relname FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f')
      AND relname <> 'alembic_version'
      AND NOT EXISTS (SELECT FROM pg_depend
                      WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid AND deptype = 'e')
    ORDER BY relname LIMIT 1
""")


class UnknownSchema(LetheError):
    """This version of Lethe cannot use or migrate the schema of the database."""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncConnection]:
    """Yield a separate connection in a transaction, like `transaction`.

    Not the service's, because a migration may exceed its statement time limit.
    """
    address, arguments = connection_to(url)
    arguments["server_settings"] |= OWN_SESSION
    engine = create_async_engine(address, poolclass=NullPool, connect_args=arguments)
    event.listen(engine.sync_engine, "connect", unlimit)
    try:
        async with transaction(engine) as connection:
            await require_own_session(connection)
            yield connection
    finally:
        await engine.dispose()


async def current(url: str) -> str | None:
    """Return the revision of the database, or None. Raises `Unavailable`."""
    async with connected(url) as connection:
        return await revision_of(connection)


async def revision_of(connection: AsyncConnection) -> str | None:
    """Return the revision of the connected database, or None."""
    if not await connection.scalar(_IS_MIGRATED):
        return None
    revision: str | None = await connection.scalar(_REVISION)
    return revision


async def require_current(engine: AsyncEngine) -> None:
    """Raise `UnknownSchema` or `ConfigurationError` for a database of another version, `Unavailable` in an outage.

    Also raises `ConfigurationError` for a login without the right to check.
    """
    try:
        async with transaction(engine) as connection:
            revision = await revision_of(connection)
    except DBAPIError as error:
        if sqlstate(error) != NO_RIGHT:
            raise
        login = engine.url.username
        raise ConfigurationError(
            f"The login {login!r} has no right to read the database's tables.",
            f'Give it the role of its process, as the tables\' owner: `GRANT {API_ROLE} TO "{login}"` to one that '
            f'answers, `GRANT {UNLEARNER_ROLE} TO "{login}"` to the unlearner.',
        ) from None
    _require_known(revision)
    if revision != head():
        raise ConfigurationError(
            f"The database is at revision {revision or 'none'}, and this version of Lethe needs {head()}.",
            "Run `./lethe serve --role prepare` once with the DATABASE_URL of the tables' owner.",
        )


async def require_ours(connection: AsyncConnection) -> None:
    """Raise `UnknownSchema` for another program's database, or one that this version cannot migrate."""
    revision = await revision_of(connection)
    _require_known(revision)
    foreign = await connection.scalar(_FOREIGN) if revision is None else None
    if foreign is not None:
        raise UnknownSchema(
            f"The database has tables of another program, such as {foreign!r}.",
            "Nothing was changed. Set DATABASE_URL to an empty database.",
        )


def head() -> str:
    """Return the revision that this version of Lethe needs."""
    revisions = _revisions()
    [newest] = revisions.keys() - revisions.values()
    return newest


def _require_known(revision: str | None) -> None:
    """Raise `UnknownSchema` for a revision that this version cannot migrate."""
    if revision is None or revision in _revisions():
        return
    if _UNRELEASED.fullmatch(revision):
        raise UnknownSchema(
            f"The database has the schema {revision}, of a Lethe before its first release. No release can upgrade it.",
            "Export what it holds with the Lethe that made it. Then name an empty database in DATABASE_URL and a fresh "
            "LETHE_HOME, train the model on data without what was deleted, and serve it.",
        )
    raise UnknownSchema(
        f"The database has the schema {revision}, which this version of Lethe does not know: a later version "
        "or another program made it.",
        "Use that version or one after it, restore a backup of this version's database and LETHE_HOME, or name an "
        "empty database in DATABASE_URL.",
    )


@cache
def _revisions() -> Mapping[str, str]:
    """Return the revisions of this version, each with its predecessor."""
    found = (dict(_NAMES.findall(file.read_text())) for file in (MIGRATIONS / "versions").glob("*.py"))
    return {names["revision"]: names["down_revision"] for names in found}
