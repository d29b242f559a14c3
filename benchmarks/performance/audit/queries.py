"""Measures the audit's response times over a million events, and an export's memory, against their goals.

The application is served on loopback and queried over HTTP. Each question is asked `--repeats` times, in turn with the
others. Then follow inclusion proofs of random leaves, the dashboard's overview with its files and charts, and exports
of everything. A database without requests is filled first (`audit.events`). Without a URL, a private server starts in a
temporary folder.

The server runs on this machine. Beside the elapsed time stands the processor time of both processes, which other work
on the machine hardly changes.

    python -m benchmarks.performance.audit.queries [DATABASE_URL] [--events 1000000] [--repeats 20] [--plans FILE]
"""

import argparse
import asyncio
import contextlib
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import psutil
from sqlalchemy import event

from benchmarks.performance.audit.events import NotEmpty, database, generate
from benchmarks.performance.audit.questions import PAGES, QUESTIONS, Question
from benchmarks.performance.audit.server import opened, served
from service.db.engine import Engine, create_engine
from service.log.merkle import inclusion_ranges

#: Goals for an inclusion proof over HTTP, and for the overview of a year with all its files (milliseconds, p95).
_PROOF_MS, _OVERVIEW_MS = 20, 1000
#: Largest growth of the process during an export of any size (MB).
_EXPORT_MB = 64


async def ask(client: httpx2.AsyncClient, question: Question) -> float:
    """Return the milliseconds until the whole answer has arrived."""
    started = time.perf_counter()
    if question.body is None:
        answer = await client.get(question.path, params=dict(question.parameters))
    else:
        answer = await client.post(question.path, json=question.body)
    answer.raise_for_status()
    return (time.perf_counter() - started) * 1000


class Processors:
    """Processor time of this process and of all processes of a Postgres on this machine."""

    def __init__(self, backend_pid: int) -> None:
        self._own = psutil.Process()
        self._postmaster = psutil.Process(backend_pid).parent() or self._own

    def spent_ms(self) -> float:
        """Return processor milliseconds since the start. Ended processes count among the postmaster's children."""
        times = [self._own.cpu_times(), self._postmaster.cpu_times()]
        spent = sum(time.user + time.system for time in times)
        spent += times[1].children_user + times[1].children_system
        for child in self._postmaster.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                spent += child.cpu_times().user + child.cpu_times().system
        return float(spent * 1000)


@dataclass
class Taken:
    """Times of a repeated question."""

    #: Milliseconds until the whole answer arrived, for each repetition.
    elapsed_ms: list[float] = field(default_factory=list)
    #: Milliseconds of processor time for all repetitions.
    cpu_ms: float = 0.0


async def measured(client: httpx2.AsyncClient, processors: Processors, repeats: int) -> dict[Question, Taken]:
    """Time every question, leaving out the first (cold) turn."""
    times: dict[Question, Taken] = {question: Taken() for question in QUESTIONS}
    for turn in range(repeats + 1):
        for question, taken in times.items():
            before = processors.spent_ms()
            elapsed = await ask(client, question)
            if turn:
                taken.elapsed_ms.append(elapsed)
                taken.cpu_ms += processors.spent_ms() - before
    return times


async def timed(work: Callable[[], Awaitable[object]], repeats: int) -> list[float]:
    """Return milliseconds of each repetition, after an untimed one."""
    found = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        await work()
        found.append((time.perf_counter() - started) * 1000)
    return found[1:]


async def proofs(client: httpx2.AsyncClient, leaves: int, repeats: int) -> list[float]:
    """Return milliseconds for inclusion proofs of random leaves in the newest checkpoint."""
    rng = random.Random(0)

    async def prove() -> None:
        index = rng.randrange(leaves)
        answer = await client.get(f"/log/proof/{index}")
        answer.raise_for_status()
        found = answer.json()
        assert len(found["proof"]) == len(inclusion_ranges(index, found["size"]))

    return await timed(prove, repeats)


async def exported(client: httpx2.AsyncClient, form: str) -> str:
    """Describe the time of an export of everything, and the growth of the process meanwhile."""
    process = psutil.Process(os.getpid())
    before = peak = process.memory_info().rss
    started, size, lines = time.perf_counter(), 0, 0
    async with client.stream("GET", "/audit/export", params={"format": form}) as answer:
        answer.raise_for_status()
        async for chunk in answer.aiter_bytes():
            size, lines = size + len(chunk), lines + chunk.count(b"\n")
            peak = max(peak, process.memory_info().rss)
    seconds = time.perf_counter() - started
    return (
        f"export {form}: {lines:,} lines, {size / 1e6:,.0f} MB in {seconds:.0f} s; the process grew by"
        f" {(peak - before) / 1e6:.0f} MB from {before / 1e6:.0f} MB (goal: by {_EXPORT_MB} MB at most)"
    )


async def plans(engine: Engine, client: httpx2.AsyncClient) -> str:
    """Return the plan of every statement behind the questions, as Postgres executed it."""
    heard: list[tuple[str, Any]] = []

    def hear(_c: object, _cursor: object, statement: str, parameters: Any, _x: object, _many: bool) -> None:
        heard.append((statement, parameters))

    parts = []
    for question in QUESTIONS:
        heard.clear()
        event.listen(engine.sync_engine, "before_cursor_execute", hear)
        await ask(client, question)
        event.remove(engine.sync_engine, "before_cursor_execute", hear)
        parts.append(f"## {question.name}\n")
        for statement, parameters in heard:
            async with engine.begin() as connection:
                rows = await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", parameters)
                parts.append("\n".join(row[0] for row in rows) + "\n")
    return "\n".join(parts)


def report(times: Mapping[Question, Taken]) -> list[str]:
    """Format the figures as a Markdown table."""
    lines = ["| question | processors ms | median ms | p95 ms | goal ms |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += [
        _row(question.name, taken.elapsed_ms, question.goal_ms, taken.cpu_ms / len(taken.elapsed_ms))
        for question, taken in times.items()
    ]
    pages = [elapsed for question in PAGES for elapsed in times[question].elapsed_ms]
    return [*lines, _row("all lists and searches", pages, PAGES[0].goal_ms)]


def _row(name: str, found: Sequence[float], goal_ms: float | None, cpu_ms: float | None = None) -> str:
    goal, cpu = ("-" if value is None else f"{value:.0f}" for value in (goal_ms, cpu_ms))
    return f"| {name} | {cpu} | {statistics.median(found):.0f} | {_p95(found):.0f} | {goal} |"


def _p95(found: Sequence[float]) -> float:
    return sorted(found)[math.ceil(0.95 * len(found)) - 1]


async def run(database_url: str, home: Path, options: argparse.Namespace) -> None:
    """Fill the database if it is empty, measure, and print."""
    with contextlib.suppress(NotEmpty):
        made = await generate(database_url, events=options.events, days=options.days)
        print(f"generated {made.events:,} events of {made.requests:,} requests in {made.seconds:.0f} s")
    connection = await asyncpg.connect(database_url)
    count = await connection.fetchval("SELECT count(*) FROM events")
    version = await connection.fetchval("SHOW server_version")
    processors = Processors(await connection.fetchval("SELECT pg_backend_pid()"))
    await connection.close()
    engine = create_engine(database_url)
    try:
        async with served(engine, home) as client:
            print(
                f"{count:,} events, Postgres {version}, {os.cpu_count()} CPUs (load {_load()}), {date.today()},"
                f" {options.repeats} times each"
            )
            table = report(await measured(client, processors, options.repeats))
            table.append(_row("inclusion proof", await proofs(client, count, 10 * options.repeats), _PROOF_MS))
            for period in ("30d", "365d"):
                found = await timed(partial(opened, client, f"/dashboard?period={period}"), options.repeats)
                table.append(_row(f"dashboard: overview of {period}, files and charts", found, _OVERVIEW_MS))
            print(*table, f"(load afterwards {_load()})", sep="\n")
            for form in ("ndjson", "csv"):
                print(await exported(client, form))
            if options.plans:
                options.plans.write_text(await plans(engine, client))
    finally:
        await engine.dispose()


def _load() -> str:
    return ", ".join(f"{load:.1f}" for load in os.getloadavg())


def main() -> None:
    """Measure on the given database, or on a private one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database_url", nargs="?", help="postgresql://… as its owner; by default a private server")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--plans", type=Path, help="write the plan of every statement here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, database(options.database_url, Path(folder)) as url:
        asyncio.run(run(url, Path(folder), options))


if __name__ == "__main__":
    main()
