"""A deleted node's features from two versions of a linear model, after Bertran et al. (2024).

"Reconstruction attacks on machine unlearning: simple models are vulnerable". Leaving out k of m training rows moves the
optimum so that (m - k) H (W' - W) - k lambda W is about the gradient of the lost rows' losses, sum_v h_v s_v^T, with H
the Hessian on what remains, for which that of public rows stands in; exact for squares and the true H. Its largest
singular vector is the row. The paper has one output and a row of features; here C outputs agree on the row, and the row
is the deleted node's of P^L X, from which its neighbours' features are not told apart.

* From weights: as that says.
* From answers, by regression: they give each public node's logits up to a shift (a softmax) or a scale of the sigmoids
  (one class against the rest), and regression on the public rows gives the change of the weights. Public nodes near the
  deleted one have other rows since, which the attacker does not know: it leaves out those whose answers change most.
* From rounded answers, by a few steps: least squares of the answers themselves, begun at no change and left after a few
  steps of conjugate gradients, as noise wants it (ours). How few they are is what `rehearsal` learns.
* From where answers changed: the mean of the public rows, each counted as much as its answer changed. This needs no
  weights at all; it tells what the deleted node's neighbourhood is like (ours).
* From answers, by likelihood: of candidate rows whose labels are unknown, the one whose deletion explains the change
  best. This is ours; it needs no inversion, and so stands rounding.

A leak in the weights is seen when `after` is the model trained anew; from weights it is the row in the columns that
were not updated.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from benchmarks.attacks.black_box import BlackBox
from benchmarks.attacks.knowledge import Known, clipped, log_slopes
from benchmarks.baselines.protocol import Array

#: Of the public nodes, by the size of the change of their answers, those that regression is on.
_KEPT = 0.9
#: Added to the rows' Gram matrix, relative to its mean diagonal.
_RIDGE = 1e-10
#: Of the regression's conjugate gradients: an attacker needs no more digits.
_TOLERANCE, _MOST_STEPS = 1e-6, 50


def deleted_row(change: Array, known: Known, count: int = 1) -> Array:
    """The direction (p,) of the row that `count` deleted ones have most of, from the change of the weights (p, C).

    Its sign is that of the public rows' mean.
    """
    H, m = known.hessian, known.training
    gradient = (m - count) * H.times(change) - count * H.regularization * known.W
    if not change.any():
        return np.zeros(len(change))
    row = np.linalg.svd(gradient, full_matrices=False).U[:, 0]
    return np.asarray(row * (np.sign(row @ known.H[known.asked].mean(axis=0)) or 1.0))


def change_of_weights(before: BlackBox, after: BlackBox, known: Known) -> Array:
    """By how much the weights changed, (p, C), to first order, by regression of public nodes' answers on their rows.

    Of a softmax up to what all columns share, which optima have nothing of.
    """
    size = np.abs(known.changes(before, after)).max(axis=1)
    kept = known.asked[size <= np.quantile(size, _KEPT)]
    kept = kept[after(kept).any(axis=1)]
    rows = known.H[kept]
    slopes = log_slopes(rows @ known.W, known.spec.loss)
    seen = (_logarithms(after(kept)) - _logarithms(before(kept))) / slopes
    gram = rows.T @ rows
    gram[np.diag_indices_from(gram)] += _RIDGE * gram.trace() / len(gram)
    factor = cho_factor(gram)
    # log p is known up to a number for each node, an unknown multiple of 1 / slopes in its logits: least squares of
    # what is across it, by conjugate gradients. For a softmax it is the same for all, and they take one step.
    free = 1 / slopes
    free /= np.linalg.norm(free, axis=1, keepdims=True)

    def across(z: Array) -> Array:
        return np.asarray(z - free * (free * z).sum(axis=1, keepdims=True))

    *_, change = _solutions(
        lambda V: rows.T @ across(rows @ V), lambda residual: cho_solve(factor, residual), rows.T @ across(seen)
    )
    return change


def _solutions(product: Callable[[Array], Array], solve: Callable[[Array], Array], right: Array) -> Iterator[Array]:
    """Solutions (p, C) of `product(V) = right` by more and more steps of conjugate gradients, the first of them zero.

    Preconditioned by `solve`; up to `_MOST_STEPS`, or until the residual is small.
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
    """Guesses at the row that `count` deleted ones have most of, by each of `choices` of steps, (len(choices), p)."""
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
    """The mean (p,) of the public rows, each counted as much as its answer changed; of all of them where none did."""
    size = np.abs(known.changes(before, after)).sum(axis=1)
    return np.asarray(size @ known.H[known.asked] if size.any() else known.mean)


def nearest(row: Array, rows: Array) -> float:
    """The largest cosine between `row` (d,) and one of `rows` (m, d); 0 to a row of zeros."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(row)
    return float(np.divide(rows @ row, lengths, out=np.zeros(len(rows)), where=lengths > 0).max())


def by_row(row: Array, known: Known) -> Array:
    """A score of every candidate, (k,): the cosine of its row to `row` (p,)."""
    rows = known.H[known.candidates]
    lengths = np.linalg.norm(rows, axis=1)
    return np.asarray(np.divide(rows @ row, lengths, out=np.zeros(len(rows)), where=lengths > 0))


def by_likelihood(before: BlackBox, after: BlackBox, known: Known) -> Array:
    """A score of every candidate, (k,): how well its row explains the change, with whichever label."""
    return known.agreement(known.changes(before, after), None)


def _logarithms(answers: Array) -> Array:
    """Of answers (m, C); those rounded to 0 count as half of the smallest that is told."""
    return np.asarray(np.log(np.maximum(answers, answers[answers > 0].min() / 2)))
