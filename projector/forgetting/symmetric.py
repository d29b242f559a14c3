"""Exact symmetry without a second matrix."""

from torch import Tensor

#: Rows and columns of a tile; two tiles are all that is allocated.
_TILE = 1_024


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
