"""Column scales that let the Gram matrix determine the rank of the features.

The Gram matrix squares singular values, so columns of very different size hide directions from it. Multiplying columns
by powers of two changes no digit of a feature, keeps every zero and is exactly reversible.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from projector.errors import RankError
from projector.forgetting.factors import whole
from projector.forgetting.gram import Gram, from_spectrum, spectrum_of
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Features

#: Columns are rescaled if sigma_max / sigma_min over the kept directions of X exceeds this.
CONDITION_LIMIT = 1e4
#: Directions of X below this share of sigma_max count as rounding of the stored dtype.
_NOISE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-8}


@dataclass(frozen=True, eq=False)
class WellScaled:
    """Features whose Gram matrix shows every direction they have."""

    features: Features
    #: (d,): column j of `features` is the given one times 2**e_j; None if nothing was rescaled.
    exponents: NDArray[np.int64] | None
    gram: Gram


def well_scaled(
    features: Features, in_span: NDArray[np.bool_], *, fixed: Sequence[int] = (), device: str = "cpu"
) -> WellScaled:
    """Return `features` (n, d), with columns rescaled to norms near 1 if conditioning or hidden directions require it.

    The columns `fixed` are never rescaled. Raises RankError if the Gram matrix of the rows `in_span` (n,) still misses
    directions of the features.
    """
    gram, hidden = _examined(features, in_span, device)
    if gram.condition_number <= CONDITION_LIMIT and hidden == 0:
        return WellScaled(features, None, gram)
    norms = whole(gram.M).diagonal().sqrt().cpu().numpy()
    exponents = np.zeros(norms.size, dtype=np.int64)
    used = norms > 0
    largest = np.finfo(features.dtype).maxexp - 1
    exponents[used] = np.minimum(-np.round(np.log2(norms[used])), largest).astype(np.int64)
    exponents[list(fixed)] = 0
    if exponents.any():
        features = rescale(features, exponents)
        gram, hidden = _examined(features, in_span, device)
    if hidden:
        raise RankError(
            f"The features have {hidden} direction(s) more than the {gram.rank} that their Gram matrix shows: some "
            "columns nearly repeat combinations of others. Deletions along them would look the same as rounding.",
            "Drop or orthogonalise the nearly dependent columns, or round the features to fewer digits, and train "
            "again.",
        )
    return WellScaled(features, exponents if exponents.any() else None, gram)


def rescale(features: Features, exponents: NDArray[np.int64]) -> Features:
    """Return features with column j multiplied by 2**e_j, in the same layout and dtype."""
    factors = np.exp2(exponents.astype(np.float64)).astype(features.dtype)
    if sp.issparse(features):
        scaled = sp.csr_array(features, copy=True)
        scaled.data = scaled.data * factors[scaled.indices]
        return scaled
    return np.asarray(features * factors[None, :])


def _examined(features: Features, in_span: NDArray[np.bool_], device: str) -> tuple[Gram, int]:
    """Return the Gram factors, and the number of directions of X below their rank tolerance that are not rounding.

    Those are the singular values of X on the complement of the kept span above the noise of the stored type. They are
    exact to eps cond(X) sigma_max. The noise exceeds that while cond(X) stays below 1e5, as the tolerance ensures.
    """
    matrix = FeatureMatrix(features, device)
    spectrum = spectrum_of(matrix, in_span)
    gram = from_spectrum(spectrum)
    missing = gram.M.shape[0] - gram.rank
    if missing == 0:
        return gram, 0
    support = matrix.matmul(spectrum.vectors[:, :missing])
    support[torch.from_numpy(~in_span).to(support.device)] = 0
    sigma = torch.linalg.svdvals(torch.linalg.qr(support, mode="r").R)
    noise = _NOISE[np.dtype(features.dtype)] * math.sqrt(gram.sigma_ref_squared)
    return gram, int((sigma > noise).sum())
