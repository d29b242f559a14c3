"""Span coefficients: how much weight training put on each node's features.

Letters: beta_b (n, C) with W_b = X^T beta_b for each block b of an input X; U (n_train, C) the dual variable with W =
H^T U; S selects training rows, H_b = S R_b X; T_b (d, C) the lazy correction that deletions leave.
"""

import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from projector.device import seldom_read
from projector.network.representation import Representation
from projector.parallel.workers import Division, together

#: A sum at or below this share of its terms' magnitude is compared with that share: it may be rounding alone.
_CANCELLED = 1e-4


class SpanRows(Protocol):
    """Some rows of a model: their features and span coefficients."""

    @property
    def X(self) -> NDArray[Any] | sp.sparray:
        """Features, (k, d), dense or sparse, float64."""

    @property
    def beta(self) -> NDArray[np.float64]:
        """(blocks, k, C)."""


@together
def span_coefficients(representation: Representation, dual: Tensor) -> list[Tensor]:
    """Return beta_b = R_b^T S^T U per block b of each input, (blocks, n, C), for U (n_train, C); on the first worker.

    Follows from W_b = H_b^T U = X^T R_b^T S^T U. Each worker sweeps over the graph for its own classes.
    """
    inputs, workers, classes = representation.inputs, representation.workers, dual.shape[1]
    to_first = Division.at_first(representation.nodes, workers.count)
    nodes = to_first.counts[workers.rank]
    betas = [seldom_read((each.operators.blocks, nodes, classes), dual.device) for each in inputs]
    for begins, taken in Division.evenly(classes, workers.count).rounds(inputs.width):
        begin, width = begins[workers.rank], taken.counts[workers.rank]
        for beta, adjoint in zip(betas, representation.adjoint(dual[:, begin : begin + width]), strict=True):
            for block, columns in zip(beta, adjoint, strict=True):
                rows = workers.to_rows(columns, to_first, taken)
                for start, part in zip(begins, taken.parts, strict=True):
                    block[:, start : start + part.stop - part.start] = rows[:, part]
    return betas


def span_residual(weights: NDArray[np.float64], T: NDArray[np.float64], *parts: Iterable[SpanRows]) -> float:
    """Return |W_b - X^T (beta_b + X T_b)|_F / |W_b|_F over all rows in `parts`, maximised over blocks; see `_relative`.

    `weights` and `T` are (blocks, d, C) float64. With the surviving rows as parts, this measures the paper's guarantee:
    it is a rounding error exactly when the weights lie where these rows' coefficients place them. Each part is read and
    multiplied in its own thread.
    """
    explained, magnitudes = np.zeros_like(weights), np.zeros(len(weights))
    with ThreadPoolExecutor(len(parts)) as threads:
        for part_explained, part_magnitudes in threads.map(partial(_explained, T), parts):
            explained += part_explained
            magnitudes += part_magnitudes
    return max(_relative(W_b, sum_b, scale) for W_b, sum_b, scale in zip(weights, explained, magnitudes, strict=True))


def _explained(T: NDArray[np.float64], chunks: Iterable[SpanRows]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums over `chunks` of X^T (beta_b + X T_b), (blocks, d, C), and of the norms' products, (blocks,)."""
    blocks, width, classes = T.shape
    beside = T.transpose(1, 0, 2).reshape(width, blocks * classes)
    explained, magnitudes = np.zeros_like(beside), np.zeros(blocks)
    for chunk in chunks:
        X = chunk.X
        effective = X @ beside
        by_block = effective.reshape(len(effective), blocks, classes).transpose(1, 0, 2)
        by_block += chunk.beta
        explained += X.T @ effective
        values = (X if isinstance(X, np.ndarray) else X.data).reshape(-1)
        # Avoid BLAS: its threads would compete with those of the other parts.
        size = math.sqrt(np.einsum("i,i->", values, values))
        magnitudes += size * np.sqrt(np.einsum("bkc,bkc->b", by_block, by_block))
    return explained.reshape(width, blocks, classes).transpose(1, 0, 2), magnitudes


def _relative(W_b: NDArray[np.float64], explained: NDArray[np.float64], magnitude: float) -> float:
    """Return |W_b - explained| / |W_b|, or relative to a share of `magnitude` if its sums nearly cancel in W_b."""
    size = max(float(np.linalg.norm(W_b)), _CANCELLED * magnitude)
    return float(np.linalg.norm(W_b - explained)) / size if size > 0 else 0.0
