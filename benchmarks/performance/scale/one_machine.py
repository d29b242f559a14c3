"""A graph of the size of ogbn-products on one machine: trained, imported, served, 64 nodes deleted, repaired, erased.

Of each step: its time, and at its peak the memory of everything that runs for it, the private Postgres and Redis among
it: anonymous memory of all processes, and what they share (tmpfs and shared anonymous memory, as the system counts
them, less what was there before). Predictions of random nodes are asked for throughout, one after another.

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
#: numpy keeps the interpreter to itself for seconds where it repeats a hundred million numbers: a lease outlives that.
_SETTINGS = {"LETHE_DATASET": "synthetic:n=2000,d=64,classes=4,seed=0", "LETHE_LEASE_TTL_S": "60"}


def _shared() -> int:
    return int(psutil.virtual_memory().shared)


@dataclass
class Memory:
    """Looks at all that this process has started, over and over."""

    #: What was shared before (bytes).
    shared: int = field(default_factory=_shared)
    #: Since the last `begin`: the most of both kinds together, and each then (bytes).
    peak: tuple[int, int, int] = (0, 0, 0)
    _ended: threading.Event = field(default_factory=threading.Event)

    def begin(self) -> None:
        """Forgets the peak."""
        self.peak = (0, 0, 0)

    def look(self) -> None:
        """Twice a second, until `end`."""
        own = psutil.Process()
        while not self._ended.wait(0.5):
            anonymous = sum(anonymous(each.pid) for each in own.children(recursive=True))
            shared = _shared() - self.shared
            self.peak = max(self.peak, (anonymous + shared, anonymous, shared))

    def end(self) -> None:
        """Stops."""
        self._ended.set()


@dataclass
class Asking:
    """One client that asks for predictions, one after another."""

    answered: int = 0
    failed: int = 0
    #: The longest that an answer took (seconds).
    longest: float = 0.0

    def ask(self, lethe: LetheProcess, ended: threading.Event) -> None:
        """Until `ended`."""
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
    """Asks in here, beside what is done."""
    asking, ended = Asking(), threading.Event()
    thread = threading.Thread(target=asking.ask, args=(lethe, ended))
    thread.start()
    try:
        yield asking
    finally:
        ended.set()
        thread.join()


def step(name: str, memory: Memory, work: Callable[[], object]) -> None:
    """Does it, and prints its row."""
    memory.begin()
    began = time.monotonic()
    work()
    seconds = time.monotonic() - began
    time.sleep(0.6)
    both, anonymous, shared = (each / _GIB for each in memory.peak)
    print(f"| {name} | {seconds:,.0f} | {both:.2f} | {anonymous:.2f} | {shared:.2f} |", flush=True)


def run(command: list[str]) -> None:
    """A command of `lethe`, with what it prints left out."""
    subprocess.run([sys.executable, "-P", "-m", "service.cli", *command], check=True, stdout=subprocess.DEVNULL)


def measured(folder: Path, shape: Shape, memory: Memory) -> None:
    """All steps; prints the table."""
    data, model, home = folder / "graph.npz", folder / "trained", folder / "home"
    if not data.exists():
        # In a process of its own, so that none of its memory is left.
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
        told = f"{asking.answered:,} answered, {asking.failed} not; the longest took {asking.longest:.1f} s"
        print(f"  predictions: {told}", flush=True)
    finally:
        lethe.stop()
    started_again(home, memory)


def started_again(home: Path, memory: Memory) -> None:
    """A start with what is there, and the repair that its budget did not suffice for, in idle time."""
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
    """Until no repair of a deletion is pending any more."""
    while "pending" in (found := [each.repair for each in client.deletions()]):
        time.sleep(1.0)
    print(f"  repair: {found}", flush=True)


def main() -> None:
    """Prints a table as its rows come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=Shape().nodes, help="edges and training nodes go with it")
    parser.add_argument("--features", type=int, default=Shape().features)
    parser.add_argument("--classes", type=int, default=Shape().classes)
    parser.add_argument(
        "--folder", type=Path, help="where graph and model are kept, and found; default: a temporary one"
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
