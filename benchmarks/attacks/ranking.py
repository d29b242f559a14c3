"""How well scores find the true item. Among equal scores chance decides; the figures give the expectation."""

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.protocol import Array


def place(scores: Array, true: int) -> float:
    """Return the number of scores (k,) before the `true` one. Equal scores count half."""
    return float((scores > scores[true]).sum() + ((scores == scores[true]).sum() - 1) / 2)


def first(scores: Array, true: NDArray[np.bool_]) -> float:
    """Return the probability that the largest of the scores (k,) belongs to one of the `true` (k,) bool."""
    return float(true[scores == scores.max()].mean())


def auc(positive: Array, negative: Array) -> float:
    """Return the probability that a score of `positive` (k,) exceeds one of `negative` (l,); 0.5 by chance."""
    ordered = np.sort(negative)
    below, upto = (np.searchsorted(ordered, positive, side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * negative.size))
