"""Products of large symmetric matrices and exact symmetry, without a second matrix."""

import torch
from torch import Tensor

#: Rows and columns of a tile. Two tiles are the only allocation.
_TILE = 1_024
#: Rows of a strip in a rank update, and the rank from which halving the products saves more than copying costs.
_STRIP = 256
_LEAST_RANK = 16


def rank_update(matrix: Tensor, rows: Tensor, factor: float | Tensor) -> Tensor:
    """Return `matrix` + rows^T diag(`factor`) rows for symmetric `matrix` (d, d) and `rows` (m, d), exactly symmetric.

    `factor` is 1 or -1, the same for all rows or one each, (m,). Computes strips above the diagonal and copies them
    below it.
    """
    left = rows.T if isinstance(factor, float) else rows.T * factor
    alpha = factor if isinstance(factor, float) else 1.0
    if rows.shape[0] < _LEAST_RANK or matrix.shape[0] <= _STRIP:
        return torch.addmm(matrix, left, rows, alpha=alpha)
    out = torch.empty_like(matrix)
    for start in range(0, matrix.shape[0], _STRIP):
        stop = start + _STRIP
        strip = out[start:stop, start:]
        torch.addmm(matrix[start:stop, start:], left[start:stop], rows[:, start:], alpha=alpha, out=strip)
        out[stop:, start:stop].copy_(strip[:, _STRIP:].T)
    return out


def by_columns(right: Tensor) -> Tensor:
    """Return `right` (d, c) stored by columns, which halves the time of a matrix product with few columns."""
    return right.T.contiguous().T


def symmetrise(matrix: Tensor) -> Tensor:
    """Overwrite a (d, d) matrix with its symmetric part and return it; the diagonal stays."""
    size = matrix.shape[0]
    for row in range(0, size, _TILE):
        for column in range(row, size, _TILE):
            upper = matrix[row : row + _TILE, column : column + _TILE]
            lower = matrix[column : column + _TILE, row : row + _TILE]
            mean = (upper + lower.T).mul_(0.5)
            upper.copy_(mean)
            lower.copy_(mean.T)
    return matrix
