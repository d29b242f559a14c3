"""Convert untrusted index arrays of sparse features to CSR.

Compiled code follows pointers and indices unchecked, and scipy's own check stops if the last pointer is 0. So this
module checks every pointer and every index first.
"""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from projector.graph.ranges import index_type

Numbers = NDArray[Any]


def from_compressed(
    pointers: Numbers, indices: Numbers, values: Numbers, shape: Sequence[int], *, by_columns: bool = False
) -> sp.csr_array:
    """Return the CSR matrix made of the parts of a CSR or BSR matrix or, with `by_columns`, of a CSC or BSC one.

    `values` are (k,), or (k, r, c) for blocks. Raises ValueError if the parts do not fit together.
    """
    major, minor = _two(shape)[:: -1 if by_columns else 1]
    if values.ndim not in (1, 3):
        raise ValueError(f"the values have shape {values.shape}")
    blocks = values.swapaxes(1, 2) if by_columns and values.ndim == 3 else values
    height, width = blocks.shape[1:] or (1, 1)
    if not height or not width or major % height or minor % width:
        raise ValueError(f"blocks of {height} x {width} do not fill a matrix of {major} x {minor}")
    if pointers.ndim != 1 or pointers.dtype.kind not in "iu" or pointers.size != major // height + 1:
        raise ValueError(f"the pointers are {pointers.dtype} of shape {pointers.shape} for a size of {major}")
    if pointers[0] != 0 or pointers[-1] != len(blocks) or (pointers[1:] < pointers[:-1]).any():
        raise ValueError(f"the pointers do not rise from 0 to the {len(blocks)} values that are stored")
    _require_indices(indices, len(blocks), minor // width)
    index = index_type(max(major, minor, blocks.size))
    parts = (blocks, indices.astype(index), pointers.astype(index))
    matrix = (
        sp.csr_array(parts, shape=(major, minor)) if values.ndim == 1 else sp.bsr_array(parts, shape=(major, minor))
    )
    return sp.csr_array(matrix.T if by_columns else matrix)


def from_coordinates(indices: Numbers, values: Numbers, shape: Sequence[int]) -> sp.csr_array:
    """Return a CSR matrix with `values` (k,) at rows and columns `indices` (2, k). Raises ValueError for a misfit."""
    rows, columns = _two(shape)
    if indices.ndim != 2 or len(indices) != 2 or values.ndim != 1:
        raise ValueError(f"the indices have shape {indices.shape} and the values {values.shape}")
    _require_indices(indices[0], values.size, rows)
    _require_indices(indices[1], values.size, columns)
    coordinates = indices.astype(index_type(max(rows, columns, values.size)))
    return sp.csr_array(sp.coo_array((values, (coordinates[0], coordinates[1])), shape=(rows, columns)))


def _two(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) != 2 or min(shape) < 0 or max(shape) > np.iinfo(np.int64).max:
        raise ValueError(f"the features have shape {tuple(shape)}")
    return operator.index(shape[0]), operator.index(shape[1])


def _require_indices(indices: Numbers, count: int, below: int) -> None:
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or indices.size != count:
        raise ValueError(f"the indices are {indices.dtype} of shape {indices.shape} for {count} values")
    if count and (indices.min() < 0 or indices.max() >= below):
        raise ValueError(f"an index is not within 0 to {below - 1}")
