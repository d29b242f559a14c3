"""The squared loss on the arXiv graph: one node's deletion by updated sums, against solving again in the same run.

L = 2, concat (p = 600), lambda 1e-3; the features as in `benchmarks.performance.batches.arxiv`. Random nodes are
deleted one by one. For each, three things are timed on the remaining graph:

* weights and certificate by the updated normal equations, including the projection and the remaining graph;
* the whole deletion, with coefficients, and predictions of all nodes;
* solving again: rows of H, sums, factor, weights and certificate from the remaining graph alone.

Seconds are processor time over all threads, which other work on the machine changes less than wall-clock time.

    python -m benchmarks.performance.batches.squared [--data DIR] [--nodes N] [--batch M] [--hops L]
"""

import argparse
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.device import device_name
from benchmarks.performance.batches.arxiv import ARXIV, found
from model_store.datasets.load import default_data_dirs, load_dataset
from projector import Model, ModelSpec, fit
from projector.forgetting.batch import Removal, project_batch
from projector.forgetting.certificate import certify
from projector.forgetting.repair import RepairRun
from projector.forgetting.training_rows import TrainingRows
from projector.forgetting.update import HeldModel
from projector.network.spec import Combine, LossKind
from projector.solvers.normal_equations import NormalObjective

_LAMBDA = 1e-3


def updated(held: HeldModel, nodes: np.ndarray) -> tuple[float, float]:
    """Return the seconds for weights and certificate of the graph without `nodes` by updates, and the bound."""
    began = time.process_time()
    projection = project_batch(held.state, held.features, held.labels, [Removal(nodes=nodes)])
    empty = np.empty((0, 2), dtype=np.int64)
    live_graph = held.live_graph.without(nodes, empty, empty[:, 0])
    rows = held.training_rows.on(live_graph)
    run = RepairRun(projection.state, live_graph.objective(held.regularization), rows, held.preconditioner)
    run.advance()
    bound = run.progress.bound_relative
    return time.process_time() - began, float("nan") if bound is None else bound


def again(left: HeldModel) -> float:
    """Return the seconds for solving on the graph of `left` from scratch."""
    began = time.process_time()
    objective = TrainingRows.of(left.live_graph).objective(left.regularization)
    assert isinstance(objective, NormalObjective)
    n, equations = objective.weighted_rows, objective.equations
    W = equations.factor(n, left.regularization).solve(equations.b / n)
    found = certify(objective, objective.at(W))
    assert found.relative is not None
    assert found.relative <= 1e-6
    return time.process_time() - began


def whole(model: Model, nodes: np.ndarray) -> tuple[Model, float]:
    """Return the model without `nodes`, and the seconds including predictions of all remaining nodes."""
    began = time.process_time()
    left, report = model.forget(nodes=nodes)
    left.predict()
    seconds = time.process_time() - began
    assert report.bound_after is not None
    assert report.bound_after.retrained
    return left, seconds


def main() -> None:
    """Print one line for each node, and the medians with their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=f"folder of {ARXIV}")
    parser.add_argument("--nodes", type=int, default=20, help="number of deletions")
    parser.add_argument("--batch", type=int, default=1, help="nodes in each deletion")
    parser.add_argument("--hops", type=int, default=2)
    options = parser.parse_args()
    dataset = found([options.data] if options.data else default_data_dirs(os.environ))
    if dataset is None:
        raise SystemExit(f"{ARXIV} was not found; name its folder with --data.")
    print(f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}, load {os.getloadavg()[0]:.1f}, {ARXIV}")
    spec = ModelSpec(
        loss=LossKind.SQUARED, hops=options.hops, combine=Combine.CONCAT, regularization=_LAMBDA, tolerance=1e-10
    )
    began = time.process_time()
    model = fit(load_dataset(str(dataset), data_dirs=[]), spec)
    print(f"fit: {time.process_time() - began:.1f} s", flush=True)
    random = np.random.default_rng(0)
    model, _ = whole(model, random.choice(np.flatnonzero(model.live), size=1))
    times = []
    for _ in range(options.nodes):
        nodes = random.choice(np.flatnonzero(model.live), size=options.batch, replace=False)
        weights, bound = updated(model._held, nodes)
        model, all_of_it = whole(model, nodes)
        solved = again(model._held)
        times.append((weights, all_of_it, solved))
        print(
            f"weights and certificate {weights:.3f} s ({bound:.1e}), whole {all_of_it:.2f} s, again {solved:.2f} s",
            flush=True,
        )
    weights, all_of_it, solved = (median(each) for each in zip(*times, strict=True))
    print(
        f"medians: {weights:.3f} s, {all_of_it:.2f} s, {solved:.2f} s; solving again takes {solved / weights:.1f} "
        f"times as long as weights and certificate, {solved / all_of_it:.1f} times as long as the whole deletion"
    )


if __name__ == "__main__":
    main()
