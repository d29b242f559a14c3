"""The noise has the distribution of a rounded normal, and is the same for the same secret."""

import hashlib
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from projector.certified import noise
from projector.certified.noise import LARGEST_BITS, rounded_normal
from projector.certified.publication import SECRET_BYTES

SECRET = bytes(range(SECRET_BYTES))
#: The fixed draws here lie within this many standard deviations.
DEVIATIONS = 5.0


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_each_whole_number_is_as_frequent_as_the_normal_distribution_has_it(bits: int) -> None:
    size = 200_000
    values = rounded_normal(SECRET, bits, size, bits)
    edges = np.arange(-5 * 2**bits, 5 * 2**bits + 2) - 0.5
    expected = np.diff(ndtr(edges / 2**bits))
    found = np.histogram(values, edges)[0] / size
    assert np.all(np.abs(found - expected) <= DEVIATIONS * np.sqrt(expected / size) + 1 / size)


def test_on_a_fine_grid_it_is_the_normal_distribution() -> None:
    from scipy.stats import kstest

    values = rounded_normal(SECRET, 7, 200_000, LARGEST_BITS) / 2.0**LARGEST_BITS
    assert kstest(values, "norm").pvalue > 1e-6
    assert np.abs(values).max() < 10


def test_values_are_independent_within_and_between_versions() -> None:
    size = 100_000
    one, other = (rounded_normal(SECRET, version, size, 30) / 2.0**30 for version in (1, 2))
    unrelated = rounded_normal(bytes(SECRET_BYTES), 1, size, 30) / 2.0**30
    for first, second in ((one, other), (one, unrelated), (one[1:], one[:-1])):
        for power in (1, 2):
            assert abs(np.corrcoef(first**power, second**power)[0, 1]) <= DEVIATIONS / math.sqrt(size)


def test_the_same_secret_gives_the_same_noise_on_every_machine() -> None:
    """It depends on integers alone, so a digest can be stored. Another digest would publish the same data again."""
    values = rounded_normal(SECRET, 3, 5_000, 31)
    assert np.array_equal(values, rounded_normal(SECRET, 3, 5_000, 31))
    assert hashlib.sha256(values.astype("<i8").tobytes()).hexdigest() == (
        "1971d643e3b8a045300bbf88e9f83b8c3923d0783017b2123d15e5e19c8a21dc"
    )


def test_a_value_takes_as_few_comparisons_as_its_error_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, real = [0], noise._stream

    def counted(secret: bytes, version: int):  # type: ignore[no-untyped-def]
        take = real(secret, version)

        def counting(count: int) -> NDArray[np.uint64]:
            taken[0] += count
            return take(count)

        return counting

    monkeypatch.setattr(noise, "_stream", counted)
    size = 100_000
    rounded_normal(SECRET, 1, size, 20)
    candidates = size / (math.sqrt(math.pi / 2) / sum(math.exp(-k * k / 2) for k in range(10)))
    comparisons = (taken[0] - 2 * candidates) / size
    assert comparisons < 5
    cut_off = 10 * 2.0**-63 * candidates / size
    assert comparisons * 2.0**-64 + cut_off < noise.ERROR
