"""Column scales that let the Gram matrix tell the rank of the features.

The Gram matrix squares singular values, so columns of very different size hide directions from it. Multiplying
columns by powers of two changes no digit of a feature, keeps every zero and is undone exactly.
"""

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from model_store.errors import RankError
from model_store.features import FeatureMatrix
from model_store.gram import Gram, factorise
from model_store.graph import Features

#: Columns are rescaled when sigma_max / sigma_min over the kept directions of X exceeds this.
CONDITION_LIMIT = 1e4
#: Directions of X below this share of sigma_max are taken for rounding of the stored dtype.
_NOISE = {np.dtype(np.float32): 1e-6, np.dtype(np.float64): 1e-8}


def column_scale(features: Features, in_span: NDArray[np.bool_], device: str = "cpu") -> NDArray[np.int64] | None:
    """Exponents e (d,) such that column j times 2**e_j has a norm near 1; None when X is well enough scaled."""
    matrix = FeatureMatrix(features, device)
    gram = factorise(matrix, in_span)
    if gram.condition_number <= CONDITION_LIMIT and hidden_directions(matrix, in_span, gram, features.dtype) == 0:
        return None
    norms = gram.M.diagonal().sqrt().cpu().numpy()
    exponents = np.zeros(norms.size, dtype=np.int64)
    used = norms > 0
    exponents[used] = -np.round(np.log2(norms[used])).astype(np.int64)
    return exponents


def rescale(features: Features, exponents: NDArray[np.int64]) -> Features:
    """Features with column j multiplied by 2**e_j, in the same layout and dtype."""
    factors = np.exp2(exponents.astype(np.float64)).astype(features.dtype)
    if sp.issparse(features):
        scaled = sp.csr_array(features, copy=True)
        scaled.data = scaled.data * factors[scaled.indices]
        return scaled
    return np.asarray(features * factors[None, :])


def hidden_directions(
    features: FeatureMatrix, in_span: NDArray[np.bool_], gram: Gram, dtype: np.dtype[np.floating]
) -> int:
    """How many directions of X that are not rounding lie below the Gram matrix's rank tolerance.

    The singular values of X on the complement of the kept span, counted above the noise of `dtype`. They are exact
    to eps cond(X) sigma_max, which the noise level exceeds while cond(X) stays below 1e5, as the tolerance ensures.
    """
    d = gram.M.shape[0]
    if gram.rank == d:
        return 0
    projector = gram.M @ gram.M_pinv
    complement = torch.linalg.eigh((projector + projector.T) / 2).eigenvectors[:, : d - gram.rank]
    support = features.matmul(complement)
    support[torch.from_numpy(~in_span).to(support.device)] = 0
    sigma = torch.linalg.svdvals(torch.linalg.qr(support, mode="r").R)
    return int((sigma > _NOISE[np.dtype(dtype)] * gram.sigma_ref_squared**0.5).sum())


def check_rank(
    features: FeatureMatrix, in_span: NDArray[np.bool_], gram: Gram, dtype: np.dtype[np.floating]
) -> None:
    """Raises RankError when the Gram matrix misses directions that the features have."""
    hidden = hidden_directions(features, in_span, gram, dtype)
    if hidden:
        raise RankError(
            f"The features have {hidden} direction(s) beside the {gram.rank} that their Gram matrix shows: some "
            "columns nearly repeat combinations of others, so deletions along them could not be told from rounding.",
            "Drop or orthogonalise the nearly dependent columns, or round the features to fewer digits, and train "
            "again.",
        )
