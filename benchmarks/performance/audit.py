"""How long the audit's answers take over a million events, and how much memory an export needs, beside their goals.

The application is served on loopback and asked over HTTP, each question `--repeats` times in turn with the others; then
inclusion proofs of leaves at random, the dashboard's overview with its files and charts, and exports of everything. A
database without requests is filled first (`audit_events`); without a URL a private server is started in a temporary
folder.

    python -m benchmarks.performance.audit [DATABASE_URL] [--events 1000000] [--repeats 20] [--plans FILE]
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
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
from sqlalchemy import event

from benchmarks.performance.audit_events import NotEmpty, generate
from benchmarks.performance.audit_questions import PAGES, QUESTIONS, Question
from benchmarks.performance.audit_server import opened, served
from service.db.engine import Engine, create_engine
from service.embedded import Embedded

#: An inclusion proof over HTTP, and the overview of a year with all that it loads (milliseconds, p95).
_PROOF_MS, _OVERVIEW_MS = 20, 1000
#: What the process may grow by while everything is exported, whatever there is (MB).
_EXPORT_MB = 64


async def ask(client: httpx.AsyncClient, question: Question) -> float:
    """Milliseconds until the whole answer is there."""
    started = time.perf_counter()
    if question.body is None:
        answer = await client.get(question.path, params=dict(question.parameters))
    else:
        answer = await client.post(question.path, json=question.body)
    answer.raise_for_status()
    return (time.perf_counter() - started) * 1000


async def measured(client: httpx.AsyncClient, repeats: int) -> dict[Question, list[float]]:
    """Milliseconds of every question, the first (cold) one left out."""
    times: dict[Question, list[float]] = {question: [] for question in QUESTIONS}
    for turn in range(repeats + 1):
        for question, found in times.items():
            taken = await ask(client, question)
            if turn:
                found.append(taken)
    return times


async def timed(work: Callable[[], Awaitable[object]], repeats: int) -> list[float]:
    """Milliseconds of each repetition, after one that is left out."""
    found = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        await work()
        found.append((time.perf_counter() - started) * 1000)
    return found[1:]


async def proofs(client: httpx.AsyncClient, leaves: int, repeats: int) -> list[float]:
    """Milliseconds of inclusion proofs of leaves at random in the newest checkpoint."""
    rng = random.Random(0)

    async def prove() -> None:
        answer = await client.get(f"/log/proof/{rng.randrange(leaves)}")
        answer.raise_for_status()
        assert len(answer.json()["proof"]) >= math.floor(math.log2(leaves)) - 1

    return await timed(prove, repeats)


async def exported(client: httpx.AsyncClient, form: str) -> str:
    """What an export of everything takes, and by how much the process grows meanwhile."""
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


async def plans(engine: Engine, client: httpx.AsyncClient) -> str:
    """The plan of every statement that the questions run, as Postgres executed it."""
    heard: list[tuple[str, Any]] = []

    def hear(_c: object, _cursor: object, statement: str, parameters: Any, _x: object, _many: bool) -> None:
        heard.append((statement, parameters))

    told = []
    for question in QUESTIONS:
        heard.clear()
        event.listen(engine.sync_engine, "before_cursor_execute", hear)
        await ask(client, question)
        event.remove(engine.sync_engine, "before_cursor_execute", hear)
        told.append(f"## {question.name}\n")
        for statement, parameters in heard:
            async with engine.begin() as connection:
                rows = await connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", parameters)
                told.append("\n".join(row[0] for row in rows) + "\n")
    return "\n".join(told)


def report(times: Mapping[Question, Sequence[float]]) -> list[str]:
    """The figures as rows of a Markdown table."""
    lines = ["| question | median ms | p95 ms | goal ms |", "| --- | ---: | ---: | ---: |"]
    lines += [_row(question.name, found, question.goal_ms) for question, found in times.items()]
    pages = [taken for question in PAGES for taken in times[question]]
    return [*lines, _row("all lists and searches", pages, PAGES[0].goal_ms)]


def _row(name: str, found: Sequence[float], goal_ms: float | None) -> str:
    goal = "-" if goal_ms is None else f"{goal_ms:.0f}"
    return f"| {name} | {statistics.median(found):.0f} | {_p95(found):.0f} | {goal} |"


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
    await connection.close()
    engine = create_engine(database_url)
    try:
        async with served(engine, home) as client:
            print(
                f"{count:,} events, Postgres {version}, {os.cpu_count()} CPUs (load {_load()}), {date.today()},"
                f" {options.repeats} times each"
            )
            table = report(await measured(client, options.repeats))
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
    """Measure on the database that is named, or on a private one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database_url", nargs="?", help="postgresql://… as its owner; by default a private server")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--plans", type=Path, help="write the plan of every statement here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if options.database_url:
            asyncio.run(run(options.database_url, home, options))
            return
        with Embedded(home / "servers", valkey=False) as servers:
            assert servers.database_url is not None
            asyncio.run(run(servers.database_url, home, options))


if __name__ == "__main__":
    main()
