"""A graph of the size of ogbn-products on one machine: training, import, service, and 64 deletions, repaired and
erased.

Each step reports its time and the peak memory of all its processes, including the private Postgres and Redis. Memory is
the anonymous memory of all processes, and what they share (tmpfs and shared anonymous memory, as counted by the system,
less the amount before). Predictions of random nodes are requested throughout, one by one.

    python -m benchmarks.performance.scale.one_machine [--nodes 2449029] [--folder DIR] [--features 100] [--classes 47]
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

import psutil
import torch

from benchmarks.device import device_name
from benchmarks.performance.scale.graph import Shape
from benchmarks.performance.scale.process_figures import anonymous
from benchmarks.performance.service.lethe_process import LetheProcess
from lethe_client import LetheClient, LetheClientError

_DELETED, _HOUR_S = 64, 3600.0
_GIB = 1 << 30
#: numpy holds the interpreter for seconds when it repeats a hundred million numbers; the lease must outlive that.
_SETTINGS = {"LETHE_DATASET": "synthetic:n=2000,d=64,classes=4,seed=0", "LETHE_LEASE_TTL_S": "60"}


def _shared() -> int:
    return int(psutil.virtual_memory().shared)


@dataclass
class Memory:
    """Samples the memory of all processes that this one started."""

    #: Shared memory at the start (bytes).
    shared: int = field(default_factory=_shared)
    #: Since the last `begin`: the peak sum of both kinds, and each kind at that time (bytes).
    peak: tuple[int, int, int] = (0, 0, 0)
    _ended: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        """Reset the peak."""
        self.peak = (0, 0, 0)

    def look(self) -> None:
        """Sample twice a second, until `end`."""
        own = psutil.Process()
        while not self._ended.wait(0.5):
            anonymous = sum(anonymous(each.pid) for each in own.children(recursive=True))
            shared = _shared() - self.shared
            self.peak = max(self.peak, (anonymous + shared, anonymous, shared))

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()


@dataclass
class Asking:
    """A client that requests predictions one by one."""

    answered: int = 0
    failed: int = 0
    #: Longest time of an answer (seconds).
    longest: float = 0.0

    def ask(self, lethe: LetheProcess, ended: threading.Event) -> None:
        """Request predictions until `ended`."""
        with lethe.client() as client:
            while not ended.is_set():
                began = time.monotonic()
                try:
                    client.predict_many([str(random.randrange(2_000)) for _ in range(10)])
                    self.answered += 1
                except LetheClientError as error:
                    print(f"  no prediction: {error}", flush=True)
                    self.failed += 1
                self.longest = max(self.longest, time.monotonic() - began)
                time.sleep(0.1)


@contextmanager
def asked(lethe: LetheProcess) -> Iterator[Asking]:
    """Request predictions during this block."""
    asking, ended = Asking(), threading.Event()
    thread = threading.Thread(target=asking.ask, args=(lethe, ended))
    thread.start()
    try:
        yield asking
    finally:
        ended.set()
        thread.join()


def step(name: str, memory: Memory, work: Callable[[], object]) -> None:
    """Run a step and print its row."""
    memory.begin()
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    time.sleep(0.6)
    both, anonymous, shared = (each / _GIB for each in memory.peak)
    print(f"| {name} | {seconds:,.0f} | {both:.2f} | {anonymous:.2f} | {shared:.2f} |", flush=True)


def run(command: list[str]) -> None:
    """Run a command of `lethe`, without its output."""
    subprocess.run([sys.executable, "-P", "-m", "service.cli", *command], check=True, stdout=subprocess.DEVNULL)


def measured(folder: Path, shape: Shape, memory: Memory) -> None:
    """Run all steps and print the table."""
    data, model, home = folder / "graph.npz", folder / "trained", folder / "home"
    if not data.exists():
        # A separate process, so that none of its memory remains.
        options = [f"--{name}={value}" for name, value in vars(shape).items()]
        command = [sys.executable, "-m", "benchmarks.performance.scale.graph", str(data), *options]
        step("graph drawn", memory, lambda: subprocess.run(command, check=True))
    train = ["train", "--dataset", str(data), "--out", str(model), "--combine", "concat", "--loss", "ovr"]
    if not model.exists():
        step("trained", memory, lambda: run([*train, "--name", "synthetic"]))
    os.environ["LETHE_HOME"] = str(home)
    began = time.monotonic()
    lethe = LetheProcess(home, _SETTINGS)
    try:
        print(f"| a small model served | {time.monotonic() - began:,.0f} | | | |", flush=True)
        with asked(lethe) as asking, lethe.client() as client:
            step("imported", memory, lambda: run(["model", "import", str(model)]))
            nodes = [str(node) for node in random.Random(0).sample(range(2_000, shape.nodes), _DELETED)]
            accepted = client.request_deletion(nodes)
            states: tuple[Literal["applied", "completed"], ...] = ("applied", "completed")
            for state in states:
                waited = partial(client.wait, accepted.id, state, timeout_s=_HOUR_S)
                step(f"{_DELETED} nodes deleted, until {state}", memory, waited)
            done = client.deletion(accepted.id)
            print(f"  repair: {done.repair}, {done.audit.durations_ms if done.audit else None}", flush=True)
        summary = f"{asking.answered:,} answered, {asking.failed} not; the longest took {asking.longest:.1f} s"
        print(f"  predictions: {summary}", flush=True)
    finally:
        lethe.stop()
    started_again(home, memory)


def started_again(home: Path, memory: Memory) -> None:
    """Start from the existing state, with the rest of the repair in idle time."""
    began = time.monotonic()
    memory.begin()
    again = LetheProcess(home, _SETTINGS)
    try:
        print(f"| started again | {time.monotonic() - began:,.0f} | {memory.peak[0] / _GIB:.2f} | | |", flush=True)
        with asked(again) as asking, again.client() as client:
            step("repaired to the end", memory, partial(wait_for_repair, client))
        print(f"  predictions: {asking}", flush=True)
    finally:
        again.stop()


def wait_for_repair(client: LetheClient) -> None:
    """Wait until no deletion has a pending repair."""
    while "pending" in (found := [each.repair for each in client.deletions()]):
        time.sleep(1.0)
    print(f"  repair: {found}", flush=True)


def main() -> None:
    """Print a table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=Shape().nodes, help="edges and training nodes scale with it")
    parser.add_argument("--features", type=int, default=Shape().features)
    parser.add_argument("--classes", type=int, default=Shape().classes)
    parser.add_argument(
        "--folder", type=Path, help="folder for graph and model, reused if present; default: a temporary one"
    )
    options = parser.parse_args()
    shape = replace(Shape().of_nodes(options.nodes), features=options.features, classes=options.classes)
    print(f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.1f}, {shape}")
    print("| step | s | GiB at its peak | anonymous | shared |\n| --- | ---: | ---: | ---: | ---: |", flush=True)
    memory = Memory()
    looking = threading.Thread(target=memory.look)
    looking.start()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            measured(options.folder or Path(temporary), shape, memory)
    finally:
        memory.end()
        looking.join()


if __name__ == "__main__":
    main()
