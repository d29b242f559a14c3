"""Reconstruct a deleted node's features from two versions: cosines to the true ones, and rate of first ranks.

In a batch, the nearest deleted node counts. The chance levels are another node's row, the public rows' mean, and a
random candidate. The regression is left out on Citeseer, which has fewer public nodes than features, and on Coauthor
CS, for want of time.
"""

import numpy as np

from benchmarks.attacks.ranking import first
from benchmarks.attacks.reconstruction import by_likelihood, by_row, change_of_weights, deleted_row, nearest
from benchmarks.baselines.protocol import Array
from benchmarks.paper.inference.versions import ROUNDINGS, Pair, by_pair, victim_of
from benchmarks.paper.units import Cases, Figures, Unit
from projector.graph.graph import Graph, feature_rows

#: Models of more columns have no regression: it factorises their Gram matrix for each pair of versions.
_MOST_REGRESSED_COLUMNS = 3_000


def reconstruction(graph: Graph, unit: Unit) -> Cases:
    """Delete thirty nodes one at a time, then five batches of ten."""
    victim = victim_of(graph, unit)
    known = victim.known
    mean, random = feature_rows(graph.features, known.asked).mean(axis=0), np.random.default_rng(unit.seed)

    def of_row(name: str, row: Array, pair: Pair) -> Figures:
        true = np.isin(known.candidates, pair.nodes)
        return {
            f"{name}_cosine": nearest(row, feature_rows(graph.features, pair.nodes)),
            f"{name}_propagated": nearest(row, known.H[pair.nodes]),
            f"{name}_first": first(by_row(row, known), true),
        }

    def figures(pair: Pair) -> Figures:
        X, true = feature_rows(graph.features, pair.nodes), np.isin(known.candidates, pair.nodes)
        other = random.choice(known.asked, 1)
        found: Figures = {
            "candidates": known.candidates.size,
            "nodes": pair.nodes.size,
            "chance_first": float(true.mean()),
            "mean_cosine": nearest(mean, X),
            "mean_propagated": nearest(known.H[known.asked].mean(axis=0), known.H[pair.nodes]),
            "other_cosine": nearest(feature_rows(graph.features, other)[0], X),
            "other_propagated": nearest(known.H[other[0]], known.H[pair.nodes]),
        }
        if pair.before.weights is not None and pair.after.weights is not None:
            row = deleted_row(pair.after.weights - pair.before.weights, known, pair.nodes.size)
            found |= of_row("weights", row, pair)
        for rounding, decimals in ROUNDINGS.items():
            versions = pair.before.rounded(decimals), pair.after.rounded(decimals)
            if known.H.shape[1] <= _MOST_REGRESSED_COLUMNS:
                row = deleted_row(change_of_weights(*versions, known), known, pair.nodes.size)
                found |= of_row(f"regression_{rounding}", row, pair)
            likely = by_likelihood(*versions, known)
            found[f"likelihood_{rounding}_first"] = first(likely, true)
        return found

    for kind, deletions in (("single", victim.single), ("batch", victim.batches)):
        for name, averages in by_pair(graph, unit, deletions, figures).items():
            yield f"{kind}, {name}", {"deletions": len(deletions), **averages}
