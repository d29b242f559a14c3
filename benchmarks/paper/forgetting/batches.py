"""One node and a batch of 64 deleted, by exact and approximate methods: what the headline of the report compares.

The figures are the distance of the weights to retraining, as in `closeness`, test accuracies, seconds and memory.
Memory is the peak of a first run, which does not count in the times. These are medians of three more, since one node
takes milliseconds; runs of more than ten seconds are not repeated.
"""

from functools import lru_cache, partial

import numpy as np

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.protocol import Nodes, Trained, accuracy
from benchmarks.paper.forgetting.closeness import relative, retraining_of, trained_on
from benchmarks.paper.memory import peak
from benchmarks.paper.setting import forgotten, lethe_seconds, spec_of, timed
from benchmarks.paper.units import Cases, Unit
from projector import ModelSpec
from projector.graph.graph import Graph

#: Deleted training nodes.
SIZES = (1, 64)


def batches(graph: Graph, unit: Unit) -> Cases:
    """Delete 1 and 64 training nodes, or half of them where there are fewer."""
    spec = spec_of(unit.dataset, unit.method)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(graph)
    optimum = retraining_of(unit.method)
    before = trained_on(graph, optimum, spec, unit.seed)
    for size in SIZES:
        nodes = _drawn(graph, size, unit.seed)
        run = partial(forgotten, fitted, nodes)
        _, mebibytes = peak(run)
        left, seconds = timed(run)
        retrained = _retrained_without(graph, optimum, spec, size, unit.seed)
        yield (
            str(size),
            {
                "nodes": nodes.size,
                "weights": relative(left.weights, retrained.weights, before.weights),
                "accuracy_before": accuracy(fitted.predict(), graph, graph.test_mask),
                "accuracy_after": accuracy(left.predict(), graph, graph.test_mask),
                "accuracy_retrained": accuracy(retrained.predict(), graph, graph.test_mask),
                "seconds": seconds,
                "peak_mib": mebibytes,
                "times_lethe": seconds / lethe_seconds(graph, spec, nodes),
            },
        )


def _drawn(graph: Graph, size: int, seed: int) -> Nodes:
    training = np.flatnonzero(graph.train_mask)
    return np.sort(np.random.default_rng(seed).choice(training, size=min(size, training.size // 2), replace=False))


@lru_cache(maxsize=len(SIZES))
def _retrained_without(graph: Graph, method: str, spec: ModelSpec, size: int, seed: int) -> Trained:
    return trained_on(graph, method, spec, seed).unlearn(_drawn(graph, size, seed))
