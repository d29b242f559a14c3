"""Products with large symmetric matrices, and exact symmetry, without a second matrix."""

import torch
from torch import Tensor

#: Rows and columns of a tile; two tiles are all that is allocated.
_TILE = 1_024
#: Rows of a strip of a rank update, and the rank from which half of the products costs more than a copy across.
_STRIP = 256
_LEAST_RANK = 16


def rank_update(matrix: Tensor, rows: Tensor, factor: float) -> Tensor:
    """`matrix` + `factor` rows^T rows for symmetric `matrix` (d, d) and `rows` (m, d), as a new symmetric matrix.

    Strips above the diagonal are computed, and those below are copied from them.
    """
    if rows.shape[0] < _LEAST_RANK or matrix.shape[0] <= _STRIP:
        return torch.addmm(matrix, rows.T, rows, alpha=factor)
    out = torch.empty_like(matrix)
    for start in range(0, matrix.shape[0], _STRIP):
        stop = start + _STRIP
        strip = out[start:stop, start:]
        torch.addmm(matrix[start:stop, start:], rows[:, start:stop].T, rows[:, start:], alpha=factor, out=strip)
        out[stop:, start:stop].copy_(strip[:, _STRIP:].T)
    return out


def by_columns(right: Tensor) -> Tensor:
    """`right` (d, c) stored column after column: a matrix times a few columns takes half the time on them."""
    return right.T.contiguous().T


def symmetrise(matrix: Tensor) -> Tensor:
    """Overwrites a (d, d) matrix with its symmetric part and returns it; the diagonal is kept."""
    size = matrix.shape[0]
    for row in range(0, size, _TILE):
        for column in range(row, size, _TILE):
            upper = matrix[row : row + _TILE, column : column + _TILE]
            lower = matrix[column : column + _TILE, row : row + _TILE]
            mean = (upper + lower.T).mul_(0.5)
            upper.copy_(mean)
            lower.copy_(mean.T)
    return matrix
