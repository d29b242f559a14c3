"""A million predictions: `GET /predictions` in each format, beside 1,000 calls of `POST /predict` with 1,000 ids.

    python -m benchmarks.performance.service.bulk [--nodes 1000000] [--rounds 3]

All in one run and over HTTP, by one caller on one connection, with exact probabilities. A running Lethe answers; its
model is replaced by a publication of made-up predictions of 7 classes, and its unlearner is stopped meanwhile. Rounds
alternate. Seconds are of the wall clock until the last byte; processor seconds and memory (anonymous, at its peak above
what was there before) are those of the process that answers. Reading the file back into a table is timed apart.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pyarrow.parquet
import torch

from benchmarks.device import device_name
from benchmarks.performance.scale.publication import facts_of, made_up
from benchmarks.performance.service.lethe_process import HEADERS, LetheProcess
from benchmarks.records import put
from model_store.versions import VersionRef
from service.predictions.encodings import FileFormat
from service.predictions.writer import Publisher

FIGURES = Path(__file__).parents[2] / "results" / "bulk.ndjson"
_CLASSES = 7
_EACH = 1_000
#: Higher than that of the unlearner's session.
_FENCING = 1_000
_LOOK_S = 0.01


@dataclass
class Watched:
    """What the answering process used."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    peak_mib: float = 0.0


@contextmanager
def watched(process: psutil.Process) -> Iterator[Watched]:
    """Measure the block, and the process meanwhile."""
    found, ended = Watched(), threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            found.peak_mib = max(found.peak_mib, anonymous(process) - before)

    before, spent, began = anonymous(process), _spent(process), time.perf_counter()
    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        found.seconds = time.perf_counter() - began
        found.processor_seconds = _spent(process) - spent
        ended.set()
        looking.join()


def anonymous(process: psutil.Process) -> float:
    """Return the anonymous memory of a process (MiB)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user) + float(times.system)


def download(http: httpx2.Client, form: FileFormat, out: Path) -> int:
    """Write a file, and return its number of bytes."""
    with http.stream("GET", "/predictions", params={"format": form.value}) as response, out.open("wb") as file:
        response.raise_for_status()
        for part in response.iter_bytes():
            file.write(part)
    return out.stat().st_size


def posted(http: httpx2.Client, bodies: list[str]) -> int:
    """Send every body, and return the number of bytes of the answers."""
    answers = (http.post("/predict", content=body, headers={"Content-Type": "application/json"}) for body in bodies)
    return sum(len(answer.raise_for_status().content) for answer in answers)


def measure(lethe: LetheProcess, nodes: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Return the figures of each way to read all predictions, a list with one for each round."""
    [process] = lethe.answering
    ids = [f"u{row:06}" for row in range(nodes)]
    bodies = [json.dumps({"nodes": ids[start : start + _EACH]}) for start in range(0, nodes, _EACH)]
    out = folder / "predictions"
    with httpx2.Client(base_url=lethe.url, headers=HEADERS, timeout=600.0) as http:
        ways: dict[str, Callable[[], int]] = {
            f"GET /predictions, {form.value}": lambda form=form: download(http, form, out)  # type: ignore[misc]
            for form in FileFormat
        }
        ways[f"POST /predict, {len(bodies):,} calls of {_EACH:,}"] = lambda: posted(http, bodies)
        # Blocks of the publication are checked when they are first read.
        posted(http, bodies)
        found: dict[str, Any] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                with watched(process) as used:
                    size = way()
                found[name].append(vars(used) | {"mib": size / 2**20})
                print(name, found[name][-1], flush=True)
        download(http, FileFormat.PARQUET, out)
        began = time.perf_counter()
        table = pyarrow.parquet.read_table(out)
        found["read_parquet_seconds"] = time.perf_counter() - began
        assert table.column("node").to_pylist() == ids
    return found


def main() -> None:
    """Measure, print, and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    about = {
        "nodes": options.nodes,
        "classes": _CLASSES,
        "device": f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "load_before": os.getloadavg()[1],
    }
    print(about, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        home = folder / "home"
        home.mkdir(mode=0o700)
        lethe = LetheProcess(home, {"LETHE_DATASET": "cora", "LETHE_API_WORKERS": "1"})
        unlearner = lethe.processes["unlearner"]
        # It would take a higher fencing number, and show its own model again.
        unlearner.suspend()
        try:
            model, snapshot = made_up(options.nodes, 10, _CLASSES, np.random.default_rng(7))
            Publisher(home).load(VersionRef(1, _FENCING), model, snapshot, facts_of(snapshot), _FENCING)
            del model, snapshot
            found = measure(lethe, options.nodes, options.rounds, folder)
        finally:
            unlearner.resume()
            lethe.stop()
    put(options.out, about | found, ("nodes", "date"))
    for name, figures in found.items():
        if isinstance(figures, list):
            medians = {each: statistics.median(one[each] for one in figures) for each in figures[0]}
            print(name, *(f"{each} {value:.2f}" for each, value in medians.items()), sep=" | ")


if __name__ == "__main__":
    main()
