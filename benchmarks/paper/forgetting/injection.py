"""The feature injection test (the paper's Table 1), also at other lambdas.

A share of the training nodes gets a binary feature and a class of its own. The model is trained, and exactly these
nodes are deleted. Any remaining weight in the feature's rows of W was learned from them alone.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.protocol import LAMBDAS, Array, BaselineError, accuracy
from benchmarks.paper.setting import drawn, forgotten, lethe_seconds, spec_of
from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.forgetting.injection import inject_channel
from projector.graph.graph import Graph


def injection(graph: Graph, unit: Unit) -> Cases:
    """Run the feature injection test with 5 and 10 % of the training nodes."""
    for share in (0.05, 0.10):
        yield f"{share:g}", _injected(graph, unit, spec_of(unit.dataset, unit.method), share)


def regularization(graph: Graph, unit: Unit) -> Cases:
    """Run the test with 5 % for every lambda a method could use; empty if training does not converge."""
    for each in LAMBDAS:
        try:
            found = _injected(graph, unit, replace(spec_of(unit.dataset), regularization=each), 0.05)
        except BaselineError:
            # At a small lambda, rounding keeps influence and certified removal with noise from their minimum.
            found = {}
        yield f"{each:g}", found


def _injected(graph: Graph, unit: Unit, spec: ModelSpec, share: float) -> Figures:
    nodes = drawn(graph, share, unit.seed)
    injected = with_channel(graph, share, unit.seed)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(injected)
    left, seconds = forgotten(fitted, nodes)
    before, after = fitted.predict(), left.predict()
    return {
        "nodes": nodes.size,
        "channel_norm_before": channel_norm(fitted.weights),
        "channel_norm_after": channel_norm(left.weights),
        "accuracy_before": accuracy(before, injected, graph.test_mask),
        "accuracy_after": accuracy(after, injected, graph.test_mask),
        "validation_before": accuracy(before, injected, graph.val_mask),
        "validation_after": accuracy(after, injected, graph.val_mask),
        "seconds": seconds,
        "times_lethe": seconds / lethe_seconds(injected, spec, nodes),
    }


@lru_cache(maxsize=2)
def with_channel(graph: Graph, share: float, seed: int) -> Graph:
    """Return `graph` with a feature and a class that mark the drawn nodes."""
    nodes = drawn(graph, share, seed)
    return inject_channel(graph, [graph.node_ids[node] for node in nodes.tolist()], extra_class=True)


def channel_norm(weights: Array | None) -> float | None:
    """Return the norm of the last feature's row of W, summed over blocks; None for a model without W."""
    return None if weights is None else float(np.linalg.norm(weights[:, -1], axis=1).sum())
