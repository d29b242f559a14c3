"""Closeness to retraining (the paper's Figure 3).

A share of the training nodes is deleted. The figures are |W_u - W_p|_F / |W|_F, and the mean over deleted, remaining
and test nodes of |p_p - p_u|_2. Both models answer on the whole graph (for deleted nodes, on the graph before). u is
retraining with the same lambda, or of the same network. W is the optimum before the deletion, for every method: weights
trained with noise are longer, and the mean of shards is shorter.
"""

from functools import lru_cache

import numpy as np

from benchmarks.baselines.catalogue import (
    DESCENT_RETRAINING,
    EDITOR_RETRAINING,
    SQUARED_RETRAINING,
    build,
    is_squared,
)
from benchmarks.baselines.nonlinear import Kind
from benchmarks.baselines.protocol import Array, Nodes, Trained
from benchmarks.paper.setting import drawn, forgotten, lethe_seconds, spec_of
from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.graph.graph import Graph

#: Deleted share of the training nodes.
_SHARES = (0.01, 0.02, 0.05, 0.10)


def closeness(graph: Graph, unit: Unit) -> Cases:
    """Distance to retraining with 1, 2, 5 and 10 % of the training nodes deleted."""
    spec = spec_of(unit.dataset, unit.method)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(graph)
    optimum = retraining_of(unit.method)
    for share in _SHARES:
        nodes = drawn(graph, share, unit.seed)
        left, seconds = forgotten(fitted, nodes)
        retrained = retrained_without(graph, optimum, spec, share, unit.seed)
        yield (
            f"{share:g}",
            {
                "nodes": nodes.size,
                "weights": relative(
                    left.weights, retrained.weights, trained_on(graph, optimum, spec, unit.seed).weights
                ),
                **answers_apart(left, retrained, graph, nodes),
                "seconds": seconds,
                "times_lethe": seconds / lethe_seconds(graph, spec, nodes),
            },
        )


def retraining_of(method: str) -> str:
    """Return the retraining method that `method` is compared with. For a fine-tuned ridge regression, it is the
    regression.
    """
    if method.startswith("deltagrad"):
        return DESCENT_RETRAINING
    if is_squared(method):
        return EDITOR_RETRAINING if method.startswith("graph editor") else SQUARED_RETRAINING
    network = next((word for word in method.replace(",", "").split() if word in set(Kind)), None)
    return network or ("retraining, with diffusion" if "diffusion" in method else "retraining")


@lru_cache(maxsize=len(_SHARES))
def retrained_without(graph: Graph, method: str, spec: ModelSpec, share: float, seed: int) -> Trained:
    """Retrain by `method` without the nodes `drawn`. Cached for consecutive measurements."""
    return trained_on(graph, method, spec, seed).unlearn(drawn(graph, share, seed))


@lru_cache(maxsize=1)
def trained_on(graph: Graph, method: str, spec: ModelSpec, seed: int) -> Trained:
    """Train by `method` before any deletion. Cached for consecutive measurements."""
    return build(method, spec, seed, spec.regularization).fit(graph)


def relative(left: Array | None, retrained: Array | None, before: Array | None) -> float | None:
    """Return |left - retrained| / |before| in the Frobenius norm; None if one has no weights."""
    if left is None or retrained is None or before is None:
        return None
    return float(np.linalg.norm(left - retrained) / np.linalg.norm(before))


def answers_apart(left: Trained, retrained: Trained, graph: Graph, nodes: Nodes) -> Figures:
    """Return the mean distance of two models' answers about deleted, remaining and test nodes, without `nodes` (m,)."""
    kept = graph.train_mask.copy()
    kept[nodes] = False
    there = left.predict(), retrained.predict()
    return {
        # Deleted nodes are missing from the remaining graph, so both models answer on the graph before.
        "deleted": _apart(left.predict_on(graph), retrained.predict_on(graph), nodes),
        "remaining": _apart(*there, np.flatnonzero(kept)),
        "test": _apart(*there, np.flatnonzero(graph.test_mask)),
    }


def _apart(left: Array | None, retrained: Array | None, nodes: Nodes) -> float | None:
    if left is None or retrained is None:
        return None
    return float(np.linalg.norm(left[nodes] - retrained[nodes], axis=1).mean())
