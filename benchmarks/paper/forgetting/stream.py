"""Chien et al.'s 200 removals one by one on Cora at (1, 1e-4), of nodes, edges and features, against retraining."""

import time
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from benchmarks.baselines.linear import LinearModel, blocks_of, representation, train_linear
from benchmarks.baselines.newton.certified_removal import (
    CertifiedModel,
    CertifiedRemoval,
    standardised,
    trained_as_published,
)
from benchmarks.baselines.protocol import accuracy
from benchmarks.paper.setting import CERTIFIED_LAMBDA
from benchmarks.paper.units import Cases, Unit
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind, PropagationKind

_REMOVED = 200


def stream(graph: Graph, unit: Unit) -> Cases:
    """Remove 200 training nodes, 200 edges and 200 nodes' features, in random order, each by a certified step."""
    prepared = standardised(graph)
    spec = ModelSpec(loss=LossKind.OVR, regularization=CERTIFIED_LAMBDA, propagation=PropagationKind.ROW)
    training, random = np.flatnonzero(graph.train_mask), np.random.default_rng(unit.seed)
    nodes = random.permutation(training)[: min(_REMOVED, training.size // 2)].tolist()
    pairs = np.stack(graph.adjacency.nonzero(), axis=1)
    pairs = random.permutation(pairs[pairs[:, 0] < pairs[:, 1]])
    settings = CertifiedRemoval(spec, seed=unit.seed)
    fitted = settings.fit(prepared)
    before = accuracy(fitted.predict(), graph, graph.test_mask)
    for kind, removals in (("nodes", nodes), ("edges", pairs[: len(nodes)].tolist()), ("features", nodes)):
        began = time.process_time()
        left = reduce(_REMOVE[kind], removals, fitted)
        spent = time.process_time() - began
        began = time.process_time()
        retrained = train_linear(left.graph, spec)
        once = time.process_time() - began
        rows = representation(left.graph, spec, np.flatnonzero(left.graph.train_mask))
        labels = graph.labels[left.graph.train_mask]
        began = time.process_time()
        published = trained_as_published(rows, labels, graph.num_classes, CERTIFIED_LAMBDA)
        theirs = time.process_time() - began
        weights = blocks_of(published.astype(np.float64), spec)
        answers = LinearModel(left.graph, spec, left.live, weights).predict()
        yield (
            kind,
            {
                "removals": len(removals),
                "accuracy_before": before,
                "accuracy_after": accuracy(left.predict(), graph, graph.test_mask),
                "accuracy_anew": accuracy(settings.fit(left.graph).predict(), graph, graph.test_mask),
                "accuracy_retrained": accuracy(retrained.predict(), graph, graph.test_mask),
                "retrainings": left.retrainings,
                "seconds": spent,
                "seconds_of_one_retraining": once,
                "seconds_of_one_retraining_as_theirs": theirs,
                "accuracy_retrained_as_theirs": accuracy(answers, graph, graph.test_mask),
                "epsilon": left.epsilon,
                # The mean over classes of the gradient since the last training; their code compares the sums.
                "budget_spent": float(left.residual_bounds.mean()),
                "budget": settings.budget,
            },
        )


def _without_node(model: CertifiedModel, node: int) -> CertifiedModel:
    return model.unlearn(np.array([node]))


def _without_edge(model: CertifiedModel, edge: list[int]) -> CertifiedModel:
    return model.unlearn_edge(*edge)


_REMOVE: dict[str, Callable[[CertifiedModel, Any], CertifiedModel]] = {
    "nodes": _without_node,
    "edges": _without_edge,
    "features": CertifiedModel.unlearn_features,
}
