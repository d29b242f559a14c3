"""Projector with rank loss: weights and span coefficients after rows have left the span.

Letters as in the paper's Algorithm 1: W the weights, X_D (m, d) the deleted rows, M+ the pseudo-inverse of X^T X.
beta are the span coefficients, W = X^T beta; the effective coefficient of node j is beta_j + x_j^T T, so that an update
touches m rows and two matrices of the size of W instead of n rows. B is X^T beta over the nodes still in the span.

Every block is treated alike, so the blocks stand side by side: W, B, T are (d, blocks * C) and beta is
(n, blocks * C), one matrix product for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.features import FeatureMatrix
from model_store.gram import FactorMethod, Gram, downdate

#: Above this relative residual of W = B + M T, T is corrected by what is missing.
_REFINEMENT = 1e-11
#: If it stays above this one, B is summed afresh from the rows first.
COEFFICIENT_ACCEPTANCE = 1e-8


@dataclass(frozen=True, eq=False)
class ModelState:
    """One version of the model on the device; never changed in place."""

    version: int
    #: (d, blocks * C) float64, as `B` and `T`.
    W: Tensor
    B: Tensor
    T: Tensor
    gram: Gram
    #: Mask (n,) of the nodes that have not been deleted.
    live: NDArray[np.bool_]
    #: C.
    classes: int


@dataclass(frozen=True)
class Norms:
    """What one request's nodes meant to the weights, before and after the batch (DESIGN's injected channel)."""

    injected_before: float
    injected_after: float
    channel_before: float | None
    channel_after: float | None


@dataclass(frozen=True, eq=False)
class Projection:
    """The state after a batch, and what was measured on the way."""

    state: ModelState
    #: One entry per request, in the order given.
    norms: tuple[Norms, ...]
    directions_removed: int
    #: |Q^T W|_F over all blocks, None when no direction was lost.
    lost_direction_norm_before: float | None
    lost_direction_norm_after: float | None
    #: |W_after - W_before|_F / |W_before|_F.
    weight_change: float
    #: |W - (B + M T)|_F / |W|_F.
    coefficient_residual: float
    factor_method: FactorMethod


def project(
    state: ModelState,
    features: FeatureMatrix,
    beta: Tensor,
    requests: Sequence[NDArray[np.int64]],
    surviving: NDArray[np.bool_],
    channels: Sequence[int] = (),
) -> Projection:
    """Deletes the rows of every request at once and returns the new state; `state` and `beta` stay as they are.

    `requests` holds row numbers, disjoint, each still live; `surviving` (n,) masks the live rows that are in none of
    them; `beta` is (n, blocks * C); `channels` are the feature columns of physical injected channels. Costs O(m d^2),
    whatever n is, unless the Gram factors must be recomputed.
    """
    deleted = np.concatenate(requests)
    X_D = features.dense_rows(deleted)
    down = downdate(state.gram, X_D, features, surviving)
    beta_D = beta[torch.from_numpy(deleted).to(X_D.device)]
    effective = beta_D + X_D @ state.T
    Q = down.lost_directions
    W = state.W if Q.shape[1] == 0 else state.W - Q @ (Q.T @ state.W)
    after = replace(
        state,
        version=state.version + 1,
        W=W,
        B=state.B - X_D.T @ beta_D,
        T=state.T + down.gram.M_pinv @ (X_D.T @ effective),
        gram=down.gram,
        live=surviving,
    )
    if Q.shape[1]:
        # No surviving row has a part along Q, so this changes no coefficient; but T can be large there, and its
        # rounding would stay for good.
        after = replace(after, T=after.T - Q @ (Q.T @ after.T))
    if down.gram.rank == 0:
        # Nothing supports any direction; what is left of W is rounding, and rounding of deleted rows.
        nothing = torch.zeros_like(after.W)
        after = replace(after, W=nothing, B=nothing, T=nothing)
    after, residual = _refined(after, features, beta)
    removed = Q.shape[1]
    return Projection(
        state=after,
        norms=_request_norms(state, after, X_D, effective, beta_D, requests, channels),
        directions_removed=removed,
        lost_direction_norm_before=_norm(Q.T @ state.W) if removed else None,
        lost_direction_norm_after=_norm(Q.T @ after.W) if removed else None,
        weight_change=_ratio(_norm(after.W - state.W), _norm(state.W)) if removed else 0.0,
        coefficient_residual=residual,
        factor_method=down.method,
    )


def coefficient_residual(state: ModelState) -> float:
    """|W - (B + M T)|_F / |W|_F: checks the arithmetic of the coefficients, not what was forgotten."""
    return _ratio(_norm(state.W - (state.B + state.gram.M @ state.T)), _norm(state.W))


def _refined(state: ModelState, features: FeatureMatrix, beta: Tensor) -> tuple[ModelState, float]:
    """`state` with T corrected by M+ (W - B - M T) where rounding has grown, and the residual that remains.

    T is by construction what makes up the difference between W and B, so its update can be corrected by its own
    residual. While one direction is barely supported M+ is large, and with it the rounding of the update. [Cora, half
    deleted: a residual of 1e-7, from then on, without the correction.]
    """
    residual = coefficient_residual(state)
    if residual > _REFINEMENT:
        state = _corrected(state)
        residual = coefficient_residual(state)
    if residual > COEFFICIENT_ACCEPTANCE:
        state = _corrected(replace(state, B=summed_coefficients(features, beta, state.live)))
        residual = coefficient_residual(state)
    return state, residual


def _corrected(state: ModelState) -> ModelState:
    missing = state.W - (state.B + state.gram.M @ state.T)
    return replace(state, T=state.T + state.gram.M_pinv @ missing)


def summed_coefficients(features: FeatureMatrix, beta: Tensor, live: NDArray[np.bool_]) -> Tensor:
    """B (d, blocks * C) summed afresh as X_live^T beta_live."""
    return features.transposed_matmul(beta, live)


def side_by_side(blocks: Tensor) -> Tensor:
    """(blocks, k, C) as (k, blocks * C)."""
    return blocks.permute(1, 0, 2).reshape(blocks.shape[1], -1)


def by_block(matrix: Tensor, classes: int) -> Tensor:
    """(k, blocks * C) as (blocks, k, C)."""
    return matrix.reshape(matrix.shape[0], -1, classes).permute(1, 0, 2)


def _request_norms(
    before: ModelState,
    after: ModelState,
    X_D: Tensor,
    effective: Tensor,
    beta_D: Tensor,
    requests: Sequence[NDArray[np.int64]],
    channels: Sequence[int],
) -> tuple[Norms, ...]:
    owner = np.repeat(np.arange(len(requests)), [rows.size for rows in requests])
    injected_before = _injected_norms(effective, owner, len(requests), before.classes)
    injected_after = [0.0] * len(requests)
    # Nodes that a request leaves in the model would go on carrying weight for it.
    remains = np.flatnonzero(after.live[np.concatenate(requests)])
    if remains.size:
        left = beta_D[remains] + X_D[remains] @ after.T
        injected_after = _injected_norms(left, owner[remains], len(requests), before.classes)
    carried = _channels_carried(X_D, owner, len(requests), channels)
    return tuple(
        Norms(norm_before, norm_after, _channel_norm(before, columns), _channel_norm(after, columns))
        for norm_before, norm_after, columns in zip(injected_before, injected_after, carried, strict=True)
    )


def _injected_norms(effective: Tensor, owner: NDArray[np.int64], requests: int, classes: int) -> list[float]:
    """For each request, the sum over blocks of |sum over its rows of the effective coefficients|_2."""
    sums = effective.new_zeros((requests, effective.shape[1]))
    sums.index_add_(0, torch.from_numpy(owner).to(effective.device), effective)
    return [float(norm) for norm in _sum_of_block_norms(sums, classes).tolist()]


def _channels_carried(X_D: Tensor, owner: NDArray[np.int64], requests: int, channels: Sequence[int]) -> list[list[int]]:
    """For each request, the injected channels that any of its nodes carries."""
    carried: list[list[int]] = [[] for _ in range(requests)]
    for column in channels:
        for request in np.unique(owner[(X_D[:, column] != 0).cpu().numpy()]).tolist():
            carried[request].append(column)
    return carried


def _channel_norm(state: ModelState, columns: Sequence[int]) -> float | None:
    """The norms of W's own rows for the injected channels, summed over blocks and channels."""
    if not columns:
        return None
    return float(_sum_of_block_norms(state.W[list(columns)], state.classes).sum())


def _sum_of_block_norms(rows: Tensor, classes: int) -> Tensor:
    """For each of `rows` (k, blocks * C), the 2-norms of its blocks added up, (k,)."""
    by_block: Tensor = torch.linalg.vector_norm(rows.reshape(rows.shape[0], -1, classes), dim=2)
    return by_block.sum(dim=1)


def _norm(matrix: Tensor) -> float:
    return float(torch.linalg.norm(matrix))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0.0 else numerator
