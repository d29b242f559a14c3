"""Closeness to retraining (the paper's Figure 3).

A share of the training nodes is deleted. |W_u - W_p|_F / |W|_F, and the mean over deleted, remaining and test nodes of
|p_p - p_u|_2, both models answering on the whole graph (that of before for deleted nodes), where u is retraining with
the same lambda.
"""

from functools import lru_cache

import numpy as np

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.linear import logits, probabilities
from benchmarks.baselines.retraining import Retrained, Retraining
from benchmarks.paper.setting import drawn, forgotten, lethe_seconds, spec_of
from benchmarks.paper.units import Cases, Unit
from projector import ModelSpec
from projector.graph.graph import Graph

#: Of the training nodes, deleted.
_SHARES = (0.01, 0.02, 0.05, 0.10)


def closeness(graph: Graph, unit: Unit) -> Cases:
    """Distance to retraining with 1, 2, 5 and 10 % of the training nodes deleted; of a linear method."""
    spec = spec_of(unit.dataset, unit.method)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(graph)
    for share in _SHARES:
        nodes = drawn(graph, share, unit.seed)
        left, seconds = forgotten(fitted, nodes)
        retrained = retrained_without(graph, spec, share, unit.seed)
        assert fitted.weights is not None
        assert left.weights is not None
        kept = graph.train_mask.copy()
        kept[nodes] = False
        there = left.predict(), retrained.predict()
        # Deleted nodes have no place in the graph any more: both models answer on that of before.
        gone = [probabilities(logits(graph, spec, each), spec.loss) for each in (left.weights, retrained.weights)]
        yield (
            f"{share:g}",
            {
                "nodes": nodes.size,
                "weights": float(np.linalg.norm(left.weights - retrained.weights) / np.linalg.norm(fitted.weights)),
                "deleted": float(np.linalg.norm(gone[0][nodes] - gone[1][nodes], axis=1).mean()),
                "remaining": float(np.linalg.norm(there[0][kept] - there[1][kept], axis=1).mean()),
                "test": float(
                    np.linalg.norm(there[0][graph.test_mask] - there[1][graph.test_mask], axis=1).mean(),
                ),
                "seconds": seconds,
                "times_lethe": seconds / lethe_seconds(graph, spec, nodes),
            },
        )


@lru_cache(maxsize=len(_SHARES))
def retrained_without(graph: Graph, spec: ModelSpec, share: float, seed: int) -> Retrained:
    """Trained from zero without the nodes `drawn`; kept for what is measured in a row."""
    return Retraining(spec).fit(graph).unlearn(drawn(graph, share, seed))
