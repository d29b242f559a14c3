"""The connection pool to Postgres."""

from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

#: The pool's type, for layers that pass it on without touching SQLAlchemy.
Engine = AsyncEngine
#: A connection in a transaction, likewise.
Connection = AsyncConnection

#: Server settings of each connection. A holder that is stopped inside a transaction is thrown out by the first, so that
#: it cannot keep the lease's row locked; `jit` costs more than it gives on statements this short. What is asked for is
#: in memory or on flash, where a page out of order costs as much as the next one.
_SERVER_SETTINGS = {
    "application_name": "lethe",
    "idle_in_transaction_session_timeout": "15s",
    "lock_timeout": "20s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "timezone": "UTC",
    "jit": "off",
    "random_page_cost": "1.1",
}
_CONNECT_SECONDS = 10.0
_COMMAND_SECONDS = 30.0
_POOL_SECONDS = 10.0


def create_engine(url: str, *, pool_size: int = 10, role: str | None = None) -> AsyncEngine:
    """Return a pool of up to `pool_size` connections; opens none yet.

    They work as `role`, one that the login may become; by default as the login itself. `url` is `postgresql://` or
    `postgres://`, with libpq's `sslmode` if wanted. No statement waits longer than 30 s.
    """
    engine = create_async_engine(
        asyncpg_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=_POOL_SECONDS,
        connect_args={
            "timeout": _CONNECT_SECONDS,
            "command_timeout": _COMMAND_SECONDS,
            "server_settings": _SERVER_SETTINGS if role is None else _SERVER_SETTINGS | {"role": role},
        },
    )
    event.listen(engine.sync_engine, "checkout", _refuse_closed)
    return engine


def asyncpg_url(url: str) -> URL:
    """Return `url` for SQLAlchemy's asyncpg driver."""
    parsed = make_url(url).set(drivername="postgresql+asyncpg")
    query = dict(parsed.query)
    if "sslmode" in query:
        query["ssl"] = query.pop("sslmode")
    return parsed.set(query=query)


def _refuse_closed(connection: Any, record: object, proxy: object) -> None:
    """Let the pool replace a connection that a restart of Postgres has closed; costs no round trip."""
    if connection.driver_connection.is_closed():
        raise DisconnectionError
