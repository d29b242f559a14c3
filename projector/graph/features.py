"""Node features on a device, dense or CSR, with the operations for the Gram matrix and the live graph."""

import copy
import warnings
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.device import all_threads
from projector.graph.graph import Features
from projector.graph.ranges import index_type, ranges

#: Rows converted to float64 at a time if stored as float32, and added up before the chunk sums are.
CHUNK_ROWS = 32_768


class FeatureMatrix:
    """X, (n, d), in its stored dtype. Every product is computed in float64, with all threads."""

    def __init__(self, features: Features, device: torch.device | str = "cpu") -> None:
        """Does not copy dense features on the CPU: `forget` overwrites the given array."""
        self.device = torch.device(device)
        self.nodes, self.num_features = features.shape
        self._sparse: sp.csr_array | None = None
        # X^T in CSR, built on first use: several times faster than a product with X transposed.
        self._transposed: Tensor | None = None
        self._row_norms: Tensor | None = None
        if sp.issparse(features):
            self._sparse = sp.csr_array(features, copy=True)
            self._matrix = csr_tensor(self._sparse, self.device)
        else:
            self._matrix = torch.from_numpy(features).to(self.device)

    @property
    def dense(self) -> bool:
        """Whether X is stored dense."""
        return self._sparse is None

    @property
    def stored_bytes(self) -> int:
        """Bytes that a product with X reads: its values and, for CSR, their columns."""
        if self._sparse is None:
            return self._matrix.numel() * self._matrix.element_size()
        return int(self._sparse.data.nbytes + self._sparse.indices.nbytes)

    @property
    def values(self) -> int:
        """Number of stored values."""
        return self._matrix.numel() if self._sparse is None else self._sparse.nnz

    @property
    def terms(self) -> int:
        """Largest number of terms that an entry of X^T right adds in sequence; sums of chunks have fewer than n."""
        return self.nodes if self._sparse is not None else chunked_terms(self.nodes)

    @property
    def row_norms(self) -> Tensor:
        """The norm |x_j| of every row, (n,) float64, computed once. Read only."""
        if self._row_norms is None:
            if self._sparse is not None:
                squares = self._sparse.astype(np.float64).power(2).sum(axis=1)
                self._row_norms = torch.from_numpy(np.sqrt(squares)).to(self.device)
            else:
                # Some rows at a time, because torch makes a float64 copy of what it is given.
                parts = torch.split(self._matrix, CHUNK_ROWS)
                self._row_norms = torch.cat(
                    [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts]
                )
        return self._row_norms

    def with_rows(self, rows: NDArray[np.int64], values: Features) -> "FeatureMatrix":
        """Return X with `values` (m, d) as its rows `rows` (m,), ascending. Rows from n on are appended.

        `values` have the layout and dtype of X. X itself stays unchanged.
        """
        changed = copy.copy(self)
        changed.nodes = max(self.nodes, int(rows.max(initial=-1)) + 1)
        changed._transposed = changed._row_norms = None
        if self._sparse is not None:
            order = np.arange(changed.nodes)
            order[rows] = self.nodes + np.arange(rows.size)
            changed._sparse = sp.csr_array(sp.vstack([self._sparse, values], format="csr")[order])
            changed._matrix = csr_tensor(changed._sparse, self.device)
            return changed
        given, old = torch.from_numpy(values).to(self.device), int((rows < self.nodes).sum())
        changed._matrix = torch.cat([self._matrix, given[old:]])
        changed._matrix[torch.from_numpy(rows[:old]).to(self.device)] = given[:old]
        return changed

    def part(self, rows: NDArray[np.int64]) -> "FeatureMatrix":
        """Return a copy of the rows `rows` (m,)."""
        chosen = copy.copy(self)
        chosen.nodes, chosen._transposed, chosen._row_norms = rows.size, None, None
        if self._sparse is None:
            chosen._matrix = self._matrix[torch.from_numpy(rows).to(self.device)]
        else:
            chosen._sparse = sp.csr_array(self._sparse[rows])
            chosen._matrix = csr_tensor(chosen._sparse, self.device)
        return chosen

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which X is stored, float32 or float64."""
        return np.dtype(str(self._matrix.dtype).removeprefix("torch.")) if self._sparse is None else self._sparse.dtype

    def dense_rows(self, rows: NDArray[np.int64]) -> Tensor:
        """Return X[rows], (m, d) float64 on the device."""
        if self._sparse is not None:
            return torch.from_numpy(self._sparse[rows].toarray().astype(np.float64)).to(self.device)
        return self._matrix[torch.from_numpy(rows).to(self.device)].to(torch.float64)

    def dense_columns(self, start: int, stop: int, rows: NDArray[np.int64] | None = None) -> Tensor:
        """Return a copy of X[rows, start:stop], or of all its rows, (m, stop - start) float64 on the device."""
        if self._sparse is not None:
            columns = self._sparse_columns(start, stop)
            return columns if rows is None else columns[torch.from_numpy(rows).to(self.device)]
        columns = (
            self._matrix[:, start:stop]
            if rows is None
            else self._matrix[torch.from_numpy(rows).to(self.device), start:stop]
        )
        return columns.to(torch.float64, copy=True)

    @all_threads()
    def matmul(self, right: Tensor) -> Tensor:
        """Return X @ right, (n, c) float64, for `right` (d, c) float64."""
        if self._sparse is not None or self._matrix.dtype == torch.float64:
            return self._matrix @ right
        out = torch.empty((self.nodes, right.shape[1]), dtype=torch.float64, device=self.device)
        for start in range(0, self.nodes, CHUNK_ROWS):
            out[start : start + CHUNK_ROWS] = self._matrix[start : start + CHUNK_ROWS].to(torch.float64) @ right
        return out

    @all_threads()
    def transposed_matmul(self, right: Tensor, rows: NDArray[np.bool_] | None = None) -> Tensor:
        """Return X^T right, (d, c) float64, for `right` (n, c) float64, over the row mask `rows` (n,) if given."""
        if rows is not None:
            right = right * torch.from_numpy(rows).to(self.device)[:, None]
        if self._sparse is not None:
            return self._in_columns() @ right
        out = torch.zeros((self.num_features, right.shape[1]), dtype=torch.float64, device=self.device)
        for start in range(0, self.nodes, CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            out += self._matrix[chunk].to(torch.float64).T @ right[chunk]
        return out

    def _sparse_columns(self, start: int, stop: int) -> Tensor:
        """Return X[:, start:stop] of a CSR matrix, dense, without reading the other columns."""
        columns, width = self._in_columns(), stop - start
        starts = columns.crow_indices()[start : stop + 1]
        first, end = starts[[0, -1]].tolist()
        own = torch.arange(width, device=self.device).repeat_interleave(starts.diff(), output_size=end - first)
        dense = torch.zeros((self.nodes, width), dtype=torch.float64, device=self.device)
        # A copy: int64 indices would be changed in place.
        places = columns.col_indices()[first:end].to(torch.int64, copy=True).mul_(width).add_(own)
        dense.view(-1).index_add_(0, places, columns.values()[first:end])
        return dense

    def _in_columns(self) -> Tensor:
        """Return X^T of a CSR matrix, in CSR."""
        if self._transposed is None:
            assert self._sparse is not None
            self._transposed = csr_tensor(sp.csr_array(self._sparse.T), self.device)
        return self._transposed

    @all_threads()
    def gram(self, rows: NDArray[np.bool_]) -> Tensor:
        """Return X[rows]^T X[rows] for a row mask (n,): (d, d) float64, exactly symmetric."""
        if self._sparse is not None:
            kept = self._sparse[np.flatnonzero(rows)].astype(np.float64)
            return torch.from_numpy((kept.T @ kept).toarray()).to(self.device)
        out = torch.zeros((self.num_features, self.num_features), dtype=torch.float64, device=self.device)
        for chosen in _chunks(rows):
            block = self._matrix[torch.from_numpy(chosen).to(self.device)].to(torch.float64)
            out.addmm_(block.T, block)
        return symmetrised(out)

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Overwrite rows, including column indices, with zeros in place, once no state in use needs them."""
        if self._row_norms is not None:
            self._row_norms[torch.from_numpy(rows).to(self.device)] = 0
        if self._sparse is None:
            self._matrix[torch.from_numpy(rows).to(self.device)] = 0
            return
        entries = ranges(self._sparse.indptr[rows], self._sparse.indptr[rows + 1])
        self._sparse.data[entries] = self._sparse.indices[entries] = 0
        at = torch.from_numpy(entries).to(self.device)
        self._matrix.values()[at] = 0
        self._matrix.col_indices()[at] = 0
        if self._transposed is not None:
            self._transposed.values().zero_()
            self._transposed.col_indices().zero_()
            self._transposed = None


def chunked_terms(rows: int) -> int:
    """Return how many numbers a sum over `rows` adds in sequence: those of a chunk, then the chunk sums."""
    return min(rows, CHUNK_ROWS) + -(-rows // CHUNK_ROWS)


def csr_tensor(matrix: sp.csr_array, device: torch.device) -> Tensor:
    """Return `matrix` as a torch CSR tensor of float64 values on `device`, with int32 indices if they are large enough.

    On the CPU it shares the arrays of `matrix` that already have these types.
    """
    index = index_type(max(*matrix.shape, matrix.nnz))
    return csr_of(
        torch.from_numpy(matrix.indptr.astype(index, copy=False)),
        torch.from_numpy(matrix.indices.astype(index, copy=False)),
        torch.from_numpy(matrix.data.astype(np.float64, copy=False)),
        matrix.shape,
        device,
    )


def csr_of(
    starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int], device: torch.device | None = None
) -> Tensor:
    """Return a torch CSR tensor of these arrays, unchecked; on `device`, by default that of the arrays."""
    _silence_torch()
    return torch.sparse_csr_tensor(starts, columns, values, size=shape, device=device, check_invariants=False)


@cache
def _silence_torch() -> None:
    """Trigger torch's once-per-process warnings about CSR tensors here, where they are ignored."""
    starts, nothing = torch.zeros(2, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torch 2.11 warns about unchecked invariants even with the check turned off.
        torch.sparse_csr_tensor(starts, nothing, nothing, size=(1, 1), check_invariants=False)


def symmetrised(matrix: Tensor) -> Tensor:
    """Return the symmetric part of a (d, d) matrix, with the same diagonal."""
    return (matrix + matrix.T).mul_(0.5)


def _chunks(rows: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    chosen = np.flatnonzero(rows)
    return [chosen[start : start + CHUNK_ROWS] for start in range(0, chosen.size, CHUNK_ROWS)]
