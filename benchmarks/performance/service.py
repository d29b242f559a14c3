"""What the whole service does on this machine, each figure beside its floor measured in the same run.

A `lethe serve` on private Postgres and Valkey with fsync on, asked by a light generator in a process of its own:

- predictions per second, alone and while deletions arrive, beside bare FastAPI routes with the same answer models;
- accepted single-node POSTs per second over 32 connections, beside the same bare route and beside commits of the same
  rows in groups of 32;
- nodes per second through to `applied` in bulk requests, beside commits of the same rows in the same groups;
- times from POST to `applied` at 50 requests a second, by dataset and repair policy, with predictions meanwhile, beside
  the three commits of the same rows at the same rate, with predictions of the bare route meanwhile.

`applied` is when a client that Postgres notifies can read the event. A request's time begins when it was due, not when
a connection was free. Windows of Lethe and of the bare routes alternate; each rate is the median of its windows.
For arXiv see `arxiv`. Without its file a synthetic graph of that size stands in.

    python -m benchmarks.performance.service [--parts throughput stream] [--datasets cora arxiv] [--quick]
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import asyncpg
import numpy as np
import torch

from benchmarks.performance.arxiv import found, trained
from benchmarks.performance.commit_floor import CommitFloor
from benchmarks.performance.http_load import Ask, Load, Plan, Seen
from benchmarks.performance.lethe_process import KEY, LetheProcess
from benchmarks.performance.unlearn import device_name
from model_store.datasets.load import default_data_dirs
from service.db.log import LOG_CHANNEL
from service.embedded import Embedded

_ROOT = Path(__file__).parents[2]
_WRITERS = 32
_READERS = 16
_RATE = 50.0
#: The graph that POSTs and bulk requests are sent to.
_STREAM = "synthetic:n=80000,d=64,classes=5,seed=0"
#: What stands in for the arXiv graph where its file is not at hand.
_ARXIV_SIZE = "synthetic:n=169343,d=128,classes=40,seed=0"


@dataclass(frozen=True)
class Effort:
    """How long is measured."""

    windows: int
    window_s: float
    posts: int
    #: How many bulk requests of how many nodes.
    bulk: tuple[tuple[int, int], ...]
    stream_s: float


_BULK = ((5, 1000), (3, 5000))
_FULL = Effort(windows=3, window_s=5.0, posts=3000, bulk=_BULK, stream_s=20.0)
_QUICK = Effort(windows=1, window_s=3.0, posts=2000, bulk=_BULK, stream_s=8.0)


@dataclass(frozen=True)
class World:
    """A Lethe, its database, and the bare routes beside it."""

    lethe: LetheProcess
    database_url: str
    bare_port: int
    #: External ids of its nodes, shuffled; deletions take them from the front.
    nodes: list[str]


class Events:
    """Notes when each request is seen `applied` and `completed`, by a client that Postgres notifies."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        """Use `follow`."""
        self._connection = connection
        self._notified = asyncio.Event()
        self._last = 0
        #: `time.monotonic()` by request.
        self.applied: dict[UUID, float] = {}
        self.completed: dict[UUID, float] = {}

    @classmethod
    async def follow(cls, database_url: str) -> "Events":
        """From now on."""
        events = cls(await asyncpg.connect(database_url))
        await events._connection.add_listener(LOG_CHANNEL, lambda *_: events._notified.set())
        return events

    async def wait(self, count: int, seen: dict[UUID, float]) -> None:
        """Until `seen`, which is `applied` or `completed`, has so many requests; TimeoutError after ten minutes."""
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
        """Stops listening."""
        await self._connection.close()


_NEWER = "SELECT id, request_id, type FROM events WHERE id > $1"


@contextmanager
def world(
    folder: Path, dataset: str, repair: str, model: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[World]:
    """A Lethe in `folder`, ready: trained on `dataset`, or with a copy of `model`; `settings` of its environment."""
    home = folder / "home"
    if model is not None:
        shutil.copytree(model, home / "model")
    servers = Embedded(folder / "servers")
    urls = servers.start()
    assert urls.database_url is not None
    assert urls.redis_url is not None
    environment = {"DATABASE_URL": urls.database_url, "REDIS_URL": urls.redis_url, **(settings or {})}
    try:
        lethe = LetheProcess(home, environment | {"LETHE_DATASET": dataset, "LETHE_REPAIR": repair})
        try:
            with lethe.client() as client:
                about = client.model()
            with bare_routes(len(about.classes)) as port:
                nodes = [str(number) for number in range(about.nodes)]
                random.Random(0).shuffle(nodes)
                yield World(lethe, urls.database_url, port, nodes)
        finally:
            status = lethe.stop()
        if status:
            raise SystemExit(f"The service ended with status {status}.")
    finally:
        servers.stop()


@contextmanager
def bare_routes(classes: int) -> Iterator[int]:
    """The port of the bare routes, in a process of their own."""
    command = [sys.executable, "-m", "benchmarks.performance.bare_routes", str(classes)]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield port
    finally:
        process.terminate()
        process.wait()


def predictions(port: int, nodes: Sequence[str], seconds: float) -> Load:
    """Predictions of random nodes, as many as are answered, from `_READERS` connections."""
    asks = [Ask("GET", f"/predict/{node}") for node in random.Random(1).sample(nodes, min(1000, len(nodes)))]
    return Load(Plan("127.0.0.1", port, KEY, _READERS, asks, seconds=seconds))


def deletions(port: int, parts: Sequence[Sequence[str]], *, rate: float | None = None) -> Load:
    """One deletion request for each of `parts`, from `_WRITERS` connections."""
    asks = [Ask("POST", "/deletions", json.dumps({"kind": "node", "nodes": list(part)})) for part in parts]
    return Load(Plan("127.0.0.1", port, KEY, _WRITERS, asks, rate=rate, keep=True))


def request_ids(seen: Seen) -> list[UUID]:
    """The ids of accepted requests, in the order of the answers."""
    return [UUID(json.loads(body)["id"]) for body in seen.bodies]


def percentiles(latencies: Sequence[float]) -> str:
    """p50, p95 and p99 in milliseconds, as cells of a table."""
    return " | ".join(f"{1000 * value:,.1f}" for value in np.percentile(latencies, [50, 95, 99]))


def medians(*windows: Sequence[Seen]) -> list[float]:
    """The median rate of each series of windows."""
    return [statistics.median(seen.rate for seen in series) for series in windows]


def share(series: Sequence[Seen]) -> str:
    """The generator's part of a processor, its largest."""
    return f"{max(seen.processor_share for seen in series):.0%}"


def p99(series: Sequence[Seen]) -> float:
    """The median p99 of windows (ms)."""
    return statistics.median(float(np.percentile(seen.latencies, 99)) * 1000 for seen in series)


async def throughput(place: World, effort: Effort) -> None:
    """Accepted POSTs, and nodes in bulk requests."""
    nodes = iter(place.nodes)
    events = await Events.follow(place.database_url)
    bare, lethe, sent = list[Seen](), list[Seen](), 0
    for _ in range(effort.windows):
        singles = [[next(nodes)] for _ in range(effort.posts)]
        bare.append(deletions(place.bare_port, singles).seen().require(202))
        lethe.append(deletions(place.lethe.port, singles).seen().require(202))
        sent += len(singles)
        # The next window must not share the processors with what this one left to do.
        await events.wait(sent, events.completed)
    bulk = {nodes_each: list[float]() for _, nodes_each in effort.bulk}
    for _ in range(effort.windows):
        for requests, nodes_each in effort.bulk:
            parts = [[next(nodes) for _ in range(nodes_each)] for _ in range(requests)]
            seen = deletions(place.lethe.port, parts).seen().require(202)
            sent += requests
            await events.wait(sent, events.completed)
            last = max(events.applied[one] for one in request_ids(seen))
            bulk[nodes_each].append(nodes_each * requests / (last - min(seen.due)))
    floor = await CommitFloor.open(place.database_url)
    singles_of = await floor.requests(nodes=1)
    groups = [singles_of[start : start + _WRITERS] for start in range(0, len(singles_of), _WRITERS)]
    accepting = len(singles_of) / await floor.accept(groups)
    applying = {}
    for nodes_each in bulk:
        groups = [[one] for one in await floor.requests(nodes=nodes_each)]
        applying[nodes_each] = nodes_each * len(groups) / await floor.accept_and_apply(groups)
    await floor.close()
    await events.close()
    bare_rate, lethe_rate = medians(bare, lethe)
    print("| what | Lethe /s | bare route /s | ratio | grouped commits /s | ratio | generator, bare |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print(
        f"| POSTs of one node, {_WRITERS} connections | {lethe_rate:,.0f} | {bare_rate:,.0f} | "
        f"{lethe_rate / bare_rate:.2f} | {accepting:,.0f} | {lethe_rate / accepting:.2f} | {share(bare)} |"
    )
    for requests, nodes_each in effort.bulk:
        rate, most = statistics.median(bulk[nodes_each]), applying[nodes_each]
        print(
            f"| nodes to `applied`, {requests} requests of {nodes_each:,} | {rate:,.0f} | | | {most:,.0f} | "
            f"{rate / most:.2f} | |"
        )
    print(flush=True)


async def stream(place: World, effort: Effort) -> tuple[str, str]:
    """Rows of the two tables: predictions, and times to `applied` at `_RATE` a second with predictions meanwhile."""
    bare, lethe = list[Seen](), list[Seen]()
    for _ in range(effort.windows):
        bare.append(predictions(place.bare_port, place.nodes, effort.window_s).seen().require(200))
        lethe.append(predictions(place.lethe.port, place.nodes, effort.window_s).seen().require(200))
    count = int(effort.stream_s * _RATE)
    doomed, kept = place.nodes[:count], place.nodes[count:]
    events = await Events.follow(place.database_url)
    reading = predictions(place.lethe.port, kept, effort.stream_s)
    writing = deletions(place.lethe.port, [[node] for node in doomed], rate=_RATE)
    await events.wait(count, events.completed)
    meanwhile, written = reading.seen().require(200), writing.seen().require(202)
    times = [events.applied[one] - due for one, due in zip(request_ids(written), written.due, strict=True)]
    await events.close()
    floor = await CommitFloor.open(place.database_url)
    reading = predictions(place.bare_port, kept, effort.stream_s)
    floor_times = await floor.at_rate(await floor.requests(nodes=1), _RATE)
    floor_reading = reading.seen().require(200)
    await floor.close()
    bare_rate, lethe_rate = medians(bare, lethe)
    return (
        f"{lethe_rate:,.0f} | {bare_rate:,.0f} | {lethe_rate / bare_rate:.2f} | {p99(lethe):.1f} | {p99(bare):.1f} | "
        f"{meanwhile.rate:,.0f} | {floor_reading.rate:,.0f} | {meanwhile.rate / floor_reading.rate:.2f} | "
        f"{p99([meanwhile]):.1f} | {p99([floor_reading]):.1f} | {share(bare)}",
        f"{percentiles(times)} | {percentiles(floor_times)} | {percentiles(written.latencies)}",
    )


def arxiv_model(folder: Path) -> tuple[Path, str]:
    """A model on the arXiv graph, or on a synthetic one of its size, trained in `folder` or found there; what it is."""
    model, source = folder / "arxiv", found(default_data_dirs(os.environ))
    if not model.exists():
        trained(source or _ARXIV_SIZE, model)
    return model, "arXiv" if source else _ARXIV_SIZE


def main() -> None:
    """Prints Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=["throughput", "stream"], default=["throughput", "stream"])
    parser.add_argument("--datasets", nargs="+", default=["cora", "arxiv"], help="of the stream")
    parser.add_argument("--repairs", nargs="+", choices=["never", "always"], default=["never", "always"])
    parser.add_argument("--out", type=Path, help="folder that keeps the arXiv model for the next run")
    parser.add_argument("--quick", action="store_true", help="short windows")
    options = parser.parse_args()
    effort = _QUICK if options.quick else _FULL
    print(
        f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}, "
        f"load {os.getloadavg()[1]:.1f}, fsync on\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if "throughput" in options.parts:
            with world(folder / "throughput", _STREAM, "never") as place:
                print(f"repair never, {_STREAM}\n")
                asyncio.run(throughput(place, effort))
        if "stream" in options.parts:
            streams(folder, options, effort)


def streams(folder: Path, options: argparse.Namespace, effort: Effort) -> None:
    """Prints the tables of predictions and of times to `applied`, a row for each dataset and repair policy."""
    rows = list[tuple[str, str]]()
    out = options.out or folder
    out.mkdir(parents=True, exist_ok=True)
    for dataset in options.datasets:
        model, what = arxiv_model(out) if dataset == "arxiv" else (None, dataset)
        for repair in options.repairs:
            with world(folder / f"{dataset}-{repair}", dataset, repair, model) as place:
                predicted, took = asyncio.run(stream(place, effort))
            rows.append((f"| {what}, {repair} | {predicted} |", f"| {what}, {repair} | {took} |"))
            print(rows[-1], file=sys.stderr, flush=True)
    print(
        "| predictions | alone /s | bare /s | ratio | p99 ms | bare p99 ms | meanwhile /s | bare beside commits /s | "
        "ratio | p99 ms | bare p99 ms | generator, bare |"
    )
    print("| --- |" + " ---: |" * 11)
    print("\n".join(first for first, _ in rows))
    print(
        "\n| POST to `applied` at 50/s | p50 ms | p95 ms | p99 ms | commits p50 | p95 | p99 | "
        "POST to 202 p50 | p95 | p99 |"
    )
    print("| --- |" + " ---: |" * 9)
    print("\n".join(second for _, second in rows))


if __name__ == "__main__":
    main()
