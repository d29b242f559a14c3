"""Wait for Postgres's NOTIFY instead of polling."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine

from service.db.engine import connect
from service.db.refusal import refusal
from service.db.transactions import damage, is_outage
from service.errors import Unavailable

#: Notified, with the model's name, by every transaction that adds to the outbox.
OUTBOX_CHANNEL = "lethe_outbox"
#: Maximum duration of a statement on a listening connection.
_STATEMENT_SECONDS = 5.0
_OUTAGES = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class Listening:
    """A connection that reports notifications since the last `wait`."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._event = asyncio.Event()
        self._payloads: set[str] = set()
        self._gone = False

    async def wait(self, timeout_s: float) -> bool:
        """Return True if notified, False after `timeout_s`; raises `Unavailable` if the connection is gone."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        if self._gone:
            self._event.set()
            raise Unavailable("The listening connection to the database is lost.", "Listen again.")
        return True

    async def value(self, statement: str, *arguments: Any) -> Any:
        """Return the single value of a statement, which is committed by itself. Raises `Unavailable`."""
        try:
            return await self._connection.fetchval(statement, *arguments, timeout=_STATEMENT_SECONDS)
        except Exception as error:
            if (damaged := damage(error)) is not None:
                raise damaged from error
            if is_outage(error):
                raise refusal(error) from error
            raise

    def payloads(self) -> set[str]:
        """Return the payloads received since the last call."""
        said, self._payloads = self._payloads, set()
        return said

    def _notified(self, connection: object, pid: int, channel: str, payload: object) -> None:
        self._payloads.add(str(payload))
        self._event.set()

    def _terminated(self, *_: object) -> None:
        self._gone = True
        self._event.set()


@asynccontextmanager
async def listen(engine: AsyncEngine, channel: str = OUTBOX_CHANNEL) -> AsyncIterator[Listening]:
    """Yield a `Listening` for `channel`, on its own connection outside the pool. Raises `Unavailable`."""
    connection = await _connect(engine)
    listening = Listening(connection)
    try:
        connection.add_termination_listener(listening._terminated)
        await _subscribe(connection, channel, listening)
        yield listening
    finally:
        connection.remove_termination_listener(listening._terminated)
        connection.terminate()


async def _connect(engine: AsyncEngine) -> asyncpg.Connection:
    try:
        return await connect(engine)
    except _OUTAGES as error:
        raise refusal(error, while_connecting=True) from error


async def _subscribe(connection: asyncpg.Connection, channel: str, listening: Listening) -> None:
    try:
        await connection.add_listener(channel, listening._notified)
    except _OUTAGES as error:
        raise damage(error) or refusal(error) from error
