"""Compares batches and repairs of this checkout with those of another, in one run.

Each checkout runs in its own process, on the same model and nodes and in turn, so that the ratio holds on a machine
whose speed drifts. The figures are processor time, which other work disturbs less than wall-clock time: for a batch
without repair (projection, live graph, predictions), for the repair that follows, and for both. *After the answer* is
what a batch leaves to be done before the deletion is completed. *Retraining* is training from zero to the tolerance of
the repair, with H at hand where products use it, once for each size; earlier scripts retrained without H, which takes
longer. Nothing is committed, so every turn starts from the same state.

    python -m benchmarks.performance.batches.against --other ../before [--dataset cora …] [--size 1 64] [--turns 9]
        [--hops 2] [--combine last]

A size below 1 is a share of the nodes.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

ROOT = Path(__file__).parents[3]
DATASETS = ("cora", "citeseer", "amazon_photo")
#: What a worker reports; earlier checkouts report the first two.
WHAT = ("batch", "repair", "after the answer", "retraining")


def work(dataset: str, hops: int, combine: str) -> None:
    """Answer each line `SIZE SEED` on standard input with the processor milliseconds of the parts of `WHAT`.

    The model has this number of hops, combined so. Retrains for seed 1 alone.
    """
    import torch

    from model_store.build import build_model
    from model_store.datasets.load import default_data_dirs, load_dataset
    from projector.forgetting.batch import Removal
    from projector.forgetting.optimum import stacked
    from projector.forgetting.repair import RepairRun
    from projector.forgetting.status import TOLERANCE
    from projector.network.spec import Combine, ModelSpec
    from projector.solvers.newton import minimise
    from service.domain.states import RepairPolicy
    from service.unlearner.placement import Placement
    from service.unlearner.resident import Resident

    graph = load_dataset(dataset, data_dirs=default_data_dirs(os.environ), seed=0)
    spec = ModelSpec(hops=hops, combine=Combine(combine))
    model = build_model(graph, spec, name="against", dataset=dataset, split="full", device="cpu")
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
        state, _ = repair.repaired()
        taken = [batch, time.process_time() - began]
        began = time.process_time()
        for span in projected.state.spans:
            span.gram.settle()
        taken.append(time.process_time() - began)
        if seed == 1:
            objective = projected.training_rows.objective(resident.committed.regularization)
            began = time.process_time()
            minimise(objective, torch.zeros_like(stacked(state)), TOLERANCE / 2, lambda *of: None)
            taken.append(time.process_time() - began)
        print(*(seconds * 1000 for seconds in taken))


def start(checkout: Path, dataset: str, hops: int, combine: str) -> "subprocess.Popen[str]":
    """Start a worker on the code of `checkout`, with its own script of this name or else this one."""
    script = next((checkout / "benchmarks").rglob("against.py"), Path(__file__))
    # Earlier scripts know this model alone.
    shape = [] if (hops, combine) == (2, "last") else ["--hops", str(hops), "--combine", combine]
    return subprocess.Popen(
        [sys.executable, "-P", "-u", "-W", "ignore", script, "--worker", dataset, *shape],
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


def row(what: str, turns: Sequence[tuple[list[float], list[float]]], parts: slice) -> str:
    """Return the end of a table row: medians of the sum of these `parts`, and of the ratio if both sides have them."""
    sums = [[sum(side[parts]) for side in turn if len(side) >= parts.stop] for turn in turns]
    here = median(each[0] for each in sums if each)
    both = np.array([each for each in sums if len(each) == 2])
    if not both.size:
        return f"{what} | {here:.1f} | | |"
    ratios = both[:, 0] / both[:, 1]
    low, high = np.quantile(ratios, [0.25, 0.75])
    return f"{what} | {here:.1f} | {median(both[:, 1]):.1f} | {median(ratios):.3f} | {low:.3f} to {high:.3f}"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="the checkout to compare with")
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS))
    parser.add_argument("--size", nargs="+", type=float, default=[1, 64])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--hops", type=int, default=2)
    parser.add_argument("--combine", choices=["last", "concat"], default="last")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.hops, options.combine)
        return
    if options.other is None:
        parser.error("name a checkout with --other")
    print(f"cpu, {os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}, {options.turns} turns; ratios are here / other")
    print("| dataset | deleted | what | here, ms | other, ms | median ratio | quartiles of the ratio |")
    print("| --- | ---: | --- | ---: | ---: | ---: | --- |")
    for dataset in options.dataset:
        given = dataset, options.hops, options.combine
        workers = [start(checkout, *given) for checkout in (ROOT, options.other.resolve())]
        first = [worker.stdout.readline().strip() if worker.stdout else "" for worker in workers]
        print(*first, sep="\n", file=sys.stderr)
        for share in options.size:
            size = int(share if share >= 1 else share * int(first[0].split()[0].replace(",", "")))
            for worker in workers:
                ask(worker, f"{size} 0")
            turns = []
            for turn in range(options.turns):
                order = (0, 1) if turn % 2 else (1, 0)
                taken = {side: ask(workers[side], f"{size} {turn + 1}") for side in order}
                turns.append((taken[0], taken[1]))
            for what, number in ((what, slice(n, n + 1)) for n, what in enumerate(WHAT)):
                print(f"| {dataset} | {size} | {row(what, turns, number)} |", flush=True)
            print(f"| {dataset} | {size} | {row('batch and repair', turns, slice(0, 2))} |", flush=True)
        for worker in workers:
            worker.communicate()


if __name__ == "__main__":
    main()
