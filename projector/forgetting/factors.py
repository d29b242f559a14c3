"""M and M+ for wide sparse features, in forms that spare a deletion from writing d x d matrices.

A product with M = X^T X through sparse rows costs less than reading M, so M is not stored. M+ is a stored matrix and a
few rows that wait to be added to it, which reads and writes all of it. That happens after the batch, but before its
deletions are completed, because the stored matrix contains traces of the deleted rows.
[Citeseer, d = 3,703: M and M+ take 110 MB each.]
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.symmetric import by_columns, rank_update, symmetrise
from projector.graph.features import FeatureMatrix

#: A product with M through the rows reads this many numbers for each stored value of X: values and columns, twice.
_READ_BY_VALUE = 4
#: Rows with at most this share of values other than zero are multiplied as sparse ones.
_SPARSE_SHARE = 0.1
#: Most values of a product with the features (n, c): 32 MiB.
_VALUES = 1 << 22


class RowGram:
    """M = X^T X over some rows of sparse features, (d, d) float64, multiplied through the rows; immutable."""

    def __init__(self, features: FeatureMatrix, rows: NDArray[np.bool_]) -> None:
        """`rows` (n,) masks the rows of X."""
        self._features, self._rows = features, rows.copy()

    @property
    def shape(self) -> tuple[int, int]:
        """(d, d)."""
        return self._features.num_features, self._features.num_features

    @property
    def device(self) -> torch.device:
        """The device of the features."""
        return self._features.device

    def __matmul__(self, right: Tensor) -> Tensor:
        """Return M right, (d, c), for `right` (d, c)."""
        return self._features.transposed_matmul(self._features.matmul(right), self._rows)

    def whole(self) -> Tensor:
        """Return M itself, (d, d)."""
        return self._features.gram(self._rows)

    def trace(self) -> Tensor:
        """Return the trace of M."""
        return self._features.row_norms[torch.from_numpy(self._rows).to(self.device)].square().sum()

    def forms(self, directions: Tensor) -> Tensor:
        """Return f^T M f for each row f of `directions` (k, d), (k,)."""
        rows = torch.from_numpy(self._rows).to(self.device)[:, None]
        parts = torch.split(directions, max(1, _VALUES // self._features.nodes))
        return torch.cat([self._features.matmul(part.T.contiguous()).square_().mul_(rows).sum(dim=0) for part in parts])


class DelayedInverse:
    """M+, (d, d) float64: a stored matrix plus F^T diag(signs) F for the rows F (k, d) that wait to be added to it.

    The value never changes; `settle` changes only its form. Versions of a model share the stored matrix.
    """

    def __init__(self, stored: Tensor, rows: Tensor | None = None, signs: Tensor | None = None) -> None:
        """`rows` (k, d) wait, with their `signs` (k,), 1 or -1; by default none do."""
        self.stored = stored
        self.rows = stored[:0] if rows is None else rows
        self.signs = stored[:0, 0] if signs is None else signs
        self._size: float | None = None

    @property
    def shape(self) -> torch.Size:
        """(d, d)."""
        return self.stored.shape

    @property
    def device(self) -> torch.device:
        """The device of the stored matrix."""
        return self.stored.device

    def __matmul__(self, right: Tensor) -> Tensor:
        """Return M+ right, (d, c), for `right` (d, c)."""
        product = self.stored @ by_columns(right)
        return product.addmm_(self.rows.T, (self.rows @ right).mul_(self.signs[:, None])) if len(self.rows) else product

    def __rmatmul__(self, left: Tensor) -> Tensor:
        """Return `left` M+, (m, d), for `left` (m, d), fast if most of it is zero."""
        left = as_sparse(left)
        product = left @ self.stored
        return (
            product.addmm_((left @ self.rows.T.contiguous()).mul_(self.signs), self.rows) if len(self.rows) else product
        )

    def plus(self, rows: Tensor, sign: float) -> "DelayedInverse":
        """Return M+ + `sign` rows^T rows for `rows` (k, d)."""
        later = DelayedInverse(
            self.stored, torch.cat([self.rows, rows]), torch.cat([self.signs, rows.new_full((len(rows),), sign)])
        )
        later._size = self._size
        return later

    def whole(self) -> Tensor:
        """Return M+ itself, (d, d)."""
        return rank_update(self.stored, self.rows, self.signs) if len(self.rows) else self.stored

    def settle(self) -> None:
        """Add the rows to the stored matrix, in new memory: other versions may share the old one."""
        if len(self.rows):
            self.stored = self.whole()
            self.rows, self.signs, self._size = self.stored[:0], self.stored[:0, 0], None
            # Now, because the next deletion would wait for it.
            self.size_bound()

    def size_bound(self) -> float:
        """Return an upper bound on |M+|_F."""
        if self._size is None:
            self._size = float(torch.linalg.norm(self.stored))
        return self._size + float(self.rows.square().sum())


Matrix = Tensor | RowGram
PseudoInverse = Tensor | DelayedInverse


def whole(matrix: Matrix | PseudoInverse) -> Tensor:
    """Return the matrix itself, (d, d); read only."""
    return matrix if isinstance(matrix, Tensor) else matrix.whole()


def leverages(matrix: PseudoInverse, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return X M+, (m, d), and X M+ X^T, (m, m), for rows X (m, d)."""
    Y = X @ matrix
    return Y, symmetrise(Y @ X.T if isinstance(matrix, Tensor) else as_sparse(X) @ Y.T.contiguous())


def stored(matrix: PseudoInverse) -> Tensor:
    """Return the part of M+ that is stored, (d, d); read only."""
    return matrix if isinstance(matrix, Tensor) else matrix.stored


def size_bound(matrix: PseudoInverse) -> float:
    """Return an upper bound on |M+|_F, exact for a matrix that is stored whole."""
    return float(torch.linalg.norm(matrix)) if isinstance(matrix, Tensor) else matrix.size_bound()


def plus(matrix: PseudoInverse, rows: Tensor, sign: float) -> PseudoInverse:
    """Return M+ + `sign` rows^T rows for `rows` (k, d)."""
    return rank_update(matrix, rows, sign) if isinstance(matrix, Tensor) else matrix.plus(rows, sign)


def without(matrix: PseudoInverse, directions: Tensor) -> PseudoInverse:
    """Return (I - QQ^T) M+ (I - QQ^T) for Q (d, k), orthonormal; a matrix that is stored whole is overwritten.

    This is M+ - Q R^T - R Q^T with R = M+ Q - Q (Q^T M+ Q) / 2.
    """
    if directions.shape[1] == 0:
        return matrix
    applied = matrix @ directions
    half = applied - 0.5 * directions @ (directions.T @ applied)
    if isinstance(matrix, Tensor):
        left, right = torch.cat([directions, half], dim=1), torch.cat([half, directions], dim=1)
        return matrix.addmm_(left, right.T, alpha=-1.0)
    # As a difference of squares, of vectors of one length: the longer one's rounding would hide the shorter one.
    roots = torch.linalg.vector_norm(half, dim=0).clamp_min(torch.finfo(half.dtype).tiny).sqrt()
    near, far = directions * roots, half / roots
    return matrix.plus((near - far).T / 2**0.5, 1.0).plus((near + far).T / 2**0.5, -1.0)


def as_sparse(rows: Tensor) -> Tensor:
    """Return `rows` (m, d) in CSR if most values are zero, else as they are."""
    return rows.to_sparse_csr() if int(rows.count_nonzero()) <= _SPARSE_SHARE * rows.numel() else rows


def goes_through_rows(features: FeatureMatrix) -> bool:
    """Return whether products with M cost less through the rows of `features` than with a stored M."""
    return not features.dense and _READ_BY_VALUE * features.values < features.num_features**2
