"""Noise in whole steps of a grid: the normal distribution, rounded, from a stored secret.

Floating-point noise would reveal what it hides: the possible sums depend on the value it is added to (Mironov, "On
significance of the least significant bits for differential privacy", CCS 2012). On a grid every sum is possible, and
k + round(2^b N) = round(k + 2^b N) for whole k. So this is the Gaussian mechanism followed by rounding, and inherits
its guarantees, including composition. (The discrete Gaussian would need a bound of its own.)

The normal is drawn by rejection, comparing whole numbers only (Karney, "Sampling exactly from the normal distribution",
ACM TOMS 2016; von Neumann 1951). So the same secret gives the same noise on every machine.
"""

import hashlib
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from projector.certified.publication import SECRET_BYTES

#: Upper bound on the total variation distance of one value's law from round(2^bits N). 64-bit words stand for real
#: numbers; each of a value's comparisons, 5 on average, is undecided with probability 2^-64. The 10 weights of k are
#: cut off after 63 bits, and k at 10.
ERROR = 2.0**-58
#: Larger values could overflow 64 bits once added to the weights.
LARGEST_BITS = 58
#: All values lie less than this many standard deviations from 0.
_INTEGER_PARTS = 10

Words = NDArray[np.uint64]


@lru_cache(maxsize=1)
def rounded_normal(secret: bytes, version: int, size: int, bits: int) -> NDArray[np.int64]:
    """Return independent values of round(2^bits N), N standard normal, (size,): a function of the arguments alone.

    Without `secret`, `SECRET_BYTES` from the system's generator, they are indistinguishable from independent values.
    Values of one version reveal nothing about those of another (SHAKE256 as a stream). 0 <= `bits` <= `LARGEST_BITS`.

    The latest result is cached, so that it can be drawn before the weights are ready.
    """
    take = _stream(secret, version)
    values, missing = np.empty(size, dtype=np.int64), np.arange(size)
    while missing.size:
        first, x = take(missing.size), take(missing.size)
        k = np.searchsorted(_cumulative(), first >> 1, side="right")
        # |N| = k + x with k from exp(-k^2/2) and x uniform, kept with probability exp(-k x - x^2/2).
        kept = _happens(take, x, squared=True)
        for times in range(1, _INTEGER_PARTS):
            asked = np.flatnonzero(kept & (k >= times))
            kept[asked] = _happens(take, x[asked])
        size_of = (k[kept].astype(np.int64) << bits) + _rounded(x[kept], bits)
        values[missing[kept]] = np.where(first[kept] & 1, size_of, -size_of)
        missing = missing[~kept]
    values.setflags(write=False)
    return values


def _stream(secret: bytes, version: int) -> Callable[[int], Words]:
    """Return a function that draws the given number of independent, uniform words."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    asked = 0

    def take(count: int) -> Words:
        nonlocal asked
        asked += 1
        block = secret + version.to_bytes(8, "big") + asked.to_bytes(8, "big")
        return np.frombuffer(hashlib.shake_256(block).digest(8 * count), dtype="<u8").astype(np.uint64, copy=False)

    return take


def _happens(take: Callable[[int], Words], x: Words, squared: bool = False) -> NDArray[np.bool_]:
    """Return which independent events happen, with probability exp(-x), or exp(-x^2/2) if `squared`.

    x is in units of 2^-64. The first j words fall from x downwards with probability x^j/j!. If each also needs an event
    of probability x/2, the probability is (x^2/2)^j/j!. The run length is even with the alternating sum of these as
    probability: the exponential.
    """
    even, running, last = np.ones(x.size, dtype=np.bool_), np.arange(x.size), x
    while running.size:
        if squared:
            goes_on = take(running.size) < x[running] >> 1
            running, last = running[goes_on], last[goes_on]
        words = take(running.size)
        falls = words < last
        running, last = running[falls], words[falls]
        even[running] ^= True
    return even


def _rounded(x: Words, bits: int) -> NDArray[np.int64]:
    """Return x 2^(bits - 64), rounded to the next whole number."""
    halves = (x >> (63 - bits)).astype(np.int64)
    return (halves + 1) >> 1


@lru_cache(maxsize=1)
def _cumulative() -> Words:
    """Return 2^63 times the probability that k < 1, 2, …, 9, where k has the weights exp(-k^2/2), k < 10."""
    with localcontext(prec=40):
        weights = [(Decimal(-k * k) / 2).exp() for k in range(_INTEGER_PARTS)]
        shares = [sum(weights[:k]) / sum(weights) for k in range(1, _INTEGER_PARTS)]
        return np.array([int(share * 2**63) for share in shares], dtype=np.uint64)
