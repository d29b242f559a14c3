"""Span coefficients: how much weight training put on each node's features.

Letters: beta_b (n, C) with W_b = X^T beta_b for each block b of an input X; U (n_train, C) the dual variable with
W = H^T U; S selects training rows, H_b = S R_b X; T_b (d, C) the lazy correction that deletions leave.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from projector.graph.graph import Features
from projector.network.blocks import by_block
from projector.network.representation import Representation

_ROUNDING = 1e-12


class SpanRows(Protocol):
    """Some rows of a model: their features and their span coefficients."""

    @property
    def X(self) -> Features:
        """Features, (k, d), dense or CSR."""

    @property
    def beta(self) -> NDArray[np.float64]:
        """(blocks, k, C)."""


def span_coefficients(representation: Representation, dual: Tensor) -> list[Tensor]:
    """For each input, beta_b = R_b^T S^T U of its blocks b, (blocks, n, C), for U (n_train, C).

    From W_b = H_b^T U = X^T R_b^T S^T U.
    """
    adjoints = representation.inputs.adjoint(representation.scattered(dual))
    return [by_block(adjoint, dual.shape[1]) for adjoint in adjoints]


def span_residual(weights: NDArray[np.float64], T: NDArray[np.float64], chunks: Iterable[SpanRows]) -> float:
    """|W_b - X^T (beta_b + X T_b)|_F / |W_b|_F over all rows in `chunks`, the largest over blocks.

    `weights` and `T` are (blocks, d, C) float64. With the surviving rows as chunks this is the paper's guarantee as a
    measurement: it is a rounding error exactly when the weights lie where these rows' coefficients say they do.
    """
    explained = np.zeros_like(weights)
    magnitudes = np.zeros(len(weights))
    for chunk in chunks:
        X = chunk.X.astype(np.float64)
        size = float(np.linalg.norm(X if isinstance(X, np.ndarray) else X.data))
        for block, beta in enumerate(chunk.beta):
            effective = beta + X @ T[block]
            explained[block] += X.T @ effective
            magnitudes[block] += size * float(np.linalg.norm(effective))
    return max(_relative(W_b, sum_b, scale) for W_b, sum_b, scale in zip(weights, explained, magnitudes, strict=True))


def _relative(W_b: NDArray[np.float64], explained: NDArray[np.float64], magnitude: float) -> float:
    """|W_b - explained| / |W_b|; for W_b = 0, 0 when `explained` is rounding of sums of that magnitude, else 1."""
    size = float(np.linalg.norm(W_b))
    if size > 0:
        return float(np.linalg.norm(W_b - explained)) / size
    return 0.0 if float(np.linalg.norm(explained)) <= _ROUNDING * magnitude else 1.0
