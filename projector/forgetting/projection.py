"""Projector with rank loss: weights and span coefficients after rows left or joined their span.

Letters as in the paper's Algorithm 1: W the weights of one input, X its rows, X_D (m, k) the deleted ones, M+ the
pseudo-inverse of X^T X. beta are the span coefficients, W = X^T beta. Node j has the effective coefficient beta_j +
x_j^T T, so an update touches m rows and two matrices of the size of W instead of n rows. B is X^T beta over the rows
still in the span.

Weights also have a part along faint directions, which M+ does not carry (`projector.forgetting.gram`). There, the
survivors keep their coefficients, and W loses what the deleted rows contributed: v - M t for v = X_D^T E, E the
effective coefficients of the deleted rows, and t = M+ v. [Projecting W on such a direction would keep what a deleted
row taught along it. Dropping the direction would lose what survivors taught: a bound of 7e-4 after the repair.]

All blocks are treated alike, so they stand side by side, (k, blocks * C), in W, B and T, for a single matrix product.
beta (blocks, n, C) keeps its stored layout; few of its rows are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.factors import DelayedInverse
from projector.forgetting.gram import FactorMethod, Gram, downdate, lost_with, supports_nothing
from projector.forgetting.growth import grow
from projector.forgetting.symmetric import by_columns
from projector.graph.features import FeatureMatrix
from projector.network.blocks import side_by_side

#: Above this relative residual of W = B + M T, T is corrected. The rest is then faint.
_REFINEMENT = 1e-11
#: Above this residual, B is first summed again from the rows.
COEFFICIENT_ACCEPTANCE = 1e-8
#: Rows that take more than this many times W from B get coefficients of their own. [A barely supported direction made T
#: large, and joining rows support it: W = B + M T cancels, to a residual of 2e-10.]
_MOST_TAKEN = 1e3


@dataclass(frozen=True, eq=False)
class SpanState:
    """Weights of one input, their coefficients and their span; never changed in place."""

    #: (k, blocks * C) float64, as `B` and `T`.
    W: Tensor
    B: Tensor
    T: Tensor
    gram: Gram
    #: Mask (n,) of the rows in the span.
    in_span: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SpanUpdate:
    """The result of taking rows out of one input's span."""

    state: SpanState
    #: X_D, (m, k), and the effective coefficients of its rows before and after, (m, blocks * C).
    deleted_rows: Tensor
    effective_before: Tensor
    #: Orthonormal basis of the directions that only the deleted rows supported, (k, lost).
    lost_directions: Tensor
    #: |W - (B + M T)|_F / |W|_F.
    coefficient_residual: float
    factor_method: FactorMethod


@dataclass(frozen=True, eq=False)
class SpanJoin:
    """The result of adding rows to one input's span."""

    state: SpanState
    #: The rows whose coefficients changed, (m,), and their beta, (m, blocks * C).
    rows: NDArray[np.int64]
    beta: Tensor
    #: Number of span directions that no row supported before.
    gained: int
    #: As in `SpanUpdate`.
    coefficient_residual: float
    factor_method: FactorMethod


@dataclass(frozen=True)
class Norms:
    """The influence of one request's nodes on the weights before and after the batch (the injected channel)."""

    injected_before: float | None = None
    injected_after: float | None = None
    channel_before: float | None = None
    channel_after: float | None = None
    #: `LiveGraph.training_norm` of removed labels whose nodes stay.
    training_before: float | None = None
    training_after: float | None = None


def project(span: SpanState, rows: FeatureMatrix, beta: Tensor, deleted: NDArray[np.int64]) -> SpanUpdate:
    """Take the rows `deleted` (m,), all in the span, out of it. `span` and `beta` (blocks, n, C) stay unchanged.

    Costs O(m k^2), independent of n, unless the Gram factors must be recomputed from the rows.
    """
    surviving = span.in_span.copy()
    surviving[deleted] = False
    X_D = rows.dense_rows(deleted)
    down = downdate(span.gram, X_D, rows, surviving)
    Q = down.lost_directions
    beta_D = side_by_side(beta[:, torch.from_numpy(deleted).to(X_D.device)])
    effective = torch.addmm(beta_D, X_D, span.T)
    share = X_D.T @ effective
    before = replace(span, B=torch.addmm(span.B, X_D.T, beta_D, alpha=-1.0), gram=down.gram, in_span=surviving)
    T = span.T + _spread(down.gram, X_D, effective, share)
    after, residual = _corrected(_without(replace(before, T=T), Q))
    if down.weakened or residual > _REFINEMENT:
        Q = lost_with(down.gram, X_D, rows, surviving)
        after, residual = _corrected(_without(_less(before, share), Q))
    if supports_nothing(down.gram, rows, surviving):
        # The rest of W is rounding, including rounding of deleted rows.
        nothing = torch.zeros_like(after.W)
        after, residual = replace(after, W=nothing, B=nothing, T=nothing), 0.0
    if residual > COEFFICIENT_ACCEPTANCE:
        B = torch.cat([rows.transposed_matmul(block, surviving) for block in beta], dim=1)
        after, residual = _corrected(replace(after, B=B))
    return SpanUpdate(after, X_D, effective, Q, residual, down.method)


def join(span: SpanState, rows: FeatureMatrix, beta: Tensor, joined: NDArray[np.int64]) -> SpanJoin:
    """Add the rows `joined` (m,) to the span, with effective coefficients of 0. W stays bit for bit the same.

    `rows` are the input's rows including all that join. `span` and its `beta` (blocks, n, C) may cover fewer.
    """
    in_span = np.concatenate([span.in_span, np.zeros(rows.nodes - span.in_span.size, dtype=np.bool_)])
    if not joined.size:
        gram = span.gram.compact(rows, in_span)
        return SpanJoin(replace(span, gram=gram, in_span=in_span), joined, span.T[:0], 0, 0.0, FactorMethod.NONE)
    X_A = rows.dense_rows(joined)
    given = X_A @ span.T
    taken = X_A.T @ given
    if float(torch.linalg.norm(taken)) > _MOST_TAKEN * float(torch.linalg.norm(span.W)):
        span, given = _folded(span, rows, beta)
        places, taken = np.arange(rows.nodes), torch.zeros_like(taken)
    else:
        places, given = joined, -given
    in_span[joined] = True
    growth = grow(span.gram, X_A, rows, in_span)
    after, residual = _corrected(replace(span, B=span.B - taken, gram=growth.gram, in_span=in_span))
    return SpanJoin(after, places, given, growth.gained, residual, growth.method)


def coefficient_residual(span: SpanState) -> float:
    """Return |W - (B + M T)|_F / |W|_F. It checks the coefficients' arithmetic, not the forgetting."""
    size = float(torch.linalg.norm(span.W))
    error = float(torch.linalg.norm(_missing(span)))
    return error / size if size > 0.0 else error


def injected_norms(effective: Tensor, owner: NDArray[np.int64], owners: int, classes: int) -> list[float]:
    """Return for each of `owners` requests the sum over blocks of |sum of its rows' effective coefficients|_2.

    `effective` (m, blocks * C) holds the coefficients; row i belongs to request `owner`[i].
    """
    sums = effective.new_zeros((owners, effective.shape[1]))
    sums.index_add_(0, torch.from_numpy(owner).to(effective.device), effective)
    return [float(norm) for norm in _sum_of_block_norms(sums, classes).tolist()]


def channel_norm(W: Tensor, columns: Sequence[int], classes: int) -> float:
    """Return the norms of W's own rows for physical injected channels, summed over blocks and channels."""
    return float(_sum_of_block_norms(W[list(columns)], classes).sum())


def _spread(gram: Gram, X_D: Tensor, effective: Tensor, share: Tensor) -> Tensor:
    """Return M+ `share` for `share` = X_D^T `effective`, computed as (X_D M+)^T `effective` for few sparse rows."""
    few = X_D.shape[0] ** 2 <= share.numel()
    if few and isinstance(gram.M_pinv, DelayedInverse):
        return (X_D @ gram.M_pinv).T @ effective
    return gram.M_pinv @ by_columns(share)


def _without(span: SpanState, Q: Tensor) -> SpanState:
    """Return `span` without the lost directions Q (k, lost).

    No surviving row has a part along Q, so stripping T changes no coefficient. But T can be large there, and its
    rounding would stay for good.
    """
    if Q.shape[1] == 0:
        return span
    return replace(span, W=span.W - Q @ (Q.T @ span.W), T=span.T - Q @ (Q.T @ span.T))


def _less(span: SpanState, share: Tensor) -> SpanState:
    """Return `span` without the deleted rows' contribution `share` = X_D^T E.

    The contribution is spread over the survivors as far as M+ reaches.
    """
    M, M_pinv = span.gram.M, span.gram.M_pinv
    t = M_pinv @ share
    t += M_pinv @ (share - M @ t)
    return replace(span, W=span.W - (share - M @ t), T=span.T + t)


def _corrected(span: SpanState) -> tuple[SpanState, float]:
    """Return `span` with T corrected by M+ (W - B - M T) if rounding has grown, and the remaining residual.

    T is by construction the difference between W and B, so its own residual can correct its update. A barely supported
    direction makes M+ large, and with it the rounding of the update. [Cora, half deleted: a residual of 1e-7, from then
    on, without the correction.]
    """
    residual = coefficient_residual(span)
    if residual > _REFINEMENT:
        span = replace(span, T=span.T + span.gram.M_pinv @ _missing(span))
        residual = coefficient_residual(span)
    return span, residual


def _folded(span: SpanState, rows: FeatureMatrix, beta: Tensor) -> tuple[SpanState, Tensor]:
    """Return `span` with T = 0, and beta + X T, (n, blocks * C), of all `rows`, zero outside of the span."""
    effective = rows.matmul(span.T)
    effective[: beta.shape[1]] += side_by_side(beta)
    effective[: span.in_span.size][torch.from_numpy(~span.in_span).to(effective.device)] = 0.0
    effective[span.in_span.size :] = 0.0
    return replace(span, B=rows.transposed_matmul(effective), T=torch.zeros_like(span.T)), effective


def _missing(span: SpanState) -> Tensor:
    """Return W - B - M T."""
    return span.W - (span.B + span.gram.M @ by_columns(span.T))


def _sum_of_block_norms(rows: Tensor, classes: int) -> Tensor:
    """Return for each of `rows` (m, blocks * C) the sum of its blocks' 2-norms, (m,)."""
    norms: Tensor = torch.linalg.vector_norm(rows.reshape(rows.shape[0], -1, classes), dim=2)
    return norms.sum(dim=1)
