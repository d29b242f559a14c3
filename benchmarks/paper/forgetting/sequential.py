"""Consecutive requests compared with a single request for all their nodes.

The paper deletes once, but a service receives requests continually. This experiment compares the result and the time of
twenty requests with those of one. It shows whether measurements of single deletions apply to a service.
"""

import time

import numpy as np

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.protocol import Array
from benchmarks.paper.forgetting.closeness import retrained_without
from benchmarks.paper.setting import drawn, forgotten, spec_of
from benchmarks.paper.units import Cases, Unit
from projector.graph.graph import Graph

#: Deleted share of the training nodes.
_SHARES = (0.01, 0.05, 0.10)
#: Maximum number of requests that the nodes are split into.
_REQUESTS = 20


def sequential(graph: Graph, unit: Unit) -> Cases:
    """Delete 1, 5 and 10 % of the training nodes in 20 requests and in one, and measure the distances."""
    spec = spec_of(unit.dataset)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(graph)
    assert fitted.weights is not None
    norm = float(np.linalg.norm(fitted.weights))

    def away(one: Array | None, other: Array | None) -> float:
        assert one is not None
        assert other is not None
        return float(np.linalg.norm(one - other)) / norm

    for share in _SHARES:
        nodes = drawn(graph, share, unit.seed)
        at_once, once_s = forgotten(fitted, nodes)
        shuffled = np.random.default_rng(unit.seed).permutation(nodes)
        requests = np.array_split(shuffled, min(_REQUESTS, nodes.size))
        left, began = fitted, time.process_time()
        for each in requests:
            left = left.unlearn(np.sort(each))
        answers = left.predict()
        spent = time.process_time() - began
        retrained = retrained_without(graph, "retraining", spec, share, unit.seed)
        apart = np.linalg.norm(answers - at_once.predict(), axis=1)[graph.test_mask]
        yield (
            f"{share:g}",
            {
                "nodes": nodes.size,
                "requests": len(requests),
                "apart": away(left.weights, at_once.weights),
                "apart_test": float(apart.mean()),
                "one_by_one": away(left.weights, retrained.weights),
                "at_once": away(at_once.weights, retrained.weights),
                "seconds": spent,
                "seconds_at_once": once_s,
            },
        )
