"""Common parts of benchmarks of the whole service: a Lethe beside bare routes, loads, and the arrival of events."""

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import UUID

import asyncpg
import psutil

from benchmarks.performance.service.http_load import Ask, Load, Plan, Seen
from benchmarks.performance.service.lethe_process import KEY, LetheProcess
from service.log.events import LOG_CHANNEL

#: Number of connections for deletions and for predictions.
WRITERS = 32
READERS = 16
_NEWER = "SELECT id, request_id, type FROM events WHERE id > $1"


@dataclass(frozen=True)
class World:
    """A Lethe, and the bare routes beside it."""

    lethe: LetheProcess
    bare_port: int
    #: The processes that answer predictions, for Lethe and for the bare routes.
    answering: Sequence[psutil.Process]
    bare_answering: Sequence[psutil.Process]
    #: External ids of its nodes, shuffled; deletions take them from the front.
    nodes: list[str]


@contextmanager
def world(
    home: Path, dataset: str, repair: str, model: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[World]:
    """Yield a ready Lethe in `home`, trained on `dataset` or with a copy of `model`; `settings` are environment."""
    if model is not None:
        shutil.copytree(model, home / "model")
    lethe = LetheProcess(home, {"LETHE_DATASET": dataset, "LETHE_REPAIR": repair, **(settings or {})})
    try:
        with lethe.client() as client:
            about = client.model()
        with _bare_routes(len(about.classes)) as (process, port):
            nodes = [str(number) for number in range(about.nodes)]
            random.Random(0).shuffle(nodes)
            yield World(lethe, port, lethe.answering, [process], nodes)
    finally:
        status = lethe.stop()
    if status:
        raise SystemExit(f"The service ended with status {status}.")


@contextmanager
def _bare_routes(classes: int) -> Iterator[tuple[psutil.Process, int]]:
    """Yield the bare routes' process and their port."""
    command = [sys.executable, "-m", "benchmarks.performance.service.bare_routes", str(classes)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield psutil.Process(process.pid), int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()


class Events:
    """Records when a client that Postgres notifies sees each request `applied` and `completed`."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        """Use `follow`."""
        self._connection = connection
        self._notified = asyncio.Event()
        self._last = 0
        #: `time.monotonic()` by request.
        self.applied: dict[UUID, float] = {}
        self.completed: dict[UUID, float] = {}

    @classmethod
    async def follow(cls, database_url: str) -> Self:
        """Follow events from now on."""
        events = cls(await asyncpg.connect(database_url))
        await events._connection.add_listener(LOG_CHANNEL, lambda *_: events._notified.set())
        return events

    async def wait(self, count: int, seen: dict[UUID, float]) -> None:
        """Wait until `seen`, which is `applied` or `completed`, has `count` requests. Raises TimeoutError after ten
        minutes.
        """
        async with asyncio.timeout(600):
            while len(seen) < count:
                await self._notified.wait()
                self._notified.clear()
                rows = await self._connection.fetch(_NEWER, self._last)
                now = time.monotonic()
                self.applied |= {row["request_id"]: now for row in rows if row["type"] == "applied"}
                self.completed |= {row["request_id"]: now for row in rows if row["type"] == "completed"}
                self._last = max([self._last, *(row["id"] for row in rows)])

    async def close(self) -> None:
        """Stop listening."""
        await self._connection.close()


def predictions(port: int, nodes: Sequence[str], seconds: float) -> Load:
    """Request predictions of random nodes from `READERS` connections, as fast as they are answered."""
    asks = [Ask("GET", f"/predict/{node}") for node in random.Random(1).sample(nodes, min(1000, len(nodes)))]
    return Load(Plan("127.0.0.1", port, KEY, READERS, asks, seconds=seconds))


def deletions(port: int, parts: Sequence[Sequence[str]], *, rate: float | None = None) -> Load:
    """Send one deletion request for each of `parts`, from `WRITERS` connections."""
    asks = [Ask("POST", "/deletions", json.dumps({"kind": "node", "nodes": list(part)})) for part in parts]
    return Load(Plan("127.0.0.1", port, KEY, WRITERS, asks, rate=rate, keep=True))


def request_ids(seen: Seen) -> list[UUID]:
    """Return the ids of accepted requests, in the order of the answers."""
    return [UUID(json.loads(body)["id"]) for body in seen.bodies]
