"""The comparison of the authors' own Figure 3, with each step on its own: a retraining by another loss.

Their code (CongWeilin/Projector, cora_pubmed/exp2_graph_newton.py before commit 242b8ad) trains one class against the
rest with lambda, and measures the distance to a retraining by cross-entropy without lambda. Training and retraining are
on rows that are not propagated, and the Newton steps on propagated ones. Their affected nodes are the training nodes
that a walk of two steps reaches from a deleted one, and leave with it.
"""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from scipy.special import expit, softmax

from benchmarks.baselines.linear import propagation
from benchmarks.baselines.protocol import Array, Nodes
from benchmarks.paper.units import Cases, Unit
from projector import ModelSpec
from projector.graph.graph import Graph

METHOD = "the authors' comparison"
#: What is compared with what, by the names of the cases.
PAIRS = {
    "nothing deleted, to cross-entropy": ("no node deleted, no step taken", "by cross-entropy"),
    "influence+, to cross-entropy": ("Influence+, one node deleted", "by cross-entropy, as in their code"),
    "influence+, to its own loss": ("Influence+, one node deleted", "by its own loss, without the same nodes"),
    "fisher+, to cross-entropy": ("Fisher+, one node deleted", "by cross-entropy, as in their code"),
    "fisher+, to its own loss": ("Fisher+, one node deleted", "by its own loss, without the same nodes"),
}
#: Lambda of the Newton steps in the authors' exp2_run.bash.
LAMBDAS = {"cora": 1e-2, "citeseer": 1e-3, "pubmed": 1e-2}
#: For graphs that they do not have.
_OTHER_LAMBDA = 1e-2
_RATE, _MOMENTUM, _PATIENCE = 1.0, 0.9, 200
#: The gradient of a mean loss by logits (m, C) of labels as one-hot rows (m, C).
Slopes = Callable[[Array, Array], Array]


def against_rest(logits: Array, hot: Array) -> Array:
    """Return the slopes of one class against the rest, summed over classes."""
    signs = 2 * hot - 1
    slopes: Array = -signs * expit(-signs * logits)
    return slopes


def cross_entropy(logits: Array, hot: Array) -> Array:
    """Return the slopes of the softmax's cross-entropy."""
    slopes: Array = softmax(logits, axis=1) - hot
    return slopes


def descended(
    X: sp.csr_array, hot: Array, slopes: Slopes, weight: float, right: Callable[[Array], float], steps: int | None
) -> tuple[Array, int]:
    """Descend from zero for `steps`, or until `right` has not risen for 200; return the weights and their step."""
    W, velocity = (np.zeros((X.shape[1], hot.shape[1])) for _ in range(2))
    best, most, taken = (W, 0), 0.0, 0
    while taken < steps if steps else taken - best[1] <= _PATIENCE:
        share = 0.0 if steps else right(W)
        velocity = _MOMENTUM * velocity + X.T @ slopes(X @ W, hot) / hot.shape[0] + weight * W
        W, taken = W - _RATE * velocity, taken + 1
        if share > most:  # of the weights before the step, as in the authors' code
            most, best = share, (W, taken)
    return (W, taken) if steps else best


def two_losses(graph: Graph, unit: Unit) -> Cases:
    """Yield the distance for each of `PAIRS` after the deletion of one training node, which the seed draws."""
    for name, distance in distances(graph, LAMBDAS.get(unit.dataset, _OTHER_LAMBDA), unit.seed).items():
        yield name, {"weights": distance}


def distances(graph: Graph, weight: float, seed: int) -> dict[str, float]:
    """Return |W - W_u| / |W_0| for each of `PAIRS`."""
    rows = sp.csr_array(graph.features)
    P = propagation(graph, ModelSpec())
    H = np.asarray((P @ (P @ rows)).todense())
    training, validation = np.flatnonzero(graph.train_mask), np.flatnonzero(graph.val_mask)
    hot = np.eye(graph.num_classes)[graph.labels]

    def right(W: Array) -> float:
        return float(((rows[validation] @ W).argmax(axis=1) == graph.labels[validation]).mean())

    def trained(nodes: Nodes, slopes: Slopes, weight: float, steps: int | None = None) -> tuple[Array, int]:
        return descended(rows[nodes], hot[nodes], slopes, weight, right, steps)

    start, steps = trained(training, against_rest, weight)
    deleted = np.random.default_rng(seed).choice(training, 1)
    reached = np.flatnonzero((graph.adjacency @ graph.adjacency)[deleted].sum(axis=0))
    affected = np.intersect1d(reached, training)
    kept = np.setdiff1d(training, affected)

    def stepped(nodes: Nodes, sign: int) -> Array:
        moved = start.copy()
        gradient = H[nodes].T @ against_rest(H[nodes] @ start, hot[nodes]) + weight * nodes.size * start
        chances = expit(H[kept] @ start)
        for c in range(graph.num_classes):
            curvature = (chances[:, c] * (1 - chances[:, c]))[:, None]
            hessian = H[kept].T @ (curvature * H[kept]) + weight * kept.size * np.eye(len(start))
            moved[:, c] += sign * np.linalg.solve(hessian, gradient[:, c])
        return moved

    other, _ = trained(kept, cross_entropy, 0.0, steps)
    same, _ = trained(kept, against_rest, weight, steps)
    unchanged, _ = trained(training, cross_entropy, 0.0, steps)
    influence, fisher = stepped(affected, 1), stepped(kept, -1)
    pairs = {
        "nothing deleted, to cross-entropy": (start, unchanged),
        "influence+, to cross-entropy": (influence, other),
        "influence+, to its own loss": (influence, same),
        "fisher+, to cross-entropy": (fisher, other),
        "fisher+, to its own loss": (fisher, same),
    }
    size = np.linalg.norm(start)
    return {name: float(np.linalg.norm(one - goal) / size) for name, (one, goal) in pairs.items()}
