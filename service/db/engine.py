"""The connection pool to Postgres."""

from typing import Any

import asyncpg
from sqlalchemy import event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from service.db import postgres_urls
from service.errors import ConfigurationError

#: The pool's type, for layers that pass it on without using SQLAlchemy.
Engine = AsyncEngine
#: The type of a connection in a transaction, likewise.
Connection = AsyncConnection

#: Maximum transaction time, from Postgres 17 on. The idle and statement time-outs both miss a client that stops between
#: the messages of one statement (asyncpg prepares and executes in two).
_LIMIT = "SET transaction_timeout = '60s'"
_LIMIT_SINCE = 17
#: Lift the limits that `service.db.roles` sets on the database, for work of unbounded length.
_NO_LIMIT = "SET transaction_timeout = 0"
_NO_IDLE_LIMIT = "SET idle_in_transaction_session_timeout = 0"
#: None if `postgres_urls.OWN_SESSION` did not reach Postgres.
_OWN_SESSION = text("SELECT current_setting('lethe.session', true)")
#: Key of the connection arguments in an engine's options.
_ARGUMENTS = "lethe_connect_args"
_CONNECT_SECONDS = 10.0
_COMMAND_SECONDS = 30.0
_POOL_SECONDS = 10.0


def create_engine(url: str, *, pool_size: int = 10, role: str | None = None) -> AsyncEngine:
    """Return a pool of up to `pool_size` connections; opens none yet.

    They work as `role`, which the login must be allowed to assume; by default as the login itself. No statement waits
    longer than 30 s, and no transaction lasts longer than 60 s if Postgres can limit it (from 17 on). Raises
    ConfigurationError for an unreadable `url`.
    """
    address, given = connection_to(url)
    own = postgres_urls.SESSION_SETTINGS if role is None else postgres_urls.SESSION_SETTINGS | {"role": role}
    arguments = {
        "timeout": _CONNECT_SECONDS,
        "command_timeout": _COMMAND_SECONDS,
        **given,
        "server_settings": own | given["server_settings"],
    }
    engine = create_async_engine(
        address,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=_POOL_SECONDS,
        connect_args=arguments,
        execution_options={_ARGUMENTS: arguments},
    )
    event.listen(engine.sync_engine, "connect", _limit_transactions)
    event.listen(engine.sync_engine, "checkout", _refuse_closed)
    return engine


async def require_own_session(connection: AsyncConnection) -> None:
    """Raise ConfigurationError if something between Lethe and Postgres drops the settings of a session."""
    if await connection.scalar(_OWN_SESSION) is None:
        raise ConfigurationError(
            "DATABASE_URL leads to a connection pooler such as PgBouncer, which ignores the settings of a session.",
            "Name Postgres itself. Lethe needs sessions of its own, for LISTEN and for time limits.",
        )


async def connect(engine: AsyncEngine) -> asyncpg.Connection:
    """Open a connection outside the pool of an engine of `create_engine`, with the same settings.

    Raises the errors of asyncpg.
    """
    positional, named = engine.dialect.create_connect_args(engine.url)
    connection = await asyncpg.connect(*positional, **(named | engine.get_execution_options()[_ARGUMENTS]))
    try:
        if _can_limit(connection):
            await connection.execute(_LIMIT)
    except BaseException:
        connection.terminate()
        raise
    return connection


def connection_to(url: str) -> tuple[URL, dict[str, Any]]:
    """Return the SQLAlchemy address of `url`, and the arguments for its driver asyncpg.

    Raises ConfigurationError for an unreadable `url`.
    """
    try:
        found = postgres_urls.read(url)
    except ValueError as error:
        raise ConfigurationError(f"The URL of Postgres {error}.", "Correct DATABASE_URL.") from None
    address = URL.create("postgresql+asyncpg", username=found.user, password=found.password, database=found.database)
    places = {"host": list(found.hosts) or None, "port": list(found.ports) or None}
    given = {name: value for name, value in places.items() if value} | dict(found.arguments)
    return address, given | {"server_settings": dict(found.server_settings)}


def _limit_transactions(connection: Any, record: object) -> None:
    """Set the limit after connecting: an older Postgres would refuse it in a start-up packet."""
    if _can_limit(connection.driver_connection):
        connection.run_async(lambda driver: driver.execute(_LIMIT))


def unlimit(connection: Any, record: object) -> None:
    """Lift the transaction limits of a new connection; a handler of an engine's event `connect`."""
    connection.run_async(lambda driver: driver.execute(_NO_IDLE_LIMIT))
    if _can_limit(connection.driver_connection):
        connection.run_async(lambda driver: driver.execute(_NO_LIMIT))


def _can_limit(connection: asyncpg.Connection) -> bool:
    return bool(connection.get_server_version().major >= _LIMIT_SINCE)


def _refuse_closed(connection: Any, record: object, proxy: object) -> None:
    """Let the pool replace a connection that a Postgres restart closed; costs no round trip."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError
