"""The two layouts of a matrix with one part per block: stacked, (blocks, k, C), or side by side, (k, blocks * C).

Storage and interfaces use the stacked layout. Computations use side by side, with one matrix product for all blocks.
"""

from torch import Tensor


def side_by_side(blocks: Tensor) -> Tensor:
    """Return (blocks, k, C) as (k, blocks * C)."""
    return blocks.permute(1, 0, 2).reshape(blocks.shape[1], blocks.shape[0] * blocks.shape[2])


def by_block(matrix: Tensor, classes: int) -> Tensor:
    """Return (k, blocks * C) as (blocks, k, C)."""
    return matrix.reshape(matrix.shape[0], matrix.shape[1] // classes, classes).permute(1, 0, 2)
