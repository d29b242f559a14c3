"""Nodes deleted, added and corrected on the arXiv graph, against solving again in the same run.

Concat, L = 2 and 3, features as in `benchmarks.performance.batches.arxiv`; lambda 1e-4 with softmax, 1e-3 with the
squared loss. Nodes are drawn from the training nodes:

* delete: they leave the trained model;
* add: they join it again after their deletion, with their features, labels and edges;
* correct: they get the features and labels of other training nodes.

Every update starts without a preconditioner, as after training, but with H, as from the first update on. The service
makes preconditioners in idle time, so their time is also given by itself. Three things are timed:

* weights and certificate: projection, the new graph, repair to a proven relative bound of 1e-8;
* the whole update: also coefficients, and predictions of all nodes;
* solving again on the new graph: rows of H, weights from zero to half that bound, certificate. The squared loss is
  solved by one factorisation of the normal equations.

The command fails if a repair does not converge, or if the first of its combination ends farther from the weights solved
again than both bounds allow. Seconds are processor time over all threads, which other work on the machine changes less
than wall-clock time. For updates of one node they are medians of `--repeats` nodes; solving again runs once for each
combination.

    python -m benchmarks.performance.batches.updates [--graph ogbn_arxiv_llm] [--loss squared softmax] [--hops 2 3]
        [--what delete add correct] [--nodes 1 64 1000] [--repeats 5] [--data DIR] [--out FILE]
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.device import device_name
from benchmarks.performance.scale.batch_by_size import Stopwatch
from benchmarks.performance.scale.gpu import Newcomers, drawn
from benchmarks.records import put
from model_store.datasets.load import default_data_dirs, load_dataset
from projector import Model, ModelSpec, Report, fit
from projector.forgetting import repair
from projector.forgetting.certificate import Certificate, certify
from projector.forgetting.optimum import stacked
from projector.forgetting.status import LARGEST_TOLERANCE, TOLERANCE, RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.graph.graph import Graph, feature_rows
from projector.network.spec import Combine, LossKind
from projector.solvers.newton import minimise
from projector.solvers.normal_equations import NormalObjective

FIGURES = Path(__file__).parents[2] / "results" / "updates.ndjson"
KEY = ("graph", "loss", "hops", "what", "nodes")
REGULARIZATION = {LossKind.SQUARED: 1e-3, LossKind.SOFTMAX: 1e-4}
DELETE, ADD, CORRECT = WHAT = ("delete", "add", "correct")
#: Parts of an update; `WEIGHTS` has neither the preconditioner nor the coefficients.
WEIGHTS, PRECONDITIONER, COEFFICIENTS, PREDICTIONS = PARTS = (
    "weights and certificate",
    "preconditioner",
    "coefficients",
    "predictions",
)


@dataclass(frozen=True)
class Measured:
    """One kind of update with one number of nodes."""

    graph: str
    loss: str
    hops: int
    what: str
    nodes: int
    #: Processor seconds by part, one for each repetition.
    seconds: dict[str, list[float]]
    #: Processor seconds of solving again.
    again: float
    #: The largest relative bound after an update, that of the weights solved again, and the distance between both.
    bound: float
    bound_again: float
    distance: float
    #: Device and date, and load at the start.
    where: str
    load: float


def spec_of(loss: LossKind, hops: int) -> ModelSpec:
    """Return the trained model's specification."""
    return ModelSpec(loss=loss, hops=hops, combine=Combine.CONCAT, regularization=REGULARIZATION[loss], tolerance=1e-9)


def prepared(
    what: str, model: Model, graph: Graph, nodes: NDArray[np.int64]
) -> tuple[Model, Callable[[Model], tuple[Model, Report]]]:
    """Return the model to update, and its update."""
    if what == DELETE:
        return model, lambda given: given.forget(nodes=nodes)
    if what == ADD:
        return model.forget(nodes=nodes)[0], Newcomers.of(graph, nodes).join
    others = np.random.default_rng(1).choice(np.flatnonzero(graph.train_mask), nodes.size)
    features = dict(zip(nodes.tolist(), feature_rows(graph.features, others), strict=True))
    labels = dict(zip(nodes.tolist(), graph.labels[others].tolist(), strict=True))
    return model, lambda given: given.update(set_features=features, set_labels=labels)


def updated(model: Model, update: Callable[[Model], tuple[Model, Report]]) -> tuple[Model, Report, dict[str, float]]:
    """Return the updated model, the report and the processor seconds by part. Raises RuntimeError if not converged."""
    watch = Stopwatch({name: np.zeros(2) for name in PARTS})
    # H is known from the first update on.
    model._held.training_rows.objective(model._held.regularization)
    model = Model(replace(model._held, preconditioner=None), model._exponents)
    places = {COEFFICIENTS: (repair, "at_optimum"), PRECONDITIONER: (repair.RepairRun, "_make")}
    with ExitStack() as stack:
        for name, place in places.items():
            stack.enter_context(patch.object(*place, watch.timed(name, getattr(*place))))
        with watch.part(WEIGHTS):
            after, report = update(model)
    with watch.part(PREDICTIONS):
        after.predict()
    if report.repair is not RepairStatus.CONVERGED or report.bound_after is None or not report.bound_after.retrained:
        raise RuntimeError(f"The repair ended as {report.repair}, with {report.bound_after}.")
    return after, report, {name: float(taken[1]) for name, taken in watch.spent.items()}


def solved_again(model: Model) -> tuple[Tensor, Certificate, float]:
    """Return weights (p, C) for the model's graph from scratch, their certificate, and processor seconds."""
    graph, regularization = model._held.live_graph, model._held.regularization
    began = time.process_time()
    rows = TrainingRows.of(graph)
    objective = rows.objective(regularization)
    if isinstance(objective, NormalObjective):
        n, equations = objective.weighted_rows, objective.equations
        W = equations.factor(n, regularization).solve(equations.b / n)
    else:
        start = torch.zeros((objective.representation.columns, graph.classes), dtype=torch.float64)
        W = minimise(rows.objective_by_rows(regularization), start, TOLERANCE / 2, lambda *_: None).point.W
    found = certify(objective, objective.at(W))
    return W, found, time.process_time() - began


def distance_between(model: Model, bound: Certificate, again: Tensor, bound_again: Certificate) -> float:
    """Return the distance of the model's weights from those solved again, relative to the latter.

    Raises ArithmeticError if it exceeds both bounds together, or if the second bound proves nothing.
    """
    distance, size = float(torch.linalg.norm(stacked(model._held.state) - again)), float(torch.linalg.norm(again))
    if not bound_again.within(LARGEST_TOLERANCE) or distance > bound.bound + bound_again.bound:
        raise ArithmeticError(f"The weights are {distance / size:.1e} from those solved again ({bound_again}).")
    return distance / size


def relative(bound: Certificate) -> float:
    """Return the relative bound. Raises ArithmeticError for weights of size 0, which may lack it."""
    if bound.relative is None:
        raise ArithmeticError("The bound cannot be relative to weights of size 0.")
    return bound.relative


def measured(name: str, graph: Graph, model: Model, spec: ModelSpec, what: str, nodes: int, repeats: int) -> Measured:
    """Run one kind of update `repeats` times, with other nodes each time, and solve again after the first."""
    load = os.getloadavg()[0]
    times, bounds = [], []
    for seed in range(repeats):
        after, report, seconds = updated(*prepared(what, model, graph, drawn(graph, nodes, seed)))
        assert report.bound_after is not None
        times.append(seconds)
        bounds.append(relative(report.bound_after))
        if seed == 0:
            W, bound_again, again = solved_again(after)
            distance = distance_between(after, report.bound_after, W, bound_again)
    where = f"{device_name(torch.device('cpu'))}, {datetime.now(UTC):%Y-%m-%d}"
    return Measured(
        name, spec.loss.value, spec.hops, what, nodes, {part: [each[part] for each in times] for part in PARTS},
        again, max(bounds), relative(bound_again), distance, where, load,
    )  # fmt: skip


def report_of(rows: Sequence[Measured]) -> str:
    """Format the results as Markdown."""
    heads = ["loss", "L", "update", "nodes", "weights and certificate, s", "of which preconditioner", "whole update, s"]
    heads += ["solving again, s", "to weights", "to the whole", "bound", "distance"]
    lines = [f"| {' | '.join(heads)} |", f"| --- | ---: | --- |{' ---: |' * (len(heads) - 3)}"]
    for row in rows:
        preconditioner = median(row.seconds[PRECONDITIONER])
        repetitions = range(len(row.seconds[WEIGHTS]))
        weights, whole = (
            median(sum(row.seconds[part][number] for part in parts) for number in repetitions)
            for parts in ((WEIGHTS, PRECONDITIONER), PARTS)
        )
        cells = [row.loss, str(row.hops), row.what, f"{row.nodes:,}"]
        cells += [f"{seconds:.3g}" for seconds in (weights, preconditioner, whole, row.again)]
        cells += [f"{row.again / seconds:.1f}" for seconds in (weights, whole)]
        lines.append(f"| {' | '.join([*cells, f'{row.bound:.1e}', f'{row.distance:.1e}'])} |")
    loads = [row.load for row in rows]
    places = ", ".join(sorted({row.where for row in rows}))
    return "\n".join([*lines, "", f"{places}, load {min(loads):.1f} to {max(loads):.1f}"])


def main() -> None:
    """Write a record for each combination, and print a table of those measured now."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="ogbn_arxiv_llm")
    parser.add_argument("--loss", nargs="+", type=LossKind, choices=list(REGULARIZATION), default=list(REGULARIZATION))
    parser.add_argument("--hops", nargs="+", type=int, default=[2, 3])
    parser.add_argument("--what", nargs="+", choices=WHAT, default=list(WHAT))
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 64, 1_000])
    parser.add_argument("--repeats", type=int, default=5, help="repetitions of updates of one node")
    parser.add_argument("--data", type=Path, help="folder of the datasets")
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    graph = load_dataset(options.graph, data_dirs=[options.data] if options.data else default_data_dirs(os.environ))
    rows = []
    for loss in options.loss:
        for hops in options.hops:
            spec = spec_of(loss, hops)
            model = fit(graph, spec)
            for what in options.what:
                for nodes in options.nodes:
                    repeats = options.repeats if nodes == 1 else 1
                    rows.append(measured(options.graph, graph, model, spec, what, nodes, repeats))
                    put(options.out, asdict(rows[-1]), KEY)
                    print(f"{report_of(rows[-1:])}\n", flush=True)
    print(report_of(rows))


if __name__ == "__main__":
    main()
