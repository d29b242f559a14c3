"""Attackers on a graph small enough to evaluate every candidate's effect one by one."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.attacks.knowledge import Known
from benchmarks.baselines.linear import LinearModel
from benchmarks.baselines.retraining import Retraining
from benchmarks.paper.inference.versions import leaking
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind
from tests.support.mathematics.baselines import OVR, small_graph

SPECS = {
    loss: replace(OVR, loss=loss, regularization=1e-3) for loss in (LossKind.OVR, LossKind.SOFTMAX, LossKind.SQUARED)
}


def attacked(spec: ModelSpec, nodes: int = 60, features: int = 5) -> tuple[Graph, Known]:
    """Return a sparse graph in which half of the training nodes are candidates.

    In a dense one, a deletion mainly changes its neighbours' rows, which attackers do not follow.
    """
    graph = small_graph(nodes=nodes, features=features)
    pairs = np.stack(graph.adjacency.nonzero(), axis=1)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    graph = graph.without_edges(pairs[np.random.default_rng(0).random(len(pairs)) > 2 * nodes / len(pairs)])
    return graph, Known.of(graph, spec, np.flatnonzero(graph.train_mask)[::2])


def leaked(graph: Graph, spec: ModelSpec, node: int) -> tuple[LinearModel, LinearModel]:
    """Return retraining without `node`, first with the old weights of its class, then without that leak."""
    fitted = Retraining(spec).fit(graph)
    anew = fitted.unlearn(np.array([node]))
    return leaking(fitted, anew, int(graph.labels[node])), anew


def probability(logits: NDArray[np.float64], spec: ModelSpec) -> NDArray[np.float64]:
    """Return the p in the loss' derivative p - y by the logits."""
    if spec.loss is LossKind.SQUARED:
        return logits
    raised = np.exp(logits)
    return raised / raised.sum(axis=1, keepdims=True) if spec.loss is LossKind.SOFTMAX else raised / (1 + raised)


def predictions(logits: NDArray[np.float64], spec: ModelSpec) -> NDArray[np.float64]:
    """Return the predicted probabilities."""
    found = np.exp(logits / 0.2) if spec.loss is LossKind.SQUARED else probability(logits, spec)
    return found / found.sum(axis=1, keepdims=True)


def dense_hessian(
    H: NDArray[np.float64], W: NDArray[np.float64], spec: ModelSpec, *, coupled: bool = True
) -> NDArray[np.float64]:
    """Return the Hessian of Eq. 1 over the rows H (m, p), (p C, p C); unless `coupled`, without coupling between
    classes.
    """
    whole = spec.regularization * np.eye(W.size)
    for h, p in zip(H, probability(H @ W, spec), strict=True):
        if spec.loss is LossKind.SQUARED:
            whole += np.kron(np.outer(h, h), np.eye(len(p))) / len(H)
            continue
        off = np.outer(p, p) if spec.loss is LossKind.SOFTMAX and coupled else np.diag(p * p)
        whole += np.kron(np.outer(h, h), np.diag(p) - off) / len(H)
    return whole
