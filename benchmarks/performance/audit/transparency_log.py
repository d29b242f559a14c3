"""Time of proofs and appends in a transparency log of a million leaves, in a private Postgres.

`python -m benchmarks.performance.audit.transparency_log` prints a table for the documents. The leaves are synthetic and
are loaded in bulk. The measurements use the service's own code, one transaction for each operation. The server runs
without fsync, so that filling it takes minutes. An append on a durable server adds a sync.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import torch

from benchmarks.device import device_name
from service.access.api_keys import ApiKeyRepository
from service.db import migrate
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.domain.records import Pointer
from service.domain.scopes import Scope
from service.domain.states import EventType
from service.log.events import EventRepository, LogRepository
from service.log.leaves import Failed
from service.log.merkle import Frontier, Subtree, leaf_hash
from service.log.signed_checkpoints import CheckpointRepository
from service.log.signing_keys import LogKeys
from service.predictions.version_rows import PointerRepository
from service.processes.private_servers import Embedded

_CHUNK = 20_000
_REQUESTS = 1_000
#: The length of a leaf for a request that deleted one node.
_PADDING = "x" * 1_400

Leaf = tuple[int, int, str, bytes, bytes]
Node = tuple[int, int, bytes]


def main() -> None:
    """Build the log, measure, and print a row for each operation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=200)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Embedded(Path(folder) / "home", valkey=False, durable=False) as servers,
    ):
        assert servers.database_url is not None
        asyncio.run(_run(servers.database_url, Path(folder), arguments.leaves, arguments.repeats))


async def _run(url: str, folder: Path, leaves: int, repeats: int) -> None:
    await migrate.upgrade(url)
    engine = create_engine(url)
    try:
        requests = await _requests(engine)
        await _fill(url, requests, leaves)
        print(
            f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, {leaves:,} leaves, {repeats} repeats\n"
        )
        print("| operation | median ms | 95th percentile ms |\n| --- | ---: | ---: |")
        keys = LogKeys.open(folder / "keys")
        rng = random.Random(0)
        operations: dict[str, Callable[[], Awaitable[object]]] = {
            "inclusion proof": lambda: _inclusion(engine, rng.randrange(leaves), leaves),
            "consistency proof": lambda: _consistency(engine, rng.randrange(1, leaves), leaves),
            "append of one event with its leaf": lambda: _append(engine, rng.choice(requests)),
            "signing a checkpoint": lambda: _sign(engine, keys),
        }
        for name, operation in operations.items():
            milliseconds = [await _timed(operation) for _ in range(repeats)]
            last = statistics.quantiles(milliseconds, n=20)[-1]
            print(f"| {name} | {statistics.median(milliseconds):.1f} | {last:.1f} |")
    finally:
        await engine.dispose()


async def _requests(engine: Engine) -> list[UUID]:
    """Create the requests of the events."""
    key = uuid4()
    ids = [uuid4() for _ in range(_REQUESTS)]
    async with transaction(engine) as connection:
        await PointerRepository(connection).create(Pointer("bench", 0, 0, "0-0", "a" * 64, "b" * 64))
        await ApiKeyRepository(connection).create(key, "bench", list(Scope), bytes(32))
        for request in ids:
            await connection.exec_driver_sql(
                "INSERT INTO requests (id, model, kind, count, ciphertext, api_key_id)"
                f" VALUES ('{request}', 'bench', 'node', 1, '\\x00', '{key}')"
            )
    return ids


async def _fill(url: str, requests: list[UUID], leaves: int) -> None:
    """Copy events, leaves and nodes into place. The check that each event has its leaf is off meanwhile."""
    connection = await asyncpg.connect(url)
    tree = Frontier()
    try:
        await connection.execute("ALTER TABLE events DISABLE TRIGGER events_logged")
        for start in range(0, leaves, _CHUNK):
            count = min(_CHUNK, leaves - start)
            async with connection.transaction():
                await connection.copy_records_to_table(
                    "events",
                    records=[(requests[index % _REQUESTS], "failed", "{}") for index in range(start, start + count)],
                    columns=["request_id", "type", "payload"],
                )
                made, nodes = _grown(tree, start, count)
                await connection.copy_records_to_table("leaves", records=made)
                await connection.copy_records_to_table("log_nodes", records=nodes)
        await connection.execute("ALTER TABLE events ENABLE TRIGGER events_logged")
        await connection.execute("ANALYZE")
    finally:
        await connection.close()


def _grown(tree: Frontier, start: int, count: int) -> tuple[list[Leaf], list[Node]]:
    leaves: list[Leaf] = []
    nodes: list[Node] = []
    for index in range(start, start + count):
        text = f'{{"details":"{_PADDING}","index":{index}}}'
        digest = leaf_hash(text.encode())
        nodes.extend(_rows(tree.append(digest)))
        # Events of a fresh table are numbered from 1.
        leaves.append((index, index + 1, text, digest, tree.root))
    return leaves, nodes


def _rows(completed: list[tuple[Subtree, bytes]]) -> Iterator[Node]:
    for subtree, digest in completed:
        yield subtree.level, subtree.position, digest


async def _inclusion(engine: Engine, index: int, size: int) -> None:
    async with transaction(engine) as connection:
        log = LogRepository(connection)
        await log.leaf_hash(index)
        await log.inclusion(index, size)


async def _consistency(engine: Engine, old: int, new: int) -> None:
    async with transaction(engine) as connection:
        await LogRepository(connection).consistency(old, new)


async def _append(engine: Engine, request: UUID) -> None:
    async with transaction(engine) as connection:
        await EventRepository(connection).append_many(EventType.FAILED, {request: Failed()})


async def _sign(engine: Engine, keys: LogKeys) -> None:
    async with transaction(engine) as connection:
        await CheckpointRepository(connection).sign(keys)


async def _timed(operation: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await operation()
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    main()
