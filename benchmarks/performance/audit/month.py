"""Generates a month of synthetic deletions, and checks that all sources report the same figures and pages meet the
goal.

The script fills an empty database with requests of 30 days (`audit.events`). Some took longer than the deadline. Some
failed, and were settled by a later request, marked as handled, or left open. Some are given more time, and drills are
run. Then every figure of the first screen is compared with a count over the requests themselves, and so are `GET
/audit/summary`, `./lethe audit summary`, the SQL views and Grafana's queries. Each page is requested `--repeats` times.
Exits with 1 if two figures differ, or if a page's median exceeds the goal.

    python -m benchmarks.performance.audit.month [DATABASE_URL] [--requests 200000] [--repeats 7]
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx2

from benchmarks.performance.audit.events import EVENTS_PER_THOUSAND, MODEL, NotEmpty, database, generate
from benchmarks.performance.audit.queries import Processors, timed
from benchmarks.performance.audit.server import opened, served
from service.db import migrate
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.domain.figures import TOTALS
from service.domain.formats import number
from service.domain.states import EventType, RequestStatus
from service.log.events import EventRepository
from service.log.leaves import Payload
from service.requests.decisions import Decisions
from service.requests.moves import RequestMoves

#: Deadline of the synthetic requests in days, and the extra days of the slow ones.
_DEADLINE_DAYS, _SLOW_DAYS = 7.0, 8.0
#: Failed requests left open, waiting requests given more time, and drills.
_LEFT, _EXTENDED, _DRILLS = 40, 25, 4
#: Limit for loading the whole page (milliseconds).
_GOAL_MS = 200
_GRAFANA = Path(__file__).parents[3] / "docker" / "grafana" / "dashboards" / "audit.json"

#: Counts directly from the requests, without the views, totals or indexes behind other figures.
_COUNTED = """
    WITH all_requests AS (
        SELECT r.*, d.request_id IS NOT NULL AS is_drill,
               CASE WHEN status = 'completed' THEN completed_at WHEN status = 'cancelled' THEN cancelled_at
                    ELSE handled_at END AS ended
        FROM requests r LEFT JOIN drills d ON d.request_id = r.id WHERE r.model = $1
    )
    SELECT count(*) AS requests, count(*) FILTER (WHERE status = 'completed') AS completed,
           count(*) FILTER (WHERE status = 'failed') AS failed,
           count(*) FILTER (WHERE status = 'cancelled') AS cancelled,
           count(*) FILTER (WHERE ended IS NULL) AS open,
           count(*) FILTER (WHERE ended IS NULL AND due_at < now()) AS open_past_deadline,
           count(*) FILTER (WHERE ended IS NULL AND due_at >= now()
               AND now() - received_at > 0.8 * (due_at - received_at)) AS open_near_deadline,
           count(*) FILTER (WHERE ended IS NULL AND status = 'failed') AS open_failed,
           count(*) FILTER (WHERE NOT is_drill AND status <> 'cancelled' AND ended <= due_at) AS on_time,
           count(*) FILTER (WHERE NOT is_drill AND status <> 'cancelled'
               AND (ended > due_at OR ended IS NULL AND due_at < now())) AS late
    FROM all_requests
"""
_DRILL = """
    INSERT INTO requests (id, model, kind, status, count, reference, ciphertext, api_key_id, received_at,
        subject_commitments, reference_commitment)
    VALUES ($1, $2, 'node', 'queued', 1, $3, sha256('canary'), md5('key')::uuid, $4, sha256('canary'), sha256('drill'))
"""
_DRILLED = """
    UPDATE requests SET status = 'applied', batch_id = b.id, applied_at = received_at + interval '1 s',
        guarantee = 'retrained', repair = 'converged', explanation = 'The canaries were deleted.'
    FROM (SELECT v.id FROM versions v WHERE v.repair = 'converged' ORDER BY v.number DESC LIMIT 1) b
    WHERE requests.id = $1
"""
_IS_DRILL = """
    INSERT INTO drills (request_id, model, cohort, trigger, requested_at) VALUES ($1, $2, $3, 'scheduled', $4)
"""
_MEASURED = """
    INSERT INTO request_audits (request_id, batch_id, deleted, injected_norm_before, injected_norm_after,
        channel_norm_before, channel_norm_after)
    SELECT id, batch_id, 1, 0.3, 0, 2.1, 0 FROM requests WHERE id = $1
"""
_ERASED = """
    UPDATE requests SET status = 'completed', ciphertext = NULL, completed_at = received_at + interval '2 s'
    WHERE id = $1
"""
#: One of each status, for the page of a request.
_ONE_OF_EACH = """
    SELECT DISTINCT ON (status) status, id FROM requests WHERE status IN ('queued', 'failed', 'completed')
"""


class Said:
    """Event content with these members."""

    def __init__(self, **members: object) -> None:
        self._members = members

    def document(self) -> Payload:
        """Return the members."""
        return self._members


async def make_month(database_url: str, requests: int) -> None:
    """Fill an empty database. Raises NotEmpty."""
    await migrate.upgrade(database_url)
    connection = await asyncpg.connect(database_url)
    if not await connection.fetchval("SELECT EXISTS (SELECT FROM requests)"):
        await connection.execute("UPDATE service_settings SET deadline_days = $1", _DEADLINE_DAYS)
    events = (requests - 1200) * EVENTS_PER_THOUSAND // 1000
    made = await generate(database_url, events=events, days=30, slow_days=_SLOW_DAYS)
    print(f"generated {made.events:,} events of {made.requests:,} requests in {made.seconds:.0f} s")
    key = await connection.fetchval("SELECT id FROM api_keys LIMIT 1")
    failed = await connection.fetch("SELECT id FROM requests WHERE status = 'failed' ORDER BY id")
    later = await connection.fetchval(
        "SELECT id FROM requests WHERE status = 'completed' ORDER BY received_at DESC LIMIT 1"
    )
    waiting = await connection.fetch("SELECT id, due_at FROM requests WHERE status = 'queued' ORDER BY id")
    engine = create_engine(database_url)
    try:
        await _drills(engine, connection)
        for place, row in enumerate(failed[_LEFT:]):
            async with transaction(engine) as session:
                if place % 2:
                    await Decisions(session).handle(row["id"], key, "Deleted by hand, and checked by two people.")
                else:
                    await RequestMoves(session).mark_handled(row["id"], (later,))
        for row in waiting[:_EXTENDED]:
            async with transaction(engine) as session:
                due_at = row["due_at"] + timedelta(days=14)
                await Decisions(session).extend(row["id"], key, due_at, "Many requests came at once.")
        while True:
            async with transaction(engine) as session:
                if not await Decisions(session).log():
                    break
    finally:
        await engine.dispose()
        await connection.execute("VACUUM (ANALYZE)")
        await connection.close()


async def _drills(engine: Engine, connection: asyncpg.Connection) -> None:
    """Run drills as the service does: the request, its mark as a drill, and the outcome."""
    now: datetime = await connection.fetchval("SELECT now()")
    for cohort in range(1, _DRILLS + 1):
        request, at = uuid4(), now - timedelta(days=7 * (_DRILLS - cohort), hours=1)
        await connection.execute(_DRILL, request, MODEL, f"drill {cohort}", at)
        await connection.execute(_IS_DRILL, request, MODEL, cohort, at)
        for step in (_DRILLED, _MEASURED, _ERASED):
            await connection.execute(step, request)
        async with transaction(engine) as session:
            for event in (EventType.APPLIED, EventType.COMPLETED):
                await EventRepository(session).append_many(event, {request: Said(kind="node", channel_norm_after=0.0)})


async def reported(client: httpx2.AsyncClient, connection: asyncpg.Connection) -> dict[str, Mapping[str, int | None]]:
    """Return the figures by source, leaving out the names that a source does not report."""
    answer = (await client.get("/audit/summary")).raise_for_status().json()
    found: dict[str, Mapping[str, int | None]] = {"GET /audit/summary": _of_answer(answer)}
    found["./lethe audit summary"] = await _of_command(client)
    found["the first screen"] = _of_page((await client.get("/dashboard?period=365d")).raise_for_status().text)
    found["audit_summary"] = dict(await connection.fetchrow("SELECT * FROM audit_summary WHERE model = $1", MODEL))
    months = "SELECT sum(on_time) AS on_time, sum(late) AS late FROM audit_months WHERE model = $1"
    found["audit_months"] = dict(await connection.fetchrow(months, MODEL))
    found["Grafana"] = await _of_grafana(connection)
    return found


def _of_answer(answer: Mapping[str, Any]) -> dict[str, int | None]:
    summed = {name: sum(month[name] for month in answer["months"]) for name in ("on_time", "late")}
    return {**answer, **answer["by_status"], **summed}


async def _of_command(client: httpx2.AsyncClient) -> dict[str, int | None]:
    key = client.headers["Authorization"].removeprefix("Bearer ")
    environment = os.environ | {"LETHE_KEY": key, "LETHE_URL": str(client.base_url)}
    command = (sys.executable, "-m", "service.cli", "audit", "summary")
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    text = (await process.communicate())[0].decode()
    rows = dict(re.findall(r"^(\S[^\n]*?)\s{2,}([\d,]+)\s*$", text, re.MULTILINE))
    months = re.findall(r"^\d{4}-\d\d\s+([\d,]+)\s+([\d,]+)\s", text, re.MULTILINE)
    summed = {"on_time": sum(_int(one) for one, _ in months), "late": sum(_int(one) for _, one in months)}
    names = {label: name for name, label in TOTALS.items()} | {status.value: status.value for status in RequestStatus}
    values = {names[label]: _int(value) for label, value in rows.items() if label in names}
    return {**values, **summed}


def _of_page(page: str) -> dict[str, int | None]:
    def after(name: str) -> int:
        label = TOTALS[name]
        found = re.search(rf"<dt>{label}</dt>\s*<dd[^>]*>(?:<a[^>]*>)?([\d,]+)", page)
        assert found is not None, label
        return _int(found[1])

    months = [
        [_int(count) for count in pair] for pair in re.findall(r"<dt>On time in \w+</dt><dd>([\d,]+) of ([\d,]+)", page)
    ]
    shown = ("requests", "completed", "failed", "open", "open_past_deadline", "open_near_deadline", "open_failed")
    return {
        **{name: after(name) for name in shown},
        "on_time": sum(on_time for on_time, _ in months),
        "late": sum(all_of_it - on_time for on_time, all_of_it in months),
    }


def _int(text: str) -> int:
    return int(text.replace(",", ""))


async def _of_grafana(connection: asyncpg.Connection) -> dict[str, int | None]:
    """Return the results of the panels' queries over the summary, by column name."""
    panels = json.loads(_GRAFANA.read_text())["panels"]
    queries = [target["rawSql"] for panel in panels for target in panel.get("targets", [])]
    found: dict[str, int | None] = {}
    for query in queries:
        rows = await connection.fetch(
            re.sub(r"\$__timeFilter\((\w+)\)", r"\1 > now() - interval '90 days'", query).replace("$model", MODEL)
        )
        if "FROM audit_summary" in query:
            found |= dict(rows[0])
    return found


def compared(counted: Mapping[str, int], by_source: Mapping[str, Mapping[str, int | None]]) -> list[str]:
    """Return a line for each figure, with the sources that differ."""
    lines = []
    for name, count in counted.items():
        reported_by = {source: figures[name] for source, figures in by_source.items() if name in figures}
        wrong = {source: value for source, value in reported_by.items() if value != count}
        lines.append(f"{name}: {count:,}, reported by {len(reported_by)}" + (f"; DIFFERS: {wrong}" if wrong else ""))
    return lines


def pages(requests: Mapping[str, UUID]) -> list[str]:
    """Return every page, and expensive lists."""
    month = f"{date.today():%Y-%m}"
    lists = (
        "",
        "order=due",
        "open=yes&order=due",
        "late=yes",
        "drills=yes",
        "drills=no&order=oldest",
        "due=2000-01-01",
    )
    hard = (
        "due=2000-01-01",
        "status=failed&repair=converged",
        "guarantee=span&norm_before=1000",
        "late=no&status=failed",
    )
    return [
        *(f"/dashboard?period={period}" for period in ("2d", "7d", "30d", "90d", "365d")),
        *(f"/dashboard/model?period={period}" for period in ("7d", "30d", "365d")),
        *(f"/dashboard/requests?{query}" for query in (*lists, *hard)),
        *(f"/dashboard/requests/{request}" for request in requests.values()),
        *(f"/dashboard/requests/{request}/receipt" for name, request in requests.items() if name != "queued"),
        f"/dashboard/report?of={month}",
        f"/dashboard/report?of={month[:4]}-Q{(date.today().month + 2) // 3}",
        "/dashboard/log",
        "/dashboard/find",
    ]


async def find(client: httpx2.AsyncClient, text: str) -> None:
    """Search for a part of a reference, as the form does."""
    form = (await client.get("/dashboard/find")).text
    token = re.search(r'name="form_token" value="([^"]+)"', form)
    assert token is not None
    fields = {"form_token": token[1], "by": "reference", "text": text}
    headers = {"Origin": str(client.base_url).rstrip("/")}
    (await client.post("/dashboard/find", data=fields, headers=headers)).raise_for_status()


async def run(database_url: str, home: Path, options: argparse.Namespace) -> bool:
    """Make the month, compare and measure. Returns whether all checks passed."""
    with contextlib.suppress(NotEmpty):
        await make_month(database_url, options.requests)
    connection = await asyncpg.connect(database_url)
    processors = Processors(await connection.fetchval("SELECT pg_backend_pid()"))
    engine = create_engine(database_url)
    try:
        async with served(engine, home) as client:
            counted = dict(await connection.fetchrow(_COUNTED, MODEL))
            lines = compared(counted, await reported(client, connection))
            print(*lines, sep="\n")
            by_status = (
                "SELECT DISTINCT ON (status) status, id FROM requests WHERE status IN ('queued', 'failed', 'completed')"
            )
            requests = {row["status"]: row["id"] for row in await connection.fetch(by_status)}
            slow = 0
            print("\n| page | processors ms | median ms | most ms |\n| --- | ---: | ---: | ---: |")
            work: dict[str, Callable[[], Awaitable[object]]]
            work = {page: partial(opened, client, page) for page in pages(requests)}
            work |= {f"find {text!r}": partial(find, client, text) for text in ("dsr-17", "nobody")}
            for name, ask in work.items():
                before = processors.spent_ms()
                taken = await timed(ask, options.repeats)
                spent = (processors.spent_ms() - before) / (options.repeats + 1)
                slow += statistics.median(taken) > _GOAL_MS
                shown = re.sub("[0-9a-f-]{36}", "…", name)
                print(f"| {shown} | {spent:.0f} | {statistics.median(taken):.0f} | {max(taken):.0f} |")
            print(f"\n{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {date.today()}; goal {number(_GOAL_MS)} ms")
            return slow == 0 and not any("DIFFERS" in line for line in lines)
    finally:
        await engine.dispose()
        await connection.close()


def main() -> None:
    """Make the month in the given database, or in a private one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database_url", nargs="?", help="postgresql://… as its owner: empty or from an earlier run")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, database(options.database_url, Path(folder)) as url:
        is_good = asyncio.run(run(url, Path(folder), options))
    raise SystemExit(0 if is_good else 1)


if __name__ == "__main__":
    main()
