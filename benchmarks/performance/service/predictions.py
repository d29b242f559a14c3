"""The cost of checking the head for predictions, and the effect of deletions and of an unavailable Postgres.

All in one run, on Cora, over HTTP, on private durable servers; compared variants alternate:

- look: processor time of a prediction, `GET /predict/{node}` and `POST /predict` of one node, beside the same
  application in the same process without the look at the entries of heads before and after each answer;
- deletions: p99 of predictions while 50 deletions arrive a second, beside the quiet p99 just before, in the same
  process; as fast as they are answered over 16 connections, and at a fixed rate, where waiting counts;
- outage: predictions at a fixed rate while Postgres is stopped for a minute, and the recovery;
- posts: accepted POSTs per second and their processor time, beside those of another checkout, with `--other`; on a
  synthetic graph, which has enough nodes, without repair.

    python -m benchmarks.performance.service.predictions [--parts look deletions outage posts] [--other ../before]
        [--out FILE]
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.device import device_name
from benchmarks.performance.service.floors import model_of, p99
from benchmarks.performance.service.http_load import Ask, Load, Plan
from benchmarks.performance.service.lethe_process import KEY, LetheProcess
from benchmarks.performance.service.lethe_world import READERS, Events, World, deletions, world
from benchmarks.performance.service.switched_heads import costs, slots, switched
from lethe_client import LetheClient, ProblemError, ServerUnreachable
from service.processes.private_servers import Embedded

_ROOT = Path(__file__).parents[3]
#: Deletions a second, and predictions a second at a fixed rate.
_DELETIONS, _PACE = 50.0, 100.0
_POSTED_NODES = 20_000
_POSTED = f"synthetic:n={_POSTED_NODES},d=64,classes=5,seed=0"
#: Longest wait for a deletion after Postgres is back (seconds).
_PATIENCE_S = 120.0
Figures = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """Amount of measurement."""

    look_rounds: int
    look_s: float
    rounds: int
    window_s: float
    post_rounds: int
    posts: int
    away_s: float


_FULL = Effort(look_rounds=6, look_s=15.0, rounds=3, window_s=6.0, post_rounds=6, posts=600, away_s=60.0)
_QUICK = Effort(look_rounds=2, look_s=6.0, rounds=1, window_s=4.0, post_rounds=2, posts=300, away_s=5.0)


def asked(port: int, asks: Sequence[Ask], seconds: float, rate: float | None = None, *, keep: bool = False) -> Load:
    """Send `asks` repeatedly from `READERS` connections."""
    return Load(Plan("127.0.0.1", port, KEY, READERS, asks, seconds=seconds, rate=rate, keep=keep))


def compared(here: Sequence[float], other: Sequence[float]) -> Figures:
    """Return two series of rounds, and each round's ratio of the first to the second."""
    ratios = np.array(here) / np.array(other)
    return {
        "here": list(here),
        "other": list(other),
        "ratios": ratios.tolist(),
        "ratio": float(np.median(ratios)),
    }


def look(place: World, effort: Effort) -> Figures:
    """Measure the processor time of a prediction with the look at heads (`here`) and without (`other`), in
    microseconds.
    """
    nodes = place.nodes[:1000]
    routes = {
        "GET /predict/{node}": [Ask("GET", f"/predict/{node}") for node in nodes],
        "POST /predict": [Ask("POST", "/predict", json.dumps({"nodes": [node]})) for node in nodes],
    }
    found = Figures()
    with switched(place.lethe.home) as (process, port), ThreadPoolExecutor(1) as pool:
        for route, asks in routes.items():
            rounds = list[tuple[float, float]]()
            for _ in range(effort.look_rounds):
                load, stop = asked(port, asks, effort.look_s), threading.Event()
                switches = pool.submit(slots, process, stop)
                seen = load.seen().require(200)
                stop.set()
                rounds.append(costs(switches.result(), seen))
                print(route, rounds[-1], file=sys.stderr, flush=True)
            found[route] = compared(*zip(*rounds, strict=True))
    return found


async def beside_deletions(place: World, effort: Effort) -> Figures:
    """Measure the p99 of predictions (ms) while deletions arrive (`here`) and just before (`other`)."""
    each, found = int(effort.window_s * _DELETIONS), Figures()
    doomed = iter(place.nodes)
    kept = place.nodes[2 * effort.rounds * each :]
    asks = [Ask("GET", f"/predict/{node}") for node in kept]
    events = await Events.follow(place.lethe.database_url)
    sent = 0
    for what, rate in (("as fast as answered", None), (f"{_PACE:.0f} a second", _PACE)):
        quiet, meanwhile, accepted, applied = list[float](), list[float](), 0, 0
        for _ in range(effort.rounds):
            ask = partial(asked, place.lethe.port, asks, effort.window_s, rate)
            quiet.append(p99([ask().seen().require(200)]))
            reading = ask()
            writing = deletions(place.lethe.port, [[next(doomed)] for _ in range(each)], rate=_DELETIONS)
            before, sent = sent, sent + each
            await events.wait(sent, events.completed)
            seen = reading.seen().require(200)
            meanwhile.append(p99([seen]))
            print(what, quiet[-1], meanwhile[-1], file=sys.stderr, flush=True)
            accepted += len(writing.seen().require(202).latencies)
            end = max(seen.due)
            applied += sum(moment <= end for moment in events.applied.values()) - before
        found[what] = compared(meanwhile, quiet) | {"accepted": accepted, "applied_meanwhile": applied}
    await events.close()
    return found


async def posts(folder: Path, other: Path, effort: Effort) -> Figures:
    """Measure accepted POSTs per second, and their processor time (us), of this checkout (`here`) and of another."""
    with ExitStack() as stack:
        sides = list[tuple[LetheProcess, Events, Iterator[str]]]()
        for name, checkout in (("here", _ROOT), ("other", other)):
            # This checkout starts the servers for both, so that only Lethe itself differs.
            servers = stack.enter_context(Embedded(folder / f"{name}-servers"))
            assert servers.database_url is not None
            assert servers.redis_url is not None
            settings = {
                "DATABASE_URL": servers.database_url,
                "REDIS_URL": servers.redis_url,
                "LETHE_DATASET": _POSTED,
                "LETHE_REPAIR": "never",
                "LETHE_SHARE": str(folder / f"{name}-share"),
                "PYTHONPATH": str(checkout),
            }
            lethe = LetheProcess(folder / name, settings)
            stack.callback(lethe.stop)
            events = await Events.follow(servers.database_url)
            sides.append((lethe, events, map(str, range(_POSTED_NODES))))
        rates, costs, sent = [list[float](), list[float]()], [list[float](), list[float]()], 0
        for number in range(-1, effort.post_rounds):
            sent += effort.posts
            for side in (0, 1) if number % 2 else (1, 0):
                lethe, events, nodes = sides[side]
                before = sum(sum(process.cpu_times()[:2]) for process in lethe.answering)
                seen = deletions(lethe.port, [[next(nodes)] for _ in range(effort.posts)]).seen().require(202)
                spent = sum(sum(process.cpu_times()[:2]) for process in lethe.answering) - before
                await events.wait(sent, events.completed)
                print("posts", number, side, seen.rate, spent, file=sys.stderr, flush=True)
                if number >= 0:
                    rates[side].append(seen.rate)
                    costs[side].append(1e6 * spent / effort.posts)
        for _, events, _ in sides:
            await events.close()
    return {"POSTs a second": compared(*rates), "processor us of a POST": compared(*costs)}


def outage(folder: Path, model: Path, effort: Effort) -> Figures:
    """Measure predictions while Postgres is stopped, and the recovery. Raises SystemExit if one has an old version."""
    postgres = Embedded(folder / "postgres-home", valkey=False)
    url = postgres.start().database_url
    assert url is not None
    try:
        with (
            world(folder / "outage", "cora", "always", model, {"DATABASE_URL": url}) as place,
            place.lethe.client() as client,
        ):
            doomed, kept = place.nodes[:22], place.nodes[22:]
            client.wait(client.request_deletion(doomed[:20]).id, timeout_s=_PATIENCE_S)
            version = client.model().version
            asks = [Ask("GET", f"/predict/{node}") for node in kept]
            server = _postmaster(folder / "postgres-home")
            postgres.stop()
            if server.is_running():
                raise SystemExit("Postgres still runs.")
            stopped = time.monotonic()
            seen = asked(place.lethe.port, asks, effort.away_s, _PACE, keep=True).seen()
            refusal = _refused(lambda: client.request_deletion([doomed[20]]))
            away = time.monotonic() - stopped
            postgres.start()
            back = time.monotonic()
            request = _accepted(client, doomed[21])
            accepted = time.monotonic() - back
            client.wait(request, timeout_s=_PATIENCE_S)
            completed, after = time.monotonic() - back, client.model().version
            reading = asked(place.lethe.port, asks, 5.0, _PACE, keep=True).seen().require(200)
            gone = client.predict_many([doomed[21]])
    finally:
        postgres.stop()
    versions = [json.loads(body)["model_version"] for body in seen.bodies]
    later = [json.loads(body)["model_version"] for body in reading.bodies]
    if min(versions) < version or min(later) < after or after <= version or gone.predictions:
        raise SystemExit("A prediction was of an older version.")
    return {
        "away_s": away,
        "asked_and_answered": seen.statuses,
        "of_an_older_version": sum(each < version for each in versions),
        "p99_ms": p99([seen]),
        "deletion_meanwhile": refusal,
        "first_accepted_after_s": accepted,
        "first_completed_after_s": completed,
        "answered_afterwards": reading.statuses,
    }


def _postmaster(home: Path) -> psutil.Process:
    return psutil.Process(int((home / "postgres" / "postmaster.pid").read_text().split("\n")[0]))


def _refused(ask: Callable[[], object]) -> str:
    try:
        ask()
    except ProblemError as error:
        return str(error.status)
    raise SystemExit("A deletion was accepted while Postgres was stopped.")


def _accepted(client: LetheClient, node: str) -> str:
    """Request a deletion until it is accepted. Returns its id."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return client.request_deletion([node]).id
        except (ProblemError, ServerUnreachable):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def rows(part: str, figures: Figures) -> Iterator[str]:
    """Yield rows of a Markdown table: minimum, median and maximum of each series and of the ratio."""
    yield f"| {part} | first | second | ratio | |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for name, found in figures.items():
        cells = [_range(found[series]) for series in ("here", "other", "ratios")]
        rest = ", ".join(f"{key} {value}" for key, value in found.items() if isinstance(value, int))
        yield f"| {name} | {' | '.join(cells)} | {rest} |"


def _range(values: Sequence[float]) -> str:
    least, most = min(values), max(values)
    digits = 2 if most < 10 else 1 if most < 100 else 0
    return f"{least:,.{digits}f} to {most:,.{digits}f}, median {float(np.median(values)):,.{digits}f}"


def main() -> None:
    """Print Markdown tables, and write all rounds to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=["look", "deletions", "outage", "posts"])
    parser.add_argument("--other", type=Path, help="the checkout to compare POSTs with")
    parser.add_argument("--out", type=Path, help="file for the figures of all rounds, as JSON")
    parser.add_argument("--quick", action="store_true", help="short windows")
    options = parser.parse_args()
    parts = options.parts or ["look", "deletions", "outage", *(["posts"] if options.other else [])]
    if "posts" in parts and options.other is None:
        parser.error("name a checkout with --other")
    effort = _QUICK if options.quick else _FULL
    began = {
        "device": f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load": os.getloadavg()[1],
        "dataset": "cora, 2708 nodes, 1433 features, 7 classes",
        "dataset_of_posts": _POSTED,
    }
    print(", ".join(map(str, began.values())), flush=True)
    found = Figures()

    def report(part: str, figures: Figures) -> None:
        found[part] = figures
        print("\n".join(rows(part, figures)) if part != "outage" else figures, flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(began | found, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model, _ = model_of("cora", folder / "models")
        if "look" in parts:
            with world(folder / "look", "cora", "always", model) as place:
                report("processor us of a prediction, with and without the look", look(place, effort))
        if "deletions" in parts:
            with world(folder / "deletions", "cora", "always", model) as place:
                figures = asyncio.run(beside_deletions(place, effort))
            report(f"p99 ms with and without {_DELETIONS:.0f} deletions a second", figures)
        if "outage" in parts:
            report("outage", outage(folder, model, effort))
        if "posts" in parts:
            report("POST /deletions, here and other", asyncio.run(posts(folder, options.other.resolve(), effort)))


if __name__ == "__main__":
    main()
