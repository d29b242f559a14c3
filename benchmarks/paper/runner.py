"""Measures units one by one, in a process that is killed if a unit takes too long.

Consecutive units share the process and what it has cached, unless their experiment measures memory.
"""

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.context import SpawnProcess
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.paper.experiments import EXPERIMENTS
from benchmarks.paper.setting import is_network
from benchmarks.paper.units import (
    DIED,
    MEASURED,
    OUT_OF_TIME,
    Figures,
    Unit,
    graph_of,
    read,
    size_of,
    surroundings,
    write,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    Pipe = Connection[Any, Any]

#: Time limit of a unit.
LIMIT_S = 20 * 60.0
_THREADS = torch.get_num_threads()


class UnitError(RuntimeError):
    """A unit's code raised; the message has its traceback."""


class Runner:
    """Measures units and writes their records below `folder`."""

    def __init__(self, folder: Path, limit_s: float = LIMIT_S) -> None:
        self._folder, self._limit = folder, limit_s
        self._worker: tuple[SpawnProcess, Pipe] | None = None

    def run(self, unit: Unit) -> str:
        """Measure a unit and return how it ended. Raises UnitError, and writes nothing, if its code raised."""
        if EXPERIMENTS[unit.experiment].alone:
            self.stop()
        pipe = self._started()
        about = surroundings(_threads(unit))
        cases: dict[str, Figures] = {}
        began = time.monotonic()
        try:
            pipe.send(unit)
            outcome = self._heard(unit, began + self._limit, about, cases)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            outcome = DIED
        if outcome != MEASURED:
            self.stop()
        write(self._folder, unit, outcome, cases, time.monotonic() - began, about)
        return outcome

    def _heard(self, unit: Unit, until: float, about: dict[str, object], cases: dict[str, Figures]) -> str:
        """Record what the process reports about a unit, until it finishes or until the monotonic time `until`."""
        pipe = self._started()
        while pipe.poll(max(0.0, until - time.monotonic())):
            said, what = pipe.recv()
            if said == "graph":
                about["graph"] = what
            elif said == "case":
                case, figures = what
                cases[case] = figures
            elif said == "raised":
                raise UnitError(f"{unit}:\n{what}")
            else:
                return MEASURED
        return OUT_OF_TIME

    def stop(self) -> None:
        """Kill the process; the next unit starts another."""
        if self._worker is not None:
            process, pipe = self._worker
            process.kill()
            process.join()
            pipe.close()
            self._worker = None

    def _started(self) -> "Pipe":
        if self._worker is None:
            context = multiprocessing.get_context("spawn")
            pipe, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._worker = process, pipe
            pipe.recv()  # import time does not count
        return self._worker[1]


def _serve(pipe: "Pipe") -> None:
    """Measure the received units, and report each case when it is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the waiting process handles the keyboard
    pipe.send(("ready", None))
    while True:
        unit = pipe.recv()
        try:
            torch.set_num_threads(_threads(unit))
            graph = graph_of(unit)
            pipe.send(("graph", size_of(graph)))
            for case in EXPERIMENTS[unit.experiment].measure(graph, unit):
                pipe.send(("case", case))
        except Exception:  # noqa: BLE001 - the process that waits raises it
            pipe.send(("raised", traceback.format_exc()))
        else:
            pipe.send(("done", None))


def _threads(unit: Unit) -> int:
    """Return 1 for a network: two threads give other sums than one, and after two hundred epochs another network.

    The classifier of membership inference behaves the same way.
    """
    return 1 if is_network(unit.method) or "membership" in unit.experiment else _THREADS


def reproduce(
    chosen: Sequence[Unit], folder: Path, report: Callable[[str], None], limit_s: float = LIMIT_S
) -> list[Unit]:
    """Measure those of `chosen` without a record below `folder`, and report progress and remaining time.

    Returns the units whose code raised; they have no record. The other units are still measured.
    """
    records = read(folder)
    there = {Unit.of(record) for record in records}
    missing = [unit for unit in chosen if unit not in there]
    report(f"{len(chosen)} units, {len(chosen) - len(missing)} of them there.")
    times = [(found["experiment"], found["dataset"], found["method"], found["seconds"]) for found in records]
    raised = []
    runner = Runner(folder, limit_s)
    try:
        for index, unit in enumerate(missing):
            began = time.monotonic()
            try:
                outcome = runner.run(unit)
            except UnitError as error:
                report(str(error))
                raised.append(unit)
                outcome = "raised"
            took = time.monotonic() - began
            times.append((unit.experiment, unit.dataset, unit.method, took))
            left = sum(_expected(other, times) for other in missing[index + 1 :])
            report(f"[{index + 1}/{len(missing)}] {unit}: {outcome}, {took:.0f} s; about {_span(left)} left.")
    finally:
        runner.stop()
    return raised


def _expected(unit: Unit, times: Sequence[tuple[str, str, str, float]]) -> float:
    """Estimate the seconds of a unit from those most like it."""
    key = (unit.experiment, unit.dataset, unit.method)
    for alike in ((0, 1, 2), (0, 1), (0, 2), (0,), ()):
        found = [each[3] for each in times if all(each[place] == key[place] for place in alike)]
        if found:
            return fmean(found)
    return 0.0


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
