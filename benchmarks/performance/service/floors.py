"""The performance of the whole service on this machine, each figure beside its floor measured in the same run.

A light generator in its own process sends requests to a `lethe serve` on private Postgres and Valkey with fsync on:

- throughput: accepted single-node POSTs per second over 32 connections, beside a bare FastAPI route with the same
  answer model and beside commits of the same rows in groups of 32; nodes per second through to `applied` in bulk
  requests, beside commits of the same rows in the same groups;
- stream: predictions per second and processor time for each, beside the bare route; times from POST to `applied` at 50
  requests a second, by dataset and repair policy, with concurrent predictions, beside the three commits of the same
  rows at the same rate, with concurrent predictions of the bare route;
- single: times from POST to `applied`, one request at a time, on Cora; see `single` for the floor.

A request is `applied` when a client that Postgres notifies can read the event. A request's time starts when it was due,
not when a connection was free. Windows of Lethe and of the bare routes alternate; each rate is the median of its
windows. Processor time is that of the answering processes, for all their work meanwhile. With several runs, each of a
new Lethe, a figure is the range over runs. For arXiv see `batches.arxiv`. Without its file, a synthetic graph of that
size replaces it.

    python -m benchmarks.performance.service.floors [--parts throughput stream single]
        [--datasets cora arxiv] [--runs 3]
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import torch

from benchmarks.device import device_name
from benchmarks.performance.batches.arxiv import found, trained
from benchmarks.performance.service.commit_floor import CommitFloor
from benchmarks.performance.service.http_load import Load, Seen
from benchmarks.performance.service.lethe_world import (
    WRITERS,
    Events,
    World,
    deletions,
    predictions,
    request_ids,
    world,
)
from benchmarks.performance.service.single import MAX_WAIT_MS, one_at_a_time
from model_store.datasets.load import default_data_dirs

_RATE = 50.0
#: The graph for POSTs and bulk requests.
_STREAM = "synthetic:n=80000,d=64,classes=5,seed=0"
#: Replaces the arXiv graph if its file is missing.
_ARXIV_SIZE = "synthetic:n=169343,d=128,classes=40,seed=0"
#: For each run, a list of figures by row of a table.
Rows = dict[str, list[float]]


@dataclass(frozen=True)
class Effort:
    """Duration of the measurement."""

    windows: int
    window_s: float
    posts: int
    #: Number of bulk requests, and nodes in each.
    bulk: tuple[tuple[int, int], ...]
    stream_s: float
    #: Number of single requests, at each pace.
    single: int


_BULK = ((5, 1000), (3, 5000))
_FULL = Effort(windows=3, window_s=5.0, posts=3000, bulk=_BULK, stream_s=20.0, single=200)
_QUICK = Effort(windows=1, window_s=3.0, posts=2000, bulk=_BULK, stream_s=8.0, single=40)


def medians(*windows: Sequence[Seen]) -> list[float]:
    """Return the median rate of each series of windows."""
    return [statistics.median(seen.rate for seen in series) for series in windows]


def share(series: Sequence[Seen]) -> float:
    """Return the generator's largest share of a processor (%)."""
    return 100 * max(seen.processor_share for seen in series)


def p99(series: Sequence[Seen]) -> float:
    """Return the median p99 of windows (ms)."""
    return statistics.median(float(np.percentile(seen.latencies, 99)) * 1000 for seen in series)


def percentiles(latencies: Sequence[float]) -> list[float]:
    """Return p50, p95 and p99 in milliseconds."""
    return [float(1000 * value) for value in np.percentile(latencies, [50, 95, 99])]


def with_cost(processes: Sequence[psutil.Process], load: Callable[[], Load]) -> tuple[Seen, float]:
    """Return the results of predictions, and the processor time of `processes` for each (microseconds)."""
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    seen = load().seen().require(200)
    spent = sum(sum(process.cpu_times()[:2]) for process in processes) - before
    return seen, 1e6 * spent / len(seen.latencies)


async def throughput(place: World, effort: Effort) -> Rows:
    """Measure accepted POSTs, and nodes in bulk requests, each beside the bare route and grouped commits."""
    nodes = iter(place.nodes)
    events = await Events.follow(place.lethe.database_url)
    bare, lethe, sent = list[Seen](), list[Seen](), 0
    for _ in range(effort.windows):
        singles = [[next(nodes)] for _ in range(effort.posts)]
        bare.append(deletions(place.bare_port, singles).seen().require(202))
        lethe.append(deletions(place.lethe.port, singles).seen().require(202))
        sent += len(singles)
        # The next window must not share the processors with work left over from this one.
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
    floor = await CommitFloor.open(place.lethe.database_url)
    singles_of = await floor.requests(nodes=1)
    groups = [singles_of[start : start + WRITERS] for start in range(0, len(singles_of), WRITERS)]
    accepting = len(singles_of) / await floor.accept(groups)
    bare_rate, lethe_rate = medians(bare, lethe)
    rows = {
        f"POSTs of one node, {WRITERS} connections": [
            *(lethe_rate, accepting, lethe_rate / accepting),
            *(bare_rate, lethe_rate / bare_rate, share(bare)),
        ]
    }
    for requests, nodes_each in effort.bulk:
        groups = [[one] for one in await floor.requests(nodes=nodes_each)]
        applying = nodes_each * len(groups) / await floor.accept_and_apply(groups)
        rate = statistics.median(bulk[nodes_each])
        rows[f"nodes to `applied`, {requests} requests of {nodes_each:,}"] = [rate, applying, rate / applying]
    await floor.close()
    await events.close()
    return rows


async def stream(place: World, effort: Effort) -> tuple[list[float], list[float], list[float]]:
    """Return the figures of three tables: predictions alone, beside `_RATE` deletions a second, times to `applied`."""
    bare, lethe = list[tuple[Seen, float]](), list[tuple[Seen, float]]()
    for _ in range(effort.windows):
        load = partial(predictions, nodes=place.nodes, seconds=effort.window_s)
        bare.append(with_cost(place.bare_answering, partial(load, place.bare_port)))
        lethe.append(with_cost(place.answering, partial(load, place.lethe.port)))
    count = int(effort.stream_s * _RATE)
    doomed, kept = place.nodes[:count], place.nodes[count:]
    events = await Events.follow(place.lethe.database_url)
    reading = predictions(place.lethe.port, kept, effort.stream_s)
    writing = deletions(place.lethe.port, [[node] for node in doomed], rate=_RATE)
    await events.wait(count, events.completed)
    meanwhile, written = reading.seen().require(200), writing.seen().require(202)
    times = [events.applied[one] - due for one, due in zip(request_ids(written), written.due, strict=True)]
    await events.close()
    floor = await CommitFloor.open(place.lethe.database_url)
    reading = predictions(place.bare_port, kept, effort.stream_s)
    floor_times = await floor.at_rate(await floor.requests(nodes=1), _RATE)
    floor_reading = reading.seen().require(200)
    await floor.close()
    bare_seen, lethe_seen = [seen for seen, _ in bare], [seen for seen, _ in lethe]
    bare_rate, lethe_rate = medians(bare_seen, lethe_seen)
    bare_cost, lethe_cost = (statistics.median(cost for _, cost in series) for series in (bare, lethe))
    slowest, bare_slowest = p99([meanwhile]), p99([floor_reading])
    return (
        [
            *(lethe_cost, bare_cost, lethe_cost / bare_cost, lethe_rate, bare_rate, lethe_rate / bare_rate),
            *(p99(lethe_seen), p99(bare_seen), share(bare_seen)),
        ],
        [
            *(meanwhile.rate, floor_reading.rate, meanwhile.rate / floor_reading.rate),
            *(slowest, bare_slowest, slowest / bare_slowest),
        ],
        [*percentiles(times), *percentiles(floor_times), *percentiles(written.latencies)],
    )


def model_of(dataset: str, folder: Path) -> tuple[Path, str]:
    """Return a model on the named dataset, trained in `folder` or found there, and its description.

    `arxiv` uses the model of `trained`, or a synthetic graph of its size if the file is missing.
    """
    model, source = folder / dataset, found(default_data_dirs(os.environ))
    if dataset != "arxiv":
        if not model.exists():
            command = [sys.executable, "-m", "service.cli", "train", "--dataset", dataset, "--out", str(model)]
            subprocess.run(command, check=True, stdout=sys.stderr)
        return model, dataset
    if not model.exists():
        trained(source or _ARXIV_SIZE, model)
    return model, "arXiv" if source else _ARXIV_SIZE


def throughputs(folder: Path, options: argparse.Namespace, effort: Effort) -> None:
    """Print the table of POSTs and bulk requests."""
    runs = list[Rows]()
    for number in range(options.runs):
        with world(folder / f"throughput-{number}", _STREAM, "never") as place:
            runs.append(asyncio.run(throughput(place, effort)))
    print(f"repair never, {_STREAM}\n")
    heads = ("Lethe /s", "grouped commits /s", "ratio", "bare route /s", "ratio", "generator, bare %")
    table("what", heads, runs, (0, 0, 2, 0, 2, 0))


def streams(folder: Path, options: argparse.Namespace, effort: Effort) -> None:
    """Print the tables of predictions and of times to `applied`, a row for each dataset and repair policy."""
    alone, beside, applied = ([Rows() for _ in range(options.runs)] for _ in range(3))
    for dataset in options.datasets:
        model, what = model_of(dataset, options.out or folder)
        for repair in options.repairs:
            for number in range(options.runs):
                with world(folder / f"{dataset}-{repair}-{number}", dataset, repair, model) as place:
                    seen = asyncio.run(stream(place, effort))
                for rows, figures in zip((alone, beside, applied), seen, strict=True):
                    rows[number][f"{what}, {repair}"] = figures
                print(what, repair, seen, file=sys.stderr, flush=True)
    heads = ("processor us", "bare us", "ratio", "/s", "bare /s", "ratio", "p99 ms", "bare p99 ms", "generator, bare %")
    table("predictions", heads, alone, (0, 0, 2, 0, 0, 2, 1, 1, 0))
    beside_heads = ("/s", "bare beside commits /s", "ratio", "p99 ms", "bare p99 ms", "ratio")
    table("predictions meanwhile", beside_heads, beside, (0, 0, 2, 1, 1, 2))
    heads = ("p50 ms", "p95", "p99", "commits p50", "p95", "p99", "POST to 202 p50", "p95", "p99")
    table(f"POST to `applied` at {_RATE:.0f}/s", heads, applied, (0,) * len(heads))


def singles(folder: Path, options: argparse.Namespace, effort: Effort) -> None:
    """Print the table of single requests."""
    runs = [Rows() for _ in range(options.runs)]
    model, what = model_of("cora", options.out or folder)
    for repair in options.repairs:
        for number, rows in enumerate(runs):
            settings = {"LETHE_MAX_WAIT_MS": str(MAX_WAIT_MS)}
            with world(folder / f"single-{repair}-{number}", what, repair, model, settings) as place:
                by_pace = asyncio.run(one_at_a_time(place, effort.single))
            rows |= {f"{repair}, each after the one before is `{pace}`": each for pace, each in by_pace.items()}
    heads = ("p50 ms", "p95", "p99", "floor p50", "p95", "p99", "repair p50", "above floor and repair")
    table("one request at a time", heads, runs, (0,) * len(heads))


def table(what: str, heads: Sequence[str], runs: Sequence[Rows], digits: Sequence[int]) -> None:
    """Print the rows of all runs as one Markdown table: the range of each figure, or its value if all agree."""
    print(f"| {what} | " + " | ".join(heads) + " |")
    print("| --- |" + " ---: |" * len(heads))
    for name in runs[0]:
        figures = zip(*(run[name] for run in runs), strict=True)
        ranges = [(f"{min(each):,.{n}f}", f"{max(each):,.{n}f}") for each, n in zip(figures, digits, strict=False)]
        cells = [low if low == high else f"{low} to {high}" for low, high in ranges]
        print(f"| {name} | " + " | ".join(cells + [""] * (len(heads) - len(cells))) + " |")
    print(flush=True)


_PARTS = {"throughput": throughputs, "stream": streams, "single": singles}


def main() -> None:
    """Print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(_PARTS), default=list(_PARTS))
    parser.add_argument("--datasets", nargs="+", default=["cora", "arxiv"], help="datasets of the stream")
    parser.add_argument("--repairs", nargs="+", choices=["never", "always"], default=["never", "always"])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder that keeps the models for the next run")
    parser.add_argument("--quick", action="store_true", help="short windows")
    options = parser.parse_args()
    print(
        f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}, "
        f"load {os.getloadavg()[1]:.1f}, fsync on, runs: {options.runs}\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        for part in options.parts:
            _PARTS[part](Path(temporary), options, _QUICK if options.quick else _FULL)


if __name__ == "__main__":
    main()
