"""Reconstruct a deleted node's features from two versions of a linear model, after Bertran et al. (2024).

"Reconstruction attacks on machine unlearning: simple models are vulnerable". Leaving out k of m training rows moves the
optimum so that (m - k) H (W' - W) - k lambda W is about the gradient of the lost rows' losses, sum_v h_v s_v^T. H is
the Hessian on the remaining rows, estimated from public rows. The relation is exact for squares and the true H, if the
ridge is lambda times the number of rows. (GraphEditor's does not change with a deletion; the term with lambda is small
there.) The largest singular vector of the gradient is the row. The paper has one output and a row of features. Here C
outputs agree on the row, which is the deleted node's row of P^L X, so its neighbours' features cannot be separated from
its own.

* From weights: directly by this relation.
* From answers, by regression: answers give each public node's logits up to a shift (a softmax) or a scale of the
  sigmoids (one class against the rest). Regression on the public rows gives the change of the weights. Public nodes
  near the deleted one now have other rows, unknown to the attacker, so it leaves out the answers that change most.
* From rounded answers, by a few steps: least squares of the answers themselves, started at no change and stopped after
  a few steps of conjugate gradients, as noise requires (ours). `rehearsal` learns the number of steps.
* From where answers changed: the mean of the public rows, weighted by the change of their answers. It needs no weights
  and describes the deleted node's neighbourhood (ours).
* From answers, by likelihood: among candidate rows with unknown labels, the one whose deletion explains the change
  best. It needs no inversion, and so withstands rounding (ours).

The attacks detect a leak in the weights if `after` is the retrained model. From weights, the leak is the row in the
columns that were not updated.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from benchmarks.attacks.black_box import BlackBox
from benchmarks.attacks.knowledge import Known, clipped, log_slopes
from benchmarks.baselines.protocol import Array

#: Share of the public nodes used in the regression: those whose answers change least.
_KEPT = 0.9
#: Added to the rows' Gram matrix, relative to its mean diagonal.
_RIDGE = 1e-10
#: Relative tolerance and step limit of the regression's conjugate gradients. An attacker needs no more digits.
_TOLERANCE, _MOST_STEPS = 1e-6, 50


def deleted_row(change: Array, known: Known, count: int = 1) -> Array:
    """Return the main direction (p,) of the rows of `count` deleted nodes, from the change of the weights (p, C).

    Its sign is that of the public rows' mean.
    """
    H, m = known.hessian, known.training
    gradient = (m - count) * H.times(change) - count * H.regularization * known.W
    if not change.any():
        return np.zeros(len(change))
    row = np.linalg.svd(gradient, full_matrices=False).U[:, 0]
    return np.asarray(row * (np.sign(row @ known.H[known.asked].mean(axis=0)) or 1.0))


def change_of_weights(before: BlackBox, after: BlackBox, known: Known) -> Array:
    """Estimate the change of the weights (p, C), to first order, by regressing public nodes' answers on their rows.

    From a softmax's answers, up to a part common to all columns. At the optimum of its cross-entropy that part is zero.
    For squares it is not, but dropping it keeps the direction of the deleted row.
    """
    size = np.abs(known.changes(before, after)).max(axis=1)
    kept = known.asked[size <= np.quantile(size, _KEPT)]
    kept = kept[after(kept).any(axis=1)]
    rows = known.H[kept]
    slopes = log_slopes(rows @ known.W, known.temperature)
    seen = (_logarithms(after(kept)) - _logarithms(before(kept))) / slopes
    gram = rows.T @ rows
    gram[np.diag_indices_from(gram)] += _RIDGE * gram.trace() / len(gram)
    factor = cho_factor(gram)
    # log p is known up to an unknown multiple of 1 / slopes in each node's logits. So the least squares use the part
    # orthogonal to it, by conjugate gradients. For a softmax it is the same for all nodes, and they take one step.
    free = 1 / slopes
    free /= np.linalg.norm(free, axis=1, keepdims=True)

    def across(z: Array) -> Array:
        return np.asarray(z - free * (free * z).sum(axis=1, keepdims=True))

    *_, change = _solutions(
        lambda V: rows.T @ across(rows @ V), lambda residual: cho_solve(factor, residual), rows.T @ across(seen)
    )
    return change


def _solutions(product: Callable[[Array], Array], solve: Callable[[Array], Array], right: Array) -> Iterator[Array]:
    """Yield solutions (p, C) of `product(V) = right` after each step of conjugate gradients, starting with zero.

    Preconditioned by `solve`. Stops after `_MOST_STEPS`, or when the residual is small.
    """
    change, residual = np.zeros_like(right), right
    goal = _TOLERANCE * np.linalg.norm(right)
    direction = solved = solve(residual)
    decrease = float((residual * solved).sum())
    yield change
    for _ in range(_MOST_STEPS):
        if np.linalg.norm(residual) <= goal:
            return
        image = product(direction)
        length = decrease / float((direction * image).sum())
        change, residual = change + length * direction, residual - length * image
        yield change
        solved = solve(residual)
        previous, decrease = decrease, float((residual * solved).sum())
        direction = solved + decrease / previous * direction


def rows_by_steps(before: BlackBox, after: BlackBox, known: Known, count: int, choices: Sequence[int]) -> Array:
    """Guess the main row of `count` deleted nodes for each number of steps in `choices`, (len(choices), p)."""
    rows = known.H[known.asked]
    linear = known.linearised
    solutions = _solutions(
        lambda V: rows.T @ linear.back(linear.forth(rows @ V)),
        known.hessian.solve,
        rows.T @ linear.back(clipped(known.changes(before, after))),
    )
    reached = list(islice(solutions, max(choices) + 1))
    return np.stack([deleted_row(reached[min(steps, len(reached) - 1)], known, count) for steps in choices])


def changed_rows(before: BlackBox, after: BlackBox, known: Known) -> Array:
    """Return the mean (p,) of the public rows, weighted by the change of their answers; unweighted if none changed."""
    size = np.abs(known.changes(before, after)).sum(axis=1)
    return np.asarray(size @ known.H[known.asked] if size.any() else known.mean)


def nearest(row: Array, rows: Array) -> float:
    """Return the largest cosine between `row` (d,) and one of `rows` (m, d); 0 for a row of zeros."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(row)
    return float(np.divide(rows @ row, lengths, out=np.zeros(len(rows)), where=lengths > 0).max())


def by_row(row: Array, known: Known) -> Array:
    """Score every candidate, (k,), by the cosine between its row and `row` (p,)."""
    rows = known.H[known.candidates]
    lengths = np.linalg.norm(rows, axis=1)
    return np.asarray(np.divide(rows @ row, lengths, out=np.zeros(len(rows)), where=lengths > 0))


def by_likelihood(before: BlackBox, after: BlackBox, known: Known) -> Array:
    """Score every candidate, (k,), by how well its row explains the change under the best label."""
    return known.agreement(known.changes(before, after), None)


def _logarithms(answers: Array) -> Array:
    """Return logarithms of answers (m, C), counting 0 as half of the smallest positive answer."""
    return np.asarray(np.log(np.maximum(answers, answers[answers > 0].min() / 2)))
