"""Measures a start: loading a model with and without a checkpoint of the Gram factors, and the processes on Cora.

Loads: seeded synthetic features, twice as many nodes as features. Each load is that of a starting service. It reads
base and version with all digests, moves everything to the device, and reads and checks the factors, or computes them.

Processes: a `lethe serve` that first trains on Cora is timed from the complete publication of the committed version
until all processes are ready (an api process starts before, and waits for it). An api process is then killed, and the
time runs from the start of its successor to the first prediction. The table has each process's peak resident memory
in ten seconds of predictions over 16 connections.

    python -m benchmarks.performance.service.start [--parts loads processes] [--features 512 1433 4000] [--repeats 3]
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import torch

from benchmarks.device import device_name
from benchmarks.performance.service.lethe_process import HEADERS, LetheProcess, memory_text
from benchmarks.performance.service.lethe_world import predictions, world
from model_store import gram_checkpoint
from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.store import Store
from projector.network.spec import ModelSpec
from service.predictions.layout import Layout
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident

#: Duration of the predictions (seconds).
_MEMORY_S = 10.0


def load(folder: Path, *, with_checkpoint: bool) -> Resident:
    """Load the committed version of a model, as at a start."""
    store = Store.open(folder)
    ref = store.current()
    digest = store.version_digest(ref)
    kept = gram_checkpoint.read(store.folder_of(ref), version_digest=digest, device="cpu") if with_checkpoint else None
    resident = Resident.load(
        store.manifest,
        store.load_base(),
        store.read_version(ref, digest=digest),
        ref.version,
        Placement("cpu"),
        gram=kept,
    )
    if resident.committed.from_checkpoint is not with_checkpoint:
        raise SystemExit("The checkpoint was not used as it should be.")
    return resident


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median duration of `work`."""
    spent = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def processes(repeats: int) -> None:
    """Print the table of the processes on Cora, a row for each start."""
    print("| serve on Cora | ready after the publication s | a killed api process answers after s | MiB |")
    print("| --- | ---: | ---: | --- |")
    for number in range(repeats):
        with tempfile.TemporaryDirectory() as temporary, world(Path(temporary) / "home", "cora", "never") as place:
            lethe = place.lethe
            [layout] = Layout.all_of(lethe.home)
            published = max(file.stat().st_mtime for file in layout.versions.glob("*/*"))
            asked, most = predictions(lethe.port, place.nodes, _MEMORY_S), dict[str, float]()
            until = time.monotonic() + _MEMORY_S
            while time.monotonic() < until:
                most = {name: max(most.get(name, 0.0), now) for name, now in lethe.memory().items()}
                time.sleep(0.1)
            asked.seen().require(200)
            before = lethe.answering[0]
            before.kill()
            again = answers_again(lethe, before.pid)
            print(
                f"| {number + 1} | {lethe.ready_at - published:.2f} | {again:.2f} | {memory_text(most)} |", flush=True
            )


def answers_again(lethe: LetheProcess, killed: int) -> float:
    """Return the seconds from the start of the successor of the `killed` process to the first prediction."""
    while True:
        with contextlib.suppress(httpx2.HTTPError):
            # Until another process exists, new connections wait in the queue of the listening socket.
            if httpx2.get(f"{lethe.url}/predict/0", headers=HEADERS, timeout=60.0).status_code == 200:
                answered = time.time()
                started = lethe.answering[0]
                assert started.pid != killed
                return answered - float(started.create_time())
        time.sleep(0.01)


def main() -> None:
    """Print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=["loads", "processes"], default=["loads", "processes"])
    parser.add_argument("--features", type=int, nargs="+", default=[512, 1433, 4000])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(
        f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, "
        f"load {os.getloadavg()[1]:.1f}, medians of {options.repeats}\n"
    )
    if "processes" in options.parts:
        processes(options.repeats)
        print()
    if "loads" in options.parts:
        loads(options.features, options.repeats)


def loads(widths: Sequence[int], repeats: int) -> None:
    """Print the table of loads, a row for each number of features."""
    print("| n x d | file MiB | written in s | start without s | start with s | saved |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for width in widths:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            graph = load_dataset(f"synthetic:n={2 * width},d={width},classes=3,seed=0", data_dirs=[])
            # The factors do not depend on the weights, so training may be quick.
            spec = ModelSpec(regularization=1.0)
            build_model(graph, spec, name="start", dataset="synthetic", split="full").write(folder)
            store = Store.open(folder)
            ref, gram = store.current(), load(folder, with_checkpoint=False).committed.state.features.gram
            place, digest = store.folder_of(ref), store.version_digest(ref)
            written = seconds(lambda: list(gram_checkpoint.write_steps(place, gram, version_digest=digest)), 1)  # noqa: B023 - called at once
            size = (place / gram_checkpoint.FILE).stat().st_size / (1 << 20)
            without = seconds(lambda: load(folder, with_checkpoint=False), repeats)  # noqa: B023
            with_it = seconds(lambda: load(folder, with_checkpoint=True), repeats)  # noqa: B023
            print(
                f"| {graph.nodes:,} x {width:,} | {size:.0f} | {written:.2f} | {without:.2f} | {with_it:.2f} | "
                f"{1 - with_it / without:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
