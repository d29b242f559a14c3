"""Noise in whole steps of a grid: the normal distribution, rounded, from a stored secret.

Noise in floating point would tell what it hides: which sums are possible depends on what is added to (Mironov, "On
significance of the least significant bits for differential privacy", CCS 2012). On a grid every sum is possible, and
k + round(2^b N) = round(k + 2^b N) for whole k: this is the Gaussian mechanism with a rounding afterwards, so that what
holds of that holds of this, composition too. (The discrete Gaussian would need a bound of its own.)

The normal is drawn by rejection with comparisons of whole numbers alone (Karney, "Sampling exactly from the normal
distribution", ACM TOMS 2016; von Neumann 1951). So the same secret gives the same noise on every machine.
"""

import hashlib
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from projector.certified.publication import SECRET_BYTES

#: The law of one value is no farther than this from that of round(2^bits N), in total variation. Words of 64 bits
#: stand for real numbers, and each of a value's comparisons, 5 on average, is undecided with probability 2^-64; the 10
#: weights of k are cut off after 63 bits, and k at 10.
ERROR = 2.0**-58
#: With more, 64 bits would not hold the values, and what they are added to.
LARGEST_BITS = 58
#: No value lies this many standard deviations from 0, or farther.
_INTEGER_PARTS = 10

Words = NDArray[np.uint64]


@lru_cache(maxsize=1)
def rounded_normal(secret: bytes, version: int, size: int, bits: int) -> NDArray[np.int64]:
    """Independent values of round(2^bits N), N standard normal, (size,): a function of the arguments alone.

    Whoever does not know `secret`, `SECRET_BYTES` from the system's generator, cannot tell them from such values, and
    those of one version say nothing of another's (SHAKE256 as a stream). 0 <= `bits` <= `LARGEST_BITS`.

    The last are kept, so that they can be drawn before the weights are there.
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
    """Gives as many words, uniform and independent, as it is asked for."""
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
    """Which of independent events happen, of probability exp(-x), or exp(-x^2/2) if `squared`; words are parts of 2^64.

    The first j words fall from x downwards with probability x^j/j!; where each needs an event of probability x/2 too,
    with (x^2/2)^j/j!. That they do so an even number of times has the alternating sum of these: the exponential.
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
    """x 2^(bits - 64), rounded to the next whole number."""
    halves = (x >> (63 - bits)).astype(np.int64)
    return (halves + 1) >> 1


@lru_cache(maxsize=1)
def _cumulative() -> Words:
    """2^63 times the probability that k < 1, 2, …, 9, where k has the weights exp(-k^2/2), k < 10."""
    with localcontext(prec=40):
        weights = [(Decimal(-k * k) / 2).exp() for k in range(_INTEGER_PARTS)]
        shares = [sum(weights[:k]) / sum(weights) for k in range(1, _INTEGER_PARTS)]
        return np.array([int(share * 2**63) for share in shares], dtype=np.uint64)
