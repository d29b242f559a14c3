"""The whole arXiv graph with real features: training, predictions, and batches of 64 deletions, repaired.

Graph, labels and split are OGB's. The features are a language model's five guesses of each paper's category (200
columns), since no stored copy has OGB's own. `./lethe train` runs in its own process, which gives its own peak memory.
Predictions are measured for all nodes together, by class columns, and for a few nodes, from rows of H.

    python -m benchmarks.performance.batches.arxiv [--data DIR] [--model DIR]
"""

import argparse
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import torch

from benchmarks.device import device_name
from model_store.datasets.load import default_data_dirs
from model_store.store import Store
from projector.forgetting.batch import Removal
from projector.forgetting.optimum import stacked
from projector.network.image_rows import image_rows
from service.domain.states import RepairPolicy
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident

#: The dataset's file.
ARXIV = "ogbn_arxiv_llm.npz"
_BATCH, _BATCHES, _BUDGET_S = 64, 5, 15.0
#: Nodes in a query, and repetitions.
_ASKED = ((1, 30), (10, 10), (100, 5))


def found(folders: list[Path]) -> Path | None:
    """Return the dataset's file in the first of `folders` that has it."""
    return next((folder / ARXIV for folder in folders if (folder / ARXIV).is_file()), None)


def trained(dataset: Path | str, out: Path) -> tuple[float, float, float]:
    """Return seconds, processor seconds and peak memory (GiB) of `./lethe train`: L = 3, concat, lambda 1e-4."""
    command = [sys.executable, "-m", "service.cli", "train", "--dataset", str(dataset), "--out", str(out)]
    command += ["--hops", "3", "--combine", "concat", "--lambda", "1e-4", "--name", "arxiv"]
    started = time.perf_counter()
    subprocess.run(command, check=True)
    seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / (1 << 20)


def predictions(resident: Resident, rng: np.random.Generator) -> None:
    """Print the time of predictions for all nodes, and for a few queried nodes."""
    graph, W = resident.committed.live_graph, stacked(resident.committed.state)
    took = []
    for _ in range(5):
        started = time.perf_counter()
        logits = graph.logits(resident.committed.state)
        took.append(time.perf_counter() - started)
    print(f"logits of all nodes by class columns: {min(took):.2f} to {max(took):.2f} s")
    live = np.flatnonzero(resident.committed.state.live)
    for nodes, repeats in _ASKED:
        took = []
        for _ in range(repeats):
            asked = np.sort(rng.choice(live, size=nodes, replace=False))
            started = time.perf_counter()
            rows = image_rows(graph.inputs, asked, graph.propagator.edges.adjacency, graph.propagator.live)
            if rows is not None:
                assert torch.allclose(rows @ W, logits[asked], rtol=0, atol=1e-9)
            took.append(1000 * (time.perf_counter() - started))
        tenths = quantiles(took, n=10)
        print(f"logits of {nodes} nodes by their rows of H: p50 {median(took):.0f} ms, p90 {tenths[-1]:.0f} ms")


def batch(resident: Resident, rng: np.random.Generator, budget_s: float) -> tuple[float, str]:
    """Run and commit one batch. Returns the seconds of its repair, and a line of text."""
    rows = rng.choice(np.flatnonzero(resident.committed.state.live), size=_BATCH, replace=False)
    started, before = time.perf_counter(), time.process_time()
    prepared = resident.prepare([Removal(nodes=row) for row in rows[:, None]], budget_s=budget_s)
    resident.commit(prepared)
    seconds, processor, outcome = time.perf_counter() - started, time.process_time() - before, prepared.outcome
    first, last = (math.nan if each is None else each.relative for each in (outcome.before, outcome.after))
    return prepared.repair_s, (
        f"batch of {_BATCH}: {seconds:.1f} s, {processor:.1f} processor s, of which repair {prepared.repair_s:.1f} s "
        f"({outcome.products} products), {outcome.status.value}, bound {first:.1e} to {last:.1e}"
    )


def main() -> None:
    """Print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=f"folder of {ARXIV}")
    parser.add_argument("--model", type=Path, help="folder of the model; trained there if missing")
    options = parser.parse_args()
    folders = [options.data] if options.data else default_data_dirs(os.environ)
    dataset = found(folders)
    if dataset is None:
        raise SystemExit(f"{ARXIV} is in none of {', '.join(map(str, folders))}.")
    print(f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.1f}, {ARXIV}")
    with tempfile.TemporaryDirectory() as temporary:
        model = options.model or Path(temporary) / "model"
        training = None
        if not model.exists():
            training, processor, gibibytes = trained(dataset, model)
            print(f"train: {training:.0f} s, {processor:.0f} processor s, {gibibytes:.2f} GiB", flush=True)
        started = time.perf_counter()
        store = Store.open(model)
        version = store.read_version(store.current())
        resident = Resident.load(store.manifest, store.load_base(), version, 0, Placement("cpu", RepairPolicy.ALWAYS))
        print(f"load: {time.perf_counter() - started:.1f} s", flush=True)
        rng = np.random.default_rng(1)
        predictions(resident, rng)
        started = time.perf_counter()
        resident.preconditioner_cache.advance(math.inf)
        print(f"blocks of the Hessian, in idle time: {time.perf_counter() - started:.1f} s", flush=True)
        seconds, line = batch(resident, rng, math.inf)
        print(line if training is None else f"{line}; training took {training / seconds:.1f} times as long", flush=True)
        print(f"One after another, with a budget of {_BUDGET_S:.0f} s each:")
        for _ in range(_BATCHES):
            print(batch(resident, rng, _BUDGET_S)[1], flush=True)
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
        print(f"peak memory of this process: {own:.2f} GiB")


if __name__ == "__main__":
    main()
