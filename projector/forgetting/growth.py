"""The Gram factors after rows joined the span: M+ updated, with the directions that the rows add.

Letters as in `projector.forgetting.gram`. X_A (m, d) are the joining rows, X_A = Y + Z Q^T with Y in the earlier strong
span and Q (d, k) an orthonormal basis of the rest. With L = I + X_A M+ X_A^T and K = Z^T L^-1 Z, by Woodbury inside the
span and by the Schur complement of Z^T Z for the rest,

    (M + X_A^T X_A)+ = M+ - (X_A M+)^T L^-1 (X_A M+) + V K^-1 V^T,    V = Q - (X_A M+)^T L^-1 Z.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.factors import Matrix, RowGram, leverages, plus, whole
from projector.forgetting.gram import (
    LARGE_BATCH,
    FactorMethod,
    Gram,
    Spectrum,
    accepted,
    carried_over,
    factorise,
    off_strong,
    outside,
    settled,
)
from projector.forgetting.rank import has_faint
from projector.forgetting.symmetric import rank_update, symmetrise
from projector.graph.features import FeatureMatrix

#: Rows longer than this many times sigma_ref cannot join: rounding in M would hide directions that others support.
LONGEST_ROW = 100.0
#: The largest eigenvalue of M replaces sigma_ref^2 once it exceeds this many times sigma_ref^2. [One row 1e4 or 1e5
#: times as long as the others hides directions that one node alone supports in 8 and 17 of 20 cases.]
_LARGEST_SHARE = LONGEST_ROW**2
#: Outside of the strong span M must stay below this share of the cutoff, estimated by this many steps of power
#: iteration: faint rows can become strong together. Parts there below the last share are ignored.
_FAINT_SHARE, _STEPS, _COUNTED = 0.1, 4, 1e-6
#: Largest number of vectors in the iteration.
_MIXTURES = 8


@dataclass(frozen=True, eq=False)
class Growth:
    """The result of adding rows to the span."""

    gram: Gram
    #: Number of directions that became strong.
    gained: int
    method: FactorMethod


def grow(gram: Gram, X_A: Tensor, features: FeatureMatrix, in_span: NDArray[np.bool_]) -> Growth:
    """Add the rows X_A (m, d) to the span; `in_span` (n,) masks all rows of `features` in it afterwards.

    Falls back to `factorise` if the rank is in doubt, faint directions may have become strong, or the result fails the
    acceptance test. A batch that is large against d goes straight to an eigendecomposition. If M has outgrown the scale
    at import, the scale rises with it.
    """
    M: Matrix = RowGram(features, in_span) if isinstance(gram.M, RowGram) else rank_update(gram.M, X_A, 1.0)
    if _exceeds(M, _LARGEST_SHARE * gram.sigma_ref_squared):
        gained = int((outside(gram, X_A)[1] > gram.cutoff**0.5).sum())
        raised = factorise(features, in_span, rank_tolerance=gram.rank_tolerance)
        return Growth(raised, gained, FactorMethod.RESCALE)
    large = X_A.shape[0] >= LARGE_BATCH * M.shape[0]
    # Free the attempt's memory before recomputing the factors.
    grown = _decomposed(gram, M, features, in_span) if large else _updated(gram, M, X_A)
    method = FactorMethod.DECOMPOSE if large else FactorMethod.UPDATE
    if grown is None:
        method = FactorMethod.REFACTORISE
        grown = factorise(
            features, in_span, sigma_ref_squared=gram.sigma_ref_squared, rank_tolerance=gram.rank_tolerance
        )
    return Growth(grown, max(0, grown.rank - gram.rank), method)


def _exceeds(M: Matrix, limit: float) -> bool:
    """Return whether the largest eigenvalue of M exceeds `limit`."""
    if float(M.trace()) <= limit:
        return False
    matrix = whole(M)
    identity = torch.eye(matrix.shape[0], dtype=matrix.dtype, device=matrix.device)
    return int(torch.linalg.cholesky_ex(limit * identity - matrix).info) != 0


def _decomposed(gram: Gram, M: Matrix, features: FeatureMatrix, in_span: NDArray[np.bool_]) -> Gram | None:
    matrix = symmetrise(whole(M))
    return settled(Spectrum(matrix, *torch.linalg.eigh(matrix)), gram, features, in_span)


def _updated(gram: Gram, M: Matrix, X_A: Tensor) -> Gram | None:
    """Return the updated factors; None if a direction is near the cutoff on either side, or they are not accepted."""
    Y, K = leverages(gram.M_pinv, X_A)
    identity = torch.eye(X_A.shape[0], dtype=Y.dtype, device=Y.device)
    root = torch.linalg.cholesky(K + identity)
    # L = root root^T: dividing by L means dividing by its root twice.
    halved = torch.linalg.solve_triangular(root, Y, upper=False)
    M_pinv, rank = plus(gram.M_pinv, halved, -1.0), gram.rank
    if not gram.is_full:
        directions, sizes = outside(gram, X_A)
        Q = directions[:, sizes.square() > gram.cutoff]
        if Q.shape[1]:
            Z = torch.linalg.solve_triangular(root, X_A @ Q, upper=False)
            V = Q - halved.T @ Z
            # Z^T L^-1 Z = R^T R, without squaring the precision that Z has left.
            R = torch.linalg.qr(Z, mode="r").R
            M_pinv = plus(M_pinv, torch.linalg.solve_triangular(R.T, V.T, upper=False), 1.0)
            rank += Q.shape[1]
    updated = carried_over(gram, M, M_pinv, rank, float(K.trace()))
    if has_faint(M_pinv, gram.cutoff) or not accepted(updated):
        return None
    return None if _left_out(updated, X_A) > _FAINT_SHARE * gram.cutoff else updated


def _left_out(gram: Gram, X_A: Tensor) -> float:
    """Estimate the largest eigenvalue of M outside of the strong span, if the rows X_A (m, d) added to it."""
    if gram.is_full:
        return 0.0
    added = off_strong(gram, X_A.T)
    if float(added.square().sum()) <= _COUNTED * gram.cutoff:
        return 0.0
    largest, columns = 0.0, added
    if columns.shape[1] > _MIXTURES:
        generator = torch.Generator().manual_seed(gram.rank)
        draws = torch.randn((columns.shape[1], _MIXTURES), dtype=columns.dtype, generator=generator)
        columns = columns @ draws.to(columns.device)
    for _ in range(_STEPS):
        columns = columns / torch.linalg.vector_norm(columns, dim=0).clamp_min(torch.finfo(columns.dtype).tiny)
        columns = off_strong(gram, gram.M @ columns)
        largest = max(largest, float(torch.linalg.vector_norm(columns, dim=0).max()))
    return largest
