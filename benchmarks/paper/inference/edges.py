"""Detect deleted edges among pairs that never were edges and edges that remain.

One in a hundred edges is deleted in one request. The methods are those that can delete edges: the projection, which
leaves the weights as they are when no node is deleted, the repair, and retraining. An area under the curve of 0.5 is
chance. For its trend, the attacker has the remaining edges. Other pairs are drawn at random, equally many of each kind.
"""

from functools import lru_cache, partial

import numpy as np
import scipy.sparse as sp

from benchmarks.attacks.edges import by_change, by_similarity, by_trend
from benchmarks.attacks.ranking import auc
from benchmarks.baselines.lethe import Lethe
from benchmarks.baselines.linear import fitted, train_linear
from benchmarks.baselines.protocol import Array, Nodes
from benchmarks.paper.inference.versions import AUDITED, ROUNDINGS, SEEN, Version
from benchmarks.paper.setting import SOFTMAX, spec_of
from benchmarks.paper.units import Cases, Figures, Unit
from projector import ModelSpec
from projector.graph.graph import Graph

_SHARE = 0.01


def edges(graph: Graph, unit: Unit) -> Cases:
    """Compare before and after. For the score by change, also compare after with the model retrained without these
    edges.
    """
    spec, method = spec_of(unit.dataset, unit.method), unit.method.removesuffix(SOFTMAX)
    deleted, kept, never = drawn_pairs(graph, unit.seed)
    left = graph.without_edges(deleted)
    anew = Version(_anew(graph, spec, unit.seed), None)
    if method == "retraining":
        before, after = Version(fitted(graph, spec).predict(), None), anew
    else:
        model = Lethe(spec, repair=False).fit(graph).model
        before = Version(model.predict(), None)
        forgotten, _ = model.forget(edges=deleted, repair=method == "lethe, projection and repair")
        after = Version(forgotten.predict(), None)
    sizes: Figures = {"edges": len(deleted), "chance": 0.5}
    seen, audited = dict(sizes), dict(sizes)
    for rounding, decimals in ROUNDINGS.items():
        old, now, exact = (each.rounded(decimals) for each in (before, after, anew))
        for found, name, scores in (
            (seen, "change", partial(by_change, old, now)),
            (seen, "trend", partial(by_trend, now, left.adjacency)),
            (seen, "similarity", partial(by_similarity, now)),
            (audited, "change", partial(by_change, now, exact)),
        ):
            found[f"{name}_{rounding}_kept"] = auc(scores(deleted), scores(kept))
            found[f"{name}_{rounding}_never"] = auc(scores(deleted), scores(never))
    yield SEEN, seen
    yield AUDITED, audited


def drawn_pairs(graph: Graph, seed: int) -> tuple[Nodes, Nodes, Nodes]:
    """Draw edges to delete, as many that stay, and as many pairs that never were edges, (k, 2) each, ends ascending."""
    random = np.random.default_rng(seed)
    every = np.stack(sp.triu(graph.adjacency, format="coo").coords, axis=1).astype(np.int64)
    size = max(1, round(_SHARE * len(every)))
    chosen = every[random.permutation(len(every))[: 2 * size]]
    # In sparse graphs, enough of these pairs are not edges.
    pairs = np.unique(np.sort(random.integers(graph.nodes, size=(6 * size + 100, 2)), axis=1), axis=0)
    apart = np.asarray(graph.adjacency[pairs[:, 0], pairs[:, 1]]).ravel() == 0
    never = random.permutation(pairs[apart & (pairs[:, 0] < pairs[:, 1])])[:size]
    return chosen[:size], chosen[size:], never


@lru_cache(maxsize=1)
def _anew(graph: Graph, spec: ModelSpec, seed: int) -> Array:
    return train_linear(graph.without_edges(drawn_pairs(graph, seed)[0]), spec).predict()
