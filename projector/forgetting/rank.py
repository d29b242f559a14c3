"""Rank decisions: which directions of the span are strong, faint or lost.

A direction is *strong* if its eigenvalue of M exceeds `RANK_TOLERANCE` times the scale at import, and *faint* if its
support is weaker. It is *lost* only if no surviving row supports it, which the rows themselves decide.

Letters as in `projector.forgetting.gram`.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.factors import PseudoInverse, size_bound, whole
from projector.graph.features import FeatureMatrix

#: Eigenvalues of M at or below this share of `sigma_ref_squared` count as zero (1e-5 on singular values of X).
RANK_TOLERANCE = 1e-10
#: Surviving rows support a direction only if their part along it exceeds this share of sigma_ref: about the rounding
#: that remains once the strong part of a direction is subtracted.
SUPPORT_TOLERANCE = 1e-13
#: Surviving rows decide leverages closer to 1 than this: rounding in K grows like eps cond(X)^2, so no narrow band
#: around 1 separates lost directions from those that few other nodes support.
LEVERAGE_MARGIN = 1e-3


def has_faint(M_pinv: PseudoInverse, cutoff: float) -> bool:
    """Return whether a direction of M+ may have sunk to the cutoff: an eigenvalue of about its inverse, or more."""
    # |M+|_F is at least the largest eigenvalue and usually settles it.
    if cutoff * size_bound(M_pinv) < 1.0 - LEVERAGE_MARGIN:
        return False
    matrix = whole(M_pinv)
    identity = torch.eye(matrix.shape[0], dtype=matrix.dtype, device=matrix.device)
    return int(torch.linalg.cholesky_ex((1.0 - LEVERAGE_MARGIN) * identity - cutoff * matrix).info) != 0


def supported(features: FeatureMatrix, surviving: NDArray[np.bool_], directions: Tensor) -> tuple[Tensor, Tensor]:
    """Return orthonormal `directions` (d, c) rotated to right singular vectors of the surviving rows, and their sigma.

    Singular values descend. They are padded with 0 if fewer than c rows survive.
    """
    support = parts(features, surviving, directions)
    # Decompose R: the Gram matrix of `support` would square the singular values below its own rounding. Keep all of
    # `right`, since there may be fewer rows than directions.
    _, sigma, right = torch.linalg.svd(torch.linalg.qr(support, mode="r").R, full_matrices=True)
    missing = directions.shape[1] - sigma.shape[0]
    return directions @ right.T, torch.cat([sigma, sigma.new_zeros(missing)])


def parts(features: FeatureMatrix, surviving: NDArray[np.bool_], directions: Tensor) -> Tensor:
    """Return X `directions` (n, c), zero in deleted rows."""
    parts = features.matmul(directions)
    parts[torch.from_numpy(~surviving).to(parts.device)] = 0
    return parts
