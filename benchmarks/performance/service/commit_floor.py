"""The floor of a deletion: the rows that Lethe wrote for some requests, committed again in groups and nothing else.

One statement for each table copies the rows within the same Postgres, to tables with the same columns and indexes but
without triggers and foreign keys. A request takes three commits until it is `applied`: accepting it, moving the
pointer, and recording `applied`.
"""

import asyncio
import time
from collections.abc import Sequence
from uuid import UUID

import asyncpg

#: The tables of each commit, without updates and without the one row of the batch.
_COMMITS = (("requests", "outbox"), ("request_audits", "tombstones"), ("events", "leaves"))
#: The rows of each as first written, with the request that owns them.
_SOURCES = {
    "requests": "SELECT *, id AS owner FROM requests",
    "outbox": (
        "SELECT id AS request_id, model, received_at AS created_at, NULL::text AS traceparent, id AS owner"
        " FROM requests"
    ),
    "request_audits": "SELECT *, request_id AS owner FROM request_audits",
    "tombstones": "SELECT *, request_id AS owner FROM tombstones",
    "events": "SELECT *, request_id AS owner FROM events WHERE type = 'applied'",
    "leaves": (
        "SELECT leaves.*, request_id AS owner FROM leaves JOIN events ON events.id = event_id WHERE type = 'applied'"
    ),
}
#: A new request has its sealed list of ids, here of 160 bytes a node, and no explanation.
_AS_NEW = (
    "UPDATE floor.requests_source SET explanation = NULL, ciphertext = decode(repeat(md5(id::text), 10 * count), 'hex')"
)
_COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 ORDER BY attnum"


class CommitFloor:
    """Commits rows that Lethe has written. Each request can be accepted, and applied, once."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        """Use `open`."""
        self._connection = connection
        self._copying: dict[str, str] = {}

    @classmethod
    async def open(cls, database_url: str) -> "CommitFloor":
        """Copy all existing rows; the requests must be completed."""
        floor = cls(await asyncpg.connect(database_url))
        execute = floor._connection.execute
        await execute("DROP SCHEMA IF EXISTS floor CASCADE; CREATE SCHEMA floor")
        for table, rows in _SOURCES.items():
            await execute(f"CREATE TABLE floor.{table} (LIKE {table} INCLUDING DEFAULTS INCLUDING INDEXES)")
            await execute(f"CREATE UNLOGGED TABLE floor.{table}_source AS {rows}")
            await execute(f"CREATE INDEX ON floor.{table}_source (owner)")
            names = ", ".join(f'"{row[0]}"' for row in await floor._connection.fetch(_COLUMNS, f"floor.{table}"))
            floor._copying[table] = (
                f"INSERT INTO floor.{table} ({names}) SELECT {names} FROM floor.{table}_source WHERE owner = ANY($1)"
            )
        await execute(_AS_NEW)
        await execute("ANALYZE")
        return floor

    async def close(self) -> None:
        """Close the connection. The copies stay until the server is removed."""
        await self._connection.close()

    async def requests(self, *, nodes: int) -> list[UUID]:
        """Return the applied requests with this number of nodes each, oldest first."""
        query = "SELECT id FROM requests WHERE count = $1 AND batch_id IS NOT NULL ORDER BY received_at, id"
        return [row[0] for row in await self._connection.fetch(query, nodes)]

    async def accept(self, groups: Sequence[Sequence[UUID]]) -> float:
        """Accept the groups of requests one by one, each in its own commit. Returns seconds."""
        started = time.perf_counter()
        for group in groups:
            await self.commit(0, group)
        return time.perf_counter() - started

    async def accept_and_apply(self, groups: Sequence[Sequence[UUID]]) -> float:
        """Run the groups of requests one by one through their three commits. Returns seconds."""
        started = time.perf_counter()
        for group in groups:
            await self._through(group)
        return time.perf_counter() - started

    async def at_rate(self, requests: Sequence[UUID], rate: float) -> list[float]:
        """Return the seconds from each request's due time, at `rate` a second, to its third commit.

        Requests that become due during a commit share the next ones.
        """
        started, done, latencies = time.monotonic(), 0, list[float]()
        while done < len(requests):
            due = min(len(requests), int((time.monotonic() - started) * rate) + 1)
            if due > done:
                await self._through(requests[done:due])
                now = time.monotonic() - started
                latencies += [now - number / rate for number in range(done, due)]
                done = due
            else:
                await asyncio.sleep(max(0.0, started + done / rate - time.monotonic()))
        return latencies

    async def commit(self, number: int, group: Sequence[UUID]) -> None:
        """Run one of the three commits of requests, 0 to 2."""
        async with self._connection.transaction():
            for table in _COMMITS[number]:
                await self._connection.execute(self._copying[table], list(group))

    async def _through(self, group: Sequence[UUID]) -> None:
        for number in range(len(_COMMITS)):
            await self.commit(number, group)
