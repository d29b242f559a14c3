"""How long the audit's answers take over a million events, and how much memory an export needs.

The application is served on loopback and asked over HTTP, each question `--repeats` times in turn with the others. The
searches are a mix of what matches much, little and nothing, and of what contradicts itself. A database without requests
is filled first (`audit_events`); without a URL a private server is started in a temporary folder.

    python -m benchmarks.performance.audit [DATABASE_URL] [--events 1000000] [--repeats 20] [--plans FILE]
"""

import argparse
import asyncio
import contextlib
import math
import os
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import numpy as np
import psutil
import scipy.sparse as sp
import uvicorn
from prometheus_client import CollectorRegistry
from sqlalchemy import event

from benchmarks.performance.audit_events import MODEL, NotEmpty, generate
from model_store.edges import Edges
from service.api.application import build
from service.api.auth import key_memory
from service.api.services import Check, ModelInfo, Services, Tombstones
from service.db.api_keys import ApiKeyRepository
from service.db.engine import Engine, create_engine
from service.db.intake import Intake
from service.db.transactions import transaction
from service.domain.states import Scope
from service.embedded import Embedded
from service.errors import Unavailable
from service.observability.access import AccessLog
from service.observability.metrics import UnlearningMetrics
from service.reader.predictions import Reader
from service.settings import Settings
from service.unlearning.snapshot import Snapshot
from service.vault.api_keys import new_api_key
from service.vault.keyring import Keyring
from service.vault.request_keys import RequestKeys

_TODAY = datetime.now(UTC).date()
_DAY = timedelta(days=1)


@dataclass(frozen=True, eq=False)
class Question:
    """One request to the interface."""

    name: str
    #: p95 that the issue asks for, in milliseconds; None where it names none.
    goal_ms: float | None
    path: str
    parameters: Mapping[str, str]
    body: Mapping[str, object] | None = None


def _list(name: str, **parameters: str) -> Question:
    return Question(f"list: {name}", 150, "/deletions", parameters)


def _search(name: str, **body: object) -> Question:
    return Question(f"search: {name}", 150, "/deletions/search", {}, body)


def _ago(days: int) -> str:
    return f"{_TODAY - days * _DAY}T00:00:00Z"


QUESTIONS = (
    Question("summary: everything", 300, "/audit/summary", {}),
    Question("summary: 30 days", 300, "/audit/summary", {"since": str(_TODAY - 30 * _DAY)}),
    Question("series: 30 days", None, "/audit/series", {}),
    Question("series: 48 hours", None, "/audit/series", {"step": "hour", "since": _ago(2)}),
    Question("series: 365 days", None, "/audit/series", {"since": _ago(365)}),
    _list("newest"),
    _list("200 newest", limit="200"),
    _list("half a year ago", until=_ago(180)),
    _list("failed", status="failed"),
    _list("failed edges", status="failed", kind="edge"),
    _list("cancelled edges (none)", status="cancelled", kind="edge"),
    _list("projected alone", guarantee="span"),
    _list("not converged", repair="not_converged"),
    _list("repair pending (none)", repair="pending"),
    _search("by reference", reference="DSR-170000"),
    _search("unknown reference (none)", reference="nobody"),
    _search("norm before >= 0.9", injected_norm_before_min=0.9),
    _search("norm before >= 0.99999 (few)", injected_norm_before_min=0.99999),
    _search("norm after > 0 (none)", injected_norm_after_min=1e-12),
    _search("bound after >= 1e-3 (1 %)", distance_bound_after_relative_min=1e-3),
    _search("converged, bound after >= 1e-3 (none)", repair="converged", distance_bound_after_relative_min=1e-3),
    _search("span residual >= 1e-9 (none)", span_residual_min=1e-9),
    _search("projected alone, a month of last year's", guarantee="span", since=_ago(330), until=_ago(300)),
)
#: Two conditions that exclude each other and keep much each: no index tells, so everything is looked at.
WORST = _search("edges with a norm (contradiction)", kind="edge", injected_norm_before_min=0)


@contextlib.asynccontextmanager
async def served(engine: Engine, home: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client with audit:read of the application over the database, on a port of its own."""
    registry, keyring = CollectorRegistry(), Keyring.open(home / "keys")
    app = build(
        max_body_bytes=1 << 20, registry=registry, access_log=AccessLog("json", "warning", (home / "log").open("w"))
    )
    live = np.ones(1, dtype=np.bool_)
    with RequestKeys.open(home / "keys" / "requests.slots") as request_keys:
        intake = Intake(engine, request_keys, max_queued_nodes=None)
        app.state.services = Services(
            settings=Settings(home=home),
            model=MODEL,
            engine=engine,
            intake=intake,
            keyring=keyring,
            request_keys=request_keys,
            keys=key_memory(engine, keyring),
            reader=Reader(("0",), ("a",), Snapshot(1, np.ones((1, 1)), live, Edges(sp.csr_array((1, 1)), live))),
            tombstones=Tombstones(engine, keyring, MODEL),
            model_info=_no_model,
            canaries=lambda: None,
            readiness=_no_checks,
            registry=registry,
            metrics=UnlearningMetrics(registry),
        )
        key = new_api_key()
        async with transaction(engine) as connection:
            name = f"benchmark {key.id}"
            await ApiKeyRepository(connection).create(key.id, name, [Scope.AUDIT_READ], keyring.api_key_hash(key.text))
        # Of this protocol by name: asyncio turns off the delay of small packets for no other.
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        running = asyncio.create_task(server.serve(sockets=[bound]))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        headers = {"Authorization": f"Bearer {key.text}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            yield client
        server.should_exit = True
        await running
        await intake.close()


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
    times: dict[Question, list[float]] = {question: [] for question in (*QUESTIONS, WORST)}
    for turn in range(repeats + 1):
        for question, found in times.items():
            taken = await ask(client, question)
            if turn:
                found.append(taken)
    return times


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
        f"export {form}: {lines:,} lines, {size / 1e6:,.0f} MB in {seconds:.0f} s; memory of the process"
        f" {before / 1e6:.0f} MB before, {peak / 1e6:.0f} MB at most"
    )


async def plans(engine: Engine, client: httpx.AsyncClient) -> str:
    """The plan of every statement that the questions run, as Postgres executed it."""
    heard: list[tuple[str, Any]] = []

    def hear(_c: object, _cursor: object, statement: str, parameters: Any, _x: object, _many: bool) -> None:
        heard.append((statement, parameters))

    told = []
    for question in (*QUESTIONS, WORST):
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


def report(times: Mapping[Question, Sequence[float]]) -> str:
    """The figures as a Markdown table."""
    lines = ["| question | median ms | p95 ms | goal ms |", "| --- | ---: | ---: | ---: |"]
    pages: list[float] = []
    for question, found in times.items():
        goal = "-" if question.goal_ms is None or question is WORST else f"{question.goal_ms:.0f}"
        lines.append(f"| {question.name} | {statistics.median(found):.0f} | {_p95(found):.0f} | {goal} |")
        pages += found if question.goal_ms == 150 and question is not WORST else ()
    lines.append(f"| all lists and searches but the last | {statistics.median(pages):.0f} | {_p95(pages):.0f} | 150 |")
    return "\n".join(lines)


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
            times = await measured(client, options.repeats)
            loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
            print(
                f"{count:,} events, Postgres {version}, {os.cpu_count()} CPUs (load {loads}),"
                f" {date.today()}, {options.repeats} times each"
            )
            print(report(times))
            for form in ("ndjson", "csv"):
                print(await exported(client, form))
            if options.plans:
                options.plans.write_text(await plans(engine, client))
    finally:
        await engine.dispose()


async def _no_model() -> ModelInfo:
    raise Unavailable("This benchmark serves the audit alone, and no model.", "Ask a `./lethe serve`.")


async def _no_checks() -> list[Check]:
    return []


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
