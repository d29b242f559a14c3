"""Compares batches and repairs of this checkout with those of another, in one run.

Each checkout runs in its own process, on the same model and nodes and in turn, so that the ratio holds on a machine
whose speed drifts. The figures are processor time, which other work disturbs less than wall-clock time: for a batch
without repair (projection, live graph, predictions), and for the repair that follows. Nothing is committed, so every
turn starts from the same state.

    python -m benchmarks.performance.batches.against --other ../before [--dataset cora …] [--size 1 64] [--turns 9]
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).parents[3]
DATASETS = ("cora", "citeseer", "amazon_photo")


def work(dataset: str) -> None:
    """Answer each line `SIZE SEED` on standard input with the processor milliseconds of a batch and of its repair."""
    import torch

    from model_store.build import build_model
    from model_store.datasets.load import default_data_dirs, load_dataset
    from projector.forgetting.batch import Removal
    from projector.forgetting.repair import RepairRun
    from projector.network.spec import ModelSpec
    from service.domain.states import RepairPolicy
    from service.unlearner.placement import Placement
    from service.unlearner.resident import Resident

    graph = load_dataset(dataset, data_dirs=default_data_dirs(os.environ), seed=0)
    model = build_model(graph, ModelSpec(), name="against", dataset=dataset, split="full", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        store = model.write(Path(folder) / "model")
        version = store.read_version(store.current())
        placement = Placement(torch.device("cpu"), RepairPolicy.ALWAYS)
        resident = Resident.load(store.manifest, store.load_base(), version, 0, placement)
    if resident.prefactor_due:
        resident.preconditioner_cache.advance(math.inf)
    print(
        f"{graph.nodes:,} nodes, {graph.num_features:,} features, rank {resident.committed.state.features.gram.rank:,}"
    )
    for line in sys.stdin:
        size, seed = map(int, line.split())
        nodes = np.random.default_rng(seed).choice(graph.nodes, size=size, replace=False)
        removals = [Removal(nodes=np.array([node])) for node in nodes]
        began = time.process_time()
        projected = resident.prepare(removals, budget_s=0.0)
        batch = time.process_time() - began
        began = time.process_time()
        objective = projected.live_graph.objective(resident.committed.regularization)
        repair = RepairRun(projected.state, objective, projected.training_rows, resident.preconditioner)
        repair.advance()
        repair.repaired()
        print(batch * 1000, (time.process_time() - began) * 1000)


def start(checkout: Path, dataset: str) -> "subprocess.Popen[str]":
    """Start a worker on the code of `checkout`, with its own script of this name or else this one."""
    script = next((checkout / "benchmarks").rglob("against.py"), Path(__file__))
    return subprocess.Popen(
        [sys.executable, "-P", "-u", "-W", "ignore", script, "--worker", dataset],
        cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def ask(worker: "subprocess.Popen[str]", question: str) -> list[float]:
    """Return the milliseconds that a worker reports."""
    if worker.stdin is None or worker.stdout is None:
        raise RuntimeError("the worker was started without pipes")
    worker.stdin.write(question + "\n")
    worker.stdin.flush()
    return [float(word) for word in worker.stdout.readline().split()]


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="the checkout to compare with")
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS))
    parser.add_argument("--size", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker)
        return
    if options.other is None:
        parser.error("name a checkout with --other")
    print(f"cpu, {os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}, {options.turns} turns; ratios are here / other")
    print("| dataset | deleted | what | here, ms | other, ms | median ratio | quartiles of the ratio |")
    print("| --- | ---: | --- | ---: | ---: | ---: | --- |")
    for dataset in options.dataset:
        workers = [start(checkout, dataset) for checkout in (ROOT, options.other.resolve())]
        for worker in workers:
            print(worker.stdout.readline().strip() if worker.stdout else "", file=sys.stderr)
        for size in options.size:
            for worker in workers:
                ask(worker, f"{size} 0")
            turns = []
            for turn in range(options.turns):
                order = (0, 1) if turn % 2 else (1, 0)
                taken = {side: ask(workers[side], f"{size} {turn + 1}") for side in order}
                turns.append((taken[0], taken[1]))
            for number, what in enumerate(("batch", "repair")):
                here, other = ([side[number] for side in column] for column in zip(*turns, strict=True))
                ratios = np.array(here) / np.array(other)
                low, high = np.quantile(ratios, [0.25, 0.75])
                print(
                    f"| {dataset} | {size} | {what} | {median(here):.1f} | {median(other):.1f} | "
                    f"{np.median(ratios):.3f} | {low:.3f} to {high:.3f} |",
                    flush=True,
                )
        for worker in workers:
            worker.communicate()


if __name__ == "__main__":
    main()
