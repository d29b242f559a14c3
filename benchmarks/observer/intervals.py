"""95 % intervals for shares and means."""

import math
from collections.abc import Sequence

import numpy as np

#: The 97.5 % quantile of the normal distribution.
_Z = 1.959963984540054
_RESAMPLED = 10_000


def wilson(found: float, tries: int) -> tuple[float, float]:
    """Return the interval of a share `found` / `tries`, after Wilson (1927). `found` may be an expected value."""
    share, square = found / tries, _Z**2 / tries
    middle, half = share + square / 2, _Z * math.sqrt(share * (1 - share) / tries + square / (4 * tries))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the mean of `values`: percentiles of means of resamples drawn with replacement."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), size=(_RESAMPLED, len(values)))
    low, high = np.quantile(drawn.mean(axis=1), (0.025, 0.975))
    return float(low), float(high)
