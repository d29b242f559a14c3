"""Cauwenberghs and Poggio's dual unlearning of a support vector machine, whose costs the paper's appendix names.

It needs the whole kernel matrix, and "multiple iterations to unlearn a single data point", whose number "could be
extremely large" compared to the points on the margin; each solves with a matrix of the margin. One machine for each
class unlearns 1 % of the training nodes, one after another. The rows are those of P^L X before the deletion: the method
takes rows as independent, so neighbours' rows keep what the deleted nodes gave them. Lambda is 1e-4 times the number of
training nodes, since the printed objective is a sum.
"""

import time

import numpy as np

from benchmarks.baselines.dual_unlearning import DualMachine
from benchmarks.baselines.linear import representation
from benchmarks.paper.setting import PLAIN_HINGE, drawn, spec_of
from benchmarks.paper.units import Cases, Unit
from projector.graph.graph import Graph

METHOD = "cauwenberghs and poggio"
_SHARE = 0.01


def dual_unlearning(graph: Graph, unit: Unit) -> Cases:
    """Yield iterations, sizes of the margin, times, and the distance to machines that never had the deleted nodes."""
    spec, training = spec_of(unit.dataset, PLAIN_HINGE), np.flatnonzero(graph.train_mask)
    rows, decay = representation(graph, spec, training), spec.regularization * training.size
    deleted = np.searchsorted(training, drawn(graph, _SHARE, unit.seed))
    kept = np.setdiff1d(np.arange(training.size), deleted)
    iterations, margins, without, again = list[int](), list[int](), [], []
    seconds = {"learned": 0.0, "unlearned": 0.0}
    for label in range(graph.num_classes):
        signs = np.where(graph.labels[training] == label, 1.0, -1.0)
        began = time.process_time()
        machine = DualMachine.of(rows, signs, decay)
        learned = time.process_time()
        for point in deleted.tolist():
            margins.append(machine.margin.size)
            machine = machine.without(point)
            iterations.append(machine.iterations)
        seconds["unlearned"] += time.process_time() - learned
        seconds["learned"] += learned - began
        without.append(machine.weights(rows, signs, decay))
        fitted = DualMachine.of(rows[kept], signs[kept], decay)
        again.append(fitted.weights(rows[kept], signs[kept], decay))
    W, expected = np.array(without), np.array(again)
    yield (
        f"{_SHARE:g}",
        {
            "nodes": deleted.size,
            "margin": float(np.mean(margins)),
            "iterations": float(np.mean(iterations)),
            "most_iterations": max(iterations),
            "idle": float(np.mean(np.array(iterations) == 0)),
            "weights": float(np.linalg.norm(W - expected) / np.linalg.norm(expected)),
            **{f"seconds_{name}": taken for name, taken in seconds.items()},
        },
    )
