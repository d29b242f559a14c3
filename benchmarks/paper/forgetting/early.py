"""Injection, closeness and accuracy in the paper's own setting: descent that stops early.

The paper trains by gradient descent with momentum 0.9, lambda 1e-6 and a learning rate of 0.1 or 1, and stops once the
validation accuracy has not increased for 10 iterations (its appendices "Model configuration" and "Fine-tuning"). Here
the rate is the one with the better validation accuracy, and the weights are those of the best iteration. Retraining
descends and stops in the same way on the remaining graph. Every method starts from the same weights.

Far from the optimum a Newton step goes to the optimum, which is far from where retraining stops.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.baselines.linear import LinearModel, blocks_of, design, remaining, representation, without_nodes
from benchmarks.baselines.newton.fisher import FisherModel
from benchmarks.baselines.newton.influence import Affected, InfluenceModel
from benchmarks.baselines.printed import Printed, PrintedModel
from benchmarks.baselines.protocol import Array, Nodes, Trained, accuracy
from benchmarks.paper.forgetting.closeness import relative
from benchmarks.paper.forgetting.injection import channel_norm, with_channel
from benchmarks.paper.setting import drawn
from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind

SPEC = ModelSpec(loss=LossKind.OVR, regularization=1e-6)
_RATES, _MOMENTUM, _PATIENCE, _MOST = (0.1, 1.0), 0.9, 10, 2_000
_CLOSE, _INJECTED = (0.001, 0.01, 0.05, 0.10), (0.05, 0.10)


@dataclass(frozen=True, eq=False)
class Stopped(LinearModel):
    """Weights of descent that stopped early; forgets by descending again."""

    #: The iteration that they are of.
    iterations: int

    def unlearn(self, nodes: Nodes) -> "Stopped":
        """Descend from zero on the graph without `nodes` (m,)."""
        return _stopped(remaining(self.graph, nodes), without_nodes(self.live, nodes))


def _projecting(form: Printed) -> Callable[[Stopped], PrintedModel]:
    return lambda model: PrintedModel(model.graph, model.spec, model.live, model.weights, form, None)


def _influence(model: Stopped) -> InfluenceModel:
    nodes = np.flatnonzero(model.graph.train_mask)
    rows = design(model.graph, model.spec, nodes)
    return InfluenceModel(model.graph, model.spec, model.live, model.weights, Affected.REPLACED, rows, nodes)


def _fisher(model: Stopped) -> FisherModel:
    return FisherModel(model.graph, model.spec, model.live, model.weights, 0.0, (0, 0))


LIVE, INFLUENCE, FISHER = "projection, all live nodes", "influence+, without noise", "fisher+, without noise"
#: What each method makes of the trained weights.
STARTED: Mapping[str, Callable[[Stopped], Trained]] = {
    "retraining": lambda model: model,
    LIVE: _projecting(Printed.LIVE),
    "projector, option 1 as printed": _projecting(Printed.OPTION_1),
    INFLUENCE: _influence,
    FISHER: _fisher,
}


def early(graph: Graph, unit: Unit) -> Cases:
    """Delete shares of the training nodes; then the shares that carry an injected channel."""
    for share in _CLOSE:
        yield f"closeness, {share:g}", _figures(graph, unit, share)[0]
    for share in _INJECTED:
        figures, trained, left = _figures(with_channel(graph, share, unit.seed), unit, share)
        norms = {"channel_norm_before": channel_norm(trained), "channel_norm_after": channel_norm(left)}
        yield f"injection, {share:g}", figures | norms


def _figures(graph: Graph, unit: Unit, share: float) -> tuple[Figures, Array, Array | None]:
    """Return the figures of one deletion, and the weights before and after it."""
    nodes = drawn(graph, share, unit.seed)
    trained, retrained = stopped(graph), _retrained(graph, nodes.tobytes())
    left = STARTED[unit.method](trained).unlearn(nodes)
    figures: Figures = {
        "nodes": nodes.size,
        "weights": relative(left.weights, retrained.weights, trained.weights),
        "accuracy_before": accuracy(trained.predict(), graph, graph.test_mask),
        "accuracy_after": accuracy(left.predict(), graph, graph.test_mask),
        "iterations": trained.iterations,
    }
    return figures, trained.weights, left.weights


@lru_cache(maxsize=3)
def stopped(graph: Graph) -> Stopped:
    """Train on `graph` at both rates, and return the one that classifies more validation nodes rightly."""
    return _stopped(graph, np.ones(graph.nodes, dtype=np.bool_))


@lru_cache(maxsize=len(_CLOSE) + len(_INJECTED))
def _retrained(graph: Graph, nodes: bytes) -> Stopped:
    return stopped(graph).unlearn(np.frombuffer(nodes, dtype=np.int64))


def _stopped(graph: Graph, live: NDArray[np.bool_]) -> Stopped:
    rows, validation = (np.flatnonzero(mask) for mask in (graph.train_mask, graph.val_mask))
    H, seen = representation(graph, SPEC, rows), representation(graph, SPEC, validation)
    signs = 2.0 * np.eye(graph.num_classes)[graph.labels[rows]] - 1.0
    found = [descended(H, signs, seen, graph.labels[validation], rate) for rate in _RATES]
    W, iterations, _ = max(found, key=lambda each: each[2])
    return Stopped(graph, SPEC, live, blocks_of(W, SPEC), iterations)


def descended(H: Array, signs: Array, seen: Array, labels: Nodes, rate: float) -> tuple[Array, int, float]:
    """Descend on rows H (m, p) with signs (m, C) until `seen` (v, p) are classified no better by `labels` (v,).

    Returns the weights (p, C) of the best iteration, its number and its share of right answers.
    """
    W, velocity = (np.zeros((H.shape[1], signs.shape[1])) for _ in range(2))
    best = W, 0, 0.0
    for iteration in range(1, _MOST + 1):
        slope = H.T @ (-signs * expit(-signs * (H @ W))) / len(H) + SPEC.regularization * W
        velocity = _MOMENTUM * velocity + slope
        W = W - rate * velocity
        right = float(((seen @ W).argmax(axis=1) == labels).mean())
        if right > best[2]:
            best = W, iteration, right
        elif iteration - best[1] >= _PATIENCE:
            break
    return best
