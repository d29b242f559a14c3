"""Repair against retraining from zero, to the same bound, in one run.

Retraining uses the project's own solver, from W = 0, on the remaining graph; both stop at the same relative gradient.
Before each batch the Hessian is factorised in idle time if that pays, as in the service. That time is reported as
prefactoring, not as repair. Products are pairs of products with H and H^T: a gradient, or a product with the Hessian.

    python -m benchmarks.performance.batches.repair [--dataset cora …] [--regularization 1e-4 1e-6] [--device cpu]
"""

import argparse
import math
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.device import device_name
from model_store.build import build_model
from model_store.datasets.load import default_data_dirs, load_dataset
from projector.forgetting.batch import Removal
from projector.forgetting.optimum import stacked
from projector.forgetting.repair import RepairRun
from projector.forgetting.status import TOLERANCE
from projector.network.spec import LossKind, ModelSpec
from projector.solvers.newton import Newton
from projector.solvers.objective import Objective
from service.domain.states import RepairPolicy
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident

DATASETS = ("cora", "citeseer", "pubmed", "amazon_photo")
SIZES = (1, 16, 64)


def clock(device: torch.device) -> float:
    """Return the time in seconds after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def retrained(objective: Objective, classes: int, device: torch.device) -> tuple[float, int, torch.Tensor]:
    """Train from zero. Returns seconds and products to the goal, and weights a hundred times closer to the optimum."""
    start = torch.zeros((objective.representation.columns, classes), dtype=torch.float64, device=device)
    began = clock(device)
    newton = Newton(objective, objective.at(start), TOLERANCE / 2)
    while not newton.finished:
        newton.step()
    seconds = clock(device) - began
    products = newton.products + newton.iterations
    closer = Newton(objective, newton.best, TOLERANCE / 200)
    while not closer.finished:
        closer.step()
    return seconds, products, closer.best.W


def measure(resident: Resident, size: int, rng: np.random.Generator, repeats: int, device: torch.device) -> str:
    """Return one row of the table: medians over `repeats` batches, each then committed."""
    prefactoring, project, repair, scratch, counts, bounds, errors = [], [], [], [], [], [], []
    for _ in range(repeats):
        began = clock(device)
        if resident.prefactor_due:
            resident.preconditioner_cache.advance(math.inf)
        prefactoring.append(clock(device) - began)
        nodes = rng.choice(np.flatnonzero(resident.committed.state.live), size=size, replace=False)
        removals = [Removal(nodes=np.array([node])) for node in nodes]
        began = clock(device)
        projected = resident.prepare(removals, budget_s=0.0)
        project.append(clock(device) - began)
        objective = projected.live_graph.objective(resident.committed.regularization)
        began = clock(device)
        fixed = RepairRun(projected.state, objective, projected.training_rows, resident.preconditioner)
        fixed.advance()
        state, outcome = fixed.repaired()
        repair.append(clock(device) - began)
        seconds, products, best = retrained(objective, state.classes, device)
        scratch.append(seconds)
        counts.append((outcome.products or 0, products))
        bounds.append(math.nan if outcome.after is None else outcome.after.relative or 0.0)
        errors.append(float(torch.linalg.norm(stacked(state) - best) / torch.linalg.norm(best)))
        resident.commit(resident.prepare(removals))
    ours, theirs = (median(count[side] for count in counts) for side in (0, 1))
    ratios = [slow / fast for slow, fast in zip(scratch, repair, strict=True)]
    return (
        f"{size} | {median(project) * 1000:.1f} | {median(repair) * 1000:.0f} | {median(scratch) * 1000:.0f} | "
        f"{median(ratios):.1f} | {ours:.0f} | {theirs:.0f} | {max(bounds):.1e} | {max(errors):.1e} | "
        f"{median(prefactoring):.2f} |"
    )


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", default=list(DATASETS))
    parser.add_argument("--regularization", nargs="+", type=float, default=[1e-4, 1e-6])
    parser.add_argument("--loss", default=LossKind.SOFTMAX.value, choices=["softmax", "ovr", "hinge"])
    parser.add_argument("--size", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    print(f"{device_name(device)}, {datetime.now(UTC):%Y-%m-%d}, {options.loss}, medians of {options.repeats} batches")
    print(
        "| dataset | lambda | nodes | batch without repair, ms | repair, ms | retraining, ms | ratio | products | "
        "of retraining | bound | true distance | prefactoring, s |"
    )
    print("| --- |" + " ---: |" * 11)
    for name in options.dataset:
        graph = load_dataset(name, data_dirs=default_data_dirs(os.environ), seed=0)
        for regularization in options.regularization:
            spec = ModelSpec(loss=LossKind(options.loss), regularization=regularization)
            model = build_model(graph, spec, name="repair", dataset=name, split="full", device=options.device)
            with tempfile.TemporaryDirectory() as folder:
                store = model.write(Path(folder) / "model")
                version = store.read_version(store.current())
                resident = Resident.load(
                    store.manifest, store.load_base(), version, 0, Placement(device, RepairPolicy.ALWAYS)
                )
            rng = np.random.default_rng(0)
            for size in options.size:
                row = measure(resident, size, rng, options.repeats, device)
                print(f"| {name} | {regularization:g} | {row}", flush=True)


if __name__ == "__main__":
    main()
