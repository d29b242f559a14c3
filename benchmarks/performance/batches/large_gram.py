"""Time and peak memory of the largest Gram factors: factorising, and whole batches of 64 deletions.

coauthor_cs  the real bag of words of 18,333 authors, 6,805 words, as CSR synthetic    20,000 seeded nodes with 60 of
8,500 words each, 500 of the words repeating others (rank 8,000 at most)

Peak memory is the increase during the step, in bytes and in matrices of d x d float64. On the CPU it is the high-water
mark of resident memory (Linux), on a GPU the memory allocated by torch. CPU seconds sum over all threads; on a shared
machine they mean more than wall-clock time.

    python -m benchmarks.performance.batches.large_gram [--device cuda] [--only synthetic] [--json FILE]
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.device import device_name
from model_store.datasets.load import default_data_dirs, load_dataset
from projector.forgetting.gram import factorise
from projector.forgetting.projection import SpanState, project
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Features

BATCH = 64
BATCHES = 5
#: As for coauthor_cs with `combine: concat`, L = 2.
BLOCKS, CLASSES = 3, 15

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Step:
    """Time and memory of one step."""

    name: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    #: Peak memory in matrices of d x d float64.
    peak_matrices: float
    note: str


@dataclass(frozen=True)
class Result:
    """The steps on one set of features."""

    dataset: str
    nodes: int
    features: int
    rank: int
    condition_number: float
    steps: tuple[Step, ...]


def coauthor_cs() -> Features:
    """Return the features of coauthor_cs as stored."""
    return load_dataset("coauthor_cs", data_dirs=default_data_dirs(os.environ)).features


def synthetic() -> Features:
    """Return a sparse bag of words that lacks 500 directions."""
    nodes, words, repeated, per_node = 20_000, 8_500, 500, 60
    rng = np.random.default_rng(0)
    # Word frequencies as in real text: few words are everywhere, most in a handful of documents.
    weights = 1 / (np.arange(words - repeated) + 20.0)
    columns = rng.choice(words - repeated, size=(nodes, per_node), p=weights / weights.sum())
    rows = np.repeat(np.arange(nodes), per_node)
    counts = sp.coo_array((np.ones(rows.size, dtype=np.float32), (rows, columns.ravel())), (nodes, words - repeated))
    kept = sp.csc_array(counts)
    return sp.csr_array(sp.hstack([kept, kept[:, rng.choice(words - repeated, repeated, replace=False)]]))


class Meter:
    """Measures steps on one device."""

    def __init__(self, device: torch.device, d: int) -> None:
        self.device = device
        self._matrix = 8 * d * d
        self.steps: list[Step] = []

    def measured(self, name: str, work: Callable[[], _Result], note: Callable[[_Result], str]) -> _Result:
        """Run `work` and record its time and memory."""
        self._settle()
        before, started, cpu = self._resident(), time.perf_counter(), time.process_time()
        result = work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
        peak = self._peak() - before
        self.steps.append(Step(name, seconds, cpu_seconds, peak, peak / self._matrix, note(result)))
        return result

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            Path("/proc/self/clear_refs").write_text("5")

    def _resident(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else _status("VmRSS")

    def _peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(dataset: str, features: Features, device: torch.device) -> Result:
    """Factorise `features`, and delete batches of 64 random rows from the resulting state."""
    n, d = features.shape
    rng = np.random.default_rng(0)
    rows = FeatureMatrix(features, device)
    everyone = np.ones(n, dtype=np.bool_)
    meter = Meter(device, d)
    gram = meter.measured("factorise", lambda: factorise(rows, everyone), lambda gram: f"rank {gram.rank:,}")
    beta = torch.from_numpy(rng.standard_normal((n, BLOCKS * CLASSES)) / n).to(device)
    B = rows.transposed_matmul(beta)
    span = SpanState(B, B.clone(), torch.zeros_like(B), gram, everyone)
    for batch in np.split(rng.permutation(n)[: BATCH * BATCHES].astype(np.int64), BATCHES):
        update = meter.measured(
            f"batch of {BATCH}",
            partial(project, span, rows, beta, batch),
            lambda update: f"{update.factor_method}, {update.lost_directions.shape[1]} directions lost",
        )
        span = update.state
        beta[torch.from_numpy(batch).to(device)] = 0.0
        rows.forget(batch)
    return Result(dataset, n, d, gram.rank, gram.condition_number, tuple(meter.steps))


def report(result: Result) -> str:
    """Format the result as a Markdown table."""
    lines = [
        f"{result.dataset}: {result.nodes:,} x {result.features:,}, rank {result.rank:,}, "
        f"condition number {result.condition_number:,.0f}",
        "",
        "| step | s | CPU s | peak GiB | in d x d | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    lines += [
        f"| {step.name} | {step.seconds:.2f} | {step.cpu_seconds:.2f} | {step.peak_bytes / 2**30:.2f} | "
        f"{step.peak_matrices:.2f} | {step.note} |"
        for step in result.steps
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure both sets of features and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=["coauthor_cs", "synthetic"])
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    device = torch.device(options.device)
    print(f"{device_name(device)}, {datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}", flush=True)
    results = []
    for make in (coauthor_cs, synthetic):
        if options.only in (None, make.__name__):
            results.append(measure(make.__name__, make(), device))
            print("\n" + report(results[-1]), flush=True)
    if options.json:
        facts = {
            "device": device_name(device),
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "torch": torch.__version__,
            "results": [asdict(each) for each in results],
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
