"""Feature matrices of every structure that breaks naive algebra, and their oracle."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]


def full_rank(rng: np.random.Generator) -> Rows:
    return rng.standard_normal((60, 12))


def rank_deficient(rng: np.random.Generator) -> Rows:
    return rng.standard_normal((60, 5)) @ rng.standard_normal((5, 12))


def wide(rng: np.random.Generator) -> Rows:
    return rng.standard_normal((20, 45))


def binary_sparse(rng: np.random.Generator) -> Rows:
    return (rng.random((70, 30)) < 0.08).astype(np.float64)


def duplicated_rows(rng: np.random.Generator) -> Rows:
    return np.repeat(rng.standard_normal((10, 12)), 4, axis=0)


def with_zero_rows(rng: np.random.Generator) -> Rows:
    rows = rng.standard_normal((40, 12))
    rows[::3] = 0.0
    return rows


def all_zero(rng: np.random.Generator) -> Rows:
    return np.zeros((8, 5))


def all_equal(rng: np.random.Generator) -> Rows:
    return np.tile(rng.standard_normal(9), (15, 1))


def identical_one_hot(rng: np.random.Generator) -> Rows:
    return np.eye(8)[np.repeat(np.arange(8), 3)]


def exclusive_tiny_feature(rng: np.random.Generator) -> Rows:
    rows = rng.standard_normal((40, 10))
    rows[:, -1] = 0.0
    rows[7, -1] = 1e-3
    return rows


def nearly_supported_direction(rng: np.random.Generator) -> Rows:
    """One node carries almost all of a direction, another a trace of it: leverage near 1, but nothing is lost."""
    rows = rng.standard_normal((40, 10))
    rows[:, -1] = 0.0
    rows[7, -1], rows[8, -1] = 100.0, 0.5
    return rows


def columns_of_different_scale(rng: np.random.Generator) -> Rows:
    return rng.standard_normal((80, 12)) * np.logspace(-1.5, 1.5, 12)


def single_node(rng: np.random.Generator) -> Rows:
    return rng.standard_normal((1, 6))


STRUCTURES: list[Callable[[np.random.Generator], Rows]] = [
    full_rank, rank_deficient, wide, binary_sparse, duplicated_rows, with_zero_rows, all_zero, all_equal,
    identical_one_hot, exclusive_tiny_feature, nearly_supported_direction, columns_of_different_scale, single_node,
]  # fmt: skip


def oracle(rows: Rows, cutoff: float) -> tuple[int, Rows, Rows]:
    """Return rank, the Gram matrix' pseudo-inverse and an orthonormal basis (d, r) of the span, by SVD."""
    _, sigma, right = np.linalg.svd(rows, full_matrices=False)
    kept = sigma > cutoff
    basis = right[kept].T
    return int(kept.sum()), (basis / sigma[kept] ** 2) @ basis.T, basis
