"""The paper's Theorem 2, on unlearning without modification: how the weights change without a misclassified node.

Its proof says that the dual variable of a misclassified node is 0. For logistic regression it is sigma(-y_i w x_i),
which is never 0, and exceeds 1/2 exactly where y_i w x_i < 0. So w = sum_i alpha_i y_i x_i / lambda depends on these
nodes most. The theorem's problem is one class against the rest on the rows of H, with lambda n in place of its lambda.
A node leaves the sum and nothing else changes, and Newton's method finds the new minimum.
"""

import numpy as np

from benchmarks.baselines.linear import design, fitted, stacked
from benchmarks.baselines.newton.logistic import OneAgainstRest, against_rest, chosen
from benchmarks.baselines.protocol import Array
from benchmarks.paper.setting import spec_of
from benchmarks.paper.units import Cases, Figures, Unit
from projector.graph.graph import Graph

#: Number of nodes of each kind left out, one by one.
_DRAWS = 5
#: Distance to the minimum, relative to |w|.
_TOLERANCE = 1e-10


def duals(graph: Graph, unit: Unit) -> Cases:
    """Yield dual variables of misclassified and correct nodes, and the change of w when one is left out."""
    spec = spec_of(unit.dataset)
    training = np.flatnonzero(graph.train_mask)
    H = design(graph, spec, training)
    W = stacked(fitted(graph, spec).weights)
    classes = against_rest(H, graph.labels[training], graph.num_classes, spec.regularization)
    alphas = np.stack([dual_variables(one, w) for one, w in zip(classes, W.T, strict=True)], axis=1)
    margins = np.stack([one.s * (H @ w) for one, w in zip(classes, W.T, strict=True)], axis=1)
    random = np.random.default_rng(unit.seed)
    for name, there in (("misclassified", margins < 0), ("classified", margins > 0)):
        pairs = np.argwhere(there)
        found: Figures = {"pairs": len(pairs)}
        if len(pairs):
            some = random.choice(pairs, min(_DRAWS, len(pairs)), replace=False)
            changes = [change_without(classes[c], W[:, c], i) for i, c in some.tolist()]
            i, c = pairs[int(alphas[there].argmin())].tolist()
            found |= {
                "smallest_dual": float(alphas[i, c]),
                "largest_dual": float(alphas[there].max()),
                "change_at_smallest": change_without(classes[c], W[:, c], i),
                "least_change": min(changes),
                "mean_change": float(np.mean(changes)),
            }
        yield name, found


def dual_variables(one: OneAgainstRest, w: Array) -> Array:
    """Return alpha (m,) of the minimum w (p,): w = sum_i alpha_i s_i h_i / (lambda m)."""
    return np.abs(one.slopes(w))


def change_without(one: OneAgainstRest, w: Array, node: int) -> float:
    """Return |w_u - w| / |w|, where w_u is the minimum without the row `node` and with the same weight of |w|^2."""
    rest = np.arange(one.s.size) != node
    left = OneAgainstRest(chosen(one.H, rest), one.s[rest], one.shift / rest.sum())
    return float(np.linalg.norm(left.minimum(w, np.zeros_like(w), _TOLERANCE) - w) / np.linalg.norm(w))
