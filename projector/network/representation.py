"""The representation H of training nodes as an operator: H = S [R_b X, one block per operator of each input].

Letters: X (n, k) an input, R_b (n, n) its operators, S (n_train, n) selects the training rows. One matrix W (p, C)
stacks the weights of all blocks of all inputs, feature blocks first; p is the number of columns of H.

H is dense even if X and R_b are sparse, so products with it go through the factors: on Cora, Citeseer, Pubmed and
Coauthor CS these are 6 to 40 times faster than products with H itself. Training keeps H itself if that is faster
(`product_costs`).
"""

import itertools
import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.graph.features import CHUNK_ROWS, chunked_terms
from projector.network.blocks import by_block, side_by_side
from projector.network.inputs import Input, Inputs
from projector.parallel.workers import ALONE, Division, Workers, together

#: Columns of an input propagated at a time when H is materialised, and their memory limit over all nodes.
_CHUNK_COLUMNS = 512
_CHUNK_BYTES = 8 << 20
#: Fewer columns take half as long again per column. [612,000 nodes, 15.5 million edges.]
_LEAST_COLUMNS = 4
#: Below this number of columns, multiply from the left.
_FEW_COLUMNS = 16


def transposed_product(H: Tensor, R: Tensor) -> Tensor:
    """Return H^T R, (p, C), for H (n, p) and R (n, C) of one dtype.

    [4,590 x 745, C = 8, in float32: (R^T H)^T is 3 times as fast as H^T R; 18,217 x 500, C = 3: 9 times. With C = 40
    it is 1.4 times as fast in float64, and no faster in float32.]
    """
    return (R.T @ H).T if R.shape[1] < _FEW_COLUMNS or R.dtype == torch.float64 else H.T @ R


class Representation:
    """H on a device, in float64. Several workers each hold their own part of everything indexed by training row.

    Below, n_own is the number of own rows out of n_train: all, with a single worker.
    """

    def __init__(
        self,
        inputs: Inputs,
        rows: NDArray[np.int64],
        workers: Workers = ALONE,
        division: Division | None = None,
    ) -> None:
        """`rows` (n_train,) are the rows that S selects. `division` assigns them to workers, evenly if None."""
        self.inputs = inputs
        self.workers = workers
        self.division = division or Division.evenly(rows.size, workers.count)
        self._rows = torch.from_numpy(rows).to(inputs.features.rows.device)
        self._own_rows = self._rows[self.own]
        #: Whether W is one block, identical in both layouts.
        self._one_block = sum(each.operators.blocks for each in inputs) == 1

    @property
    def device(self) -> torch.device:
        """The device of the computation."""
        return self._rows.device

    @property
    def rows(self) -> int:
        """n_train."""
        return int(self._rows.shape[0])

    @property
    def own(self) -> slice:
        """This worker's part of the training rows."""
        return self.division.part(self.workers.rank)

    @property
    def nodes(self) -> int:
        """n."""
        return int(self.inputs.features.rows.nodes)

    @property
    def terms(self) -> int:
        """Most terms that an entry of H^T R adds in sequence."""
        return max(each.rows.terms for each in self.inputs) + self._neighbours

    @property
    def _neighbours(self) -> int:
        """Most terms in a node's sum over its neighbours: a hub's sum is not chunked."""
        return max(int(each.operators.row_entries.max()) for each in self.inputs)

    @property
    def columns(self) -> int:
        """p."""
        return sum(each.operators.blocks * each.rows.num_features for each in self.inputs)

    def split(self, W: Tensor) -> list[Tensor]:
        """Return the rows of W (p, C) that belong to each input, as (blocks, k, C)."""
        parts, start = [], 0
        for each in self.inputs:
            blocks, width = each.operators.blocks, each.rows.num_features
            parts.append(W[start : start + blocks * width].reshape(blocks, width, W.shape[1]))
            start += blocks * width
        return parts

    def all_logits(self, W: Tensor) -> Tensor:
        """Return sum_b R_b X W_b over all inputs, for every node, (n, C)."""
        return self.inputs.logits([W] if self._one_block else [side_by_side(blocks) for blocks in self.split(W)])

    @together
    def logits_at_first(self, W: Tensor) -> Tensor:
        """Return sum_b R_b X W_b over all inputs, for every node, (n, C), on the first worker; no rows elsewhere."""
        classes = self.classes(W.shape[1])
        own = W[:, classes.part(self.workers.rank)]
        columns = self.all_logits(own) if self._takes_part(own) else own.new_empty((self.nodes, 0))
        return self.workers.to_rows(columns, Division.at_first(self.nodes, self.workers.count), classes)

    def classes(self, number: int) -> Division:
        """Return how workers divide `number` classes for their sweeps over the graph."""
        return Division.evenly(number, self.workers.count)

    def logits(self, W: Tensor) -> Tensor:
        """Return H W, (n_own, C)."""
        classes = self.classes(W.shape[1])
        own = W[:, classes.part(self.workers.rank)]
        columns = self.all_logits(own)[self._rows] if self._takes_part(own) else own.new_empty((self.rows, 0))
        return self.workers.to_rows(columns, self.division, classes)

    def _takes_part(self, columns: Tensor) -> bool:
        """Return whether this worker sweeps over the graph for its own `columns`; all do so if they divide P."""
        return columns.shape[1] > 0 or self.inputs.share is not None

    def scattered(self, R: Tensor) -> Tensor:
        """Return S^T R, (n, c), for R (n_train, c): all rows of some columns."""
        return R.new_zeros((self.nodes, R.shape[1])).index_copy_(0, self._rows, R)

    def transposed(self, R: Tensor) -> Tensor:
        """Return H^T R, (p, C), from this worker's rows of R, (n_own, C)."""
        classes = self.classes(R.shape[1])
        own = self.workers.to_columns(R, self.division, classes)
        columns = self._transposed(own) if self._takes_part(own) else own.new_empty((self.columns, 0))
        return self.workers.joined(columns.T, classes).T

    def _transposed(self, R: Tensor) -> Tensor:
        """Return H^T R, (p, c), for R (n_train, c): all rows of some columns."""
        classes = R.shape[1]
        adjoints = zip(self.inputs, self.inputs.adjoint(self.scattered(R)), strict=True)
        if not classes:
            return R.new_empty((self.columns, 0))
        products = [each.transposed_matmul(adjoint) for each, adjoint in adjoints]
        if self._one_block:
            return products[0]
        return torch.cat([by_block(product, classes).reshape(-1, classes) for product in products])

    def adjoint(self, R: Tensor) -> list[Tensor]:
        """Return R_b^T S^T R per block b of each input, (blocks, n, c), for all rows of some columns R (n_train, c)."""
        classes = R.shape[1]
        adjoints = self.inputs.adjoint(self.scattered(R)) if self._takes_part(R) else []
        if not classes:
            return [R.new_empty((each.operators.blocks, self.nodes, 0)) for each in self.inputs]
        return [by_block(adjoint, classes) for adjoint in adjoints]

    def total(self, value: float) -> float:
        """Return the sum of all workers' `value`."""
        if self.workers.count == 1:
            return value
        return float(self.workers.sum(torch.tensor([value], dtype=torch.float64, device=self._rows.device)))

    def norm(self, R: Tensor) -> float:
        """Return |R|_F over all workers' rows, from this worker's rows of R (n_own, …)."""
        size = float(torch.linalg.norm(R))
        return size if self.workers.count == 1 else math.sqrt(self.total(size**2))

    @cached_property
    def row_bounds(self) -> Tensor:
        """Upper bound on each row norm of H, (n_own,): sqrt(sum_b (R_b |x|)_i^2), |x| the norms of the inputs' rows.

        Operators have no negative entries. The bound also governs rounding in products through the factors, which err
        before their terms cancel. It takes one sweep over a single column. [At most 3.5 times the norm on Cora,
        Citeseer, Pubmed, Amazon Photo and arXiv, a median of 1.3 to 2.]
        """
        squares = torch.zeros((self.nodes, 1), dtype=torch.float64, device=self._rows.device)
        for each in self.inputs:
            for image in each.uncancelled.images(each.row_norms()):
                squares.addcmul_(image, image)
        return squares[self._own_rows, 0].sqrt_()

    def logit_rounding(self, passed: Tensor) -> float:
        """Return how far rounding of the logits can move sum_i w_i dz_i, w_i >= 0; `passed` (n_own,) is the own w.

        The unit is eps |W|_F / sqrt(6). Variances add up: a sum of L terms errs by sqrt(L). A node's product with W has
        k terms and reaches every row that the node reaches. A row's sum over its neighbours affects only that row.
        """
        blocks = sum(each.operators.blocks for each in self.inputs)
        lengths = sum((each.operators.row_entries for each in self.inputs), torch.tensor(float(blocks)))
        variance = self.total(float(((self.row_bounds * passed).square() * lengths[self._own_rows]).sum()))
        everywhere = self.scattered(self.workers.joined(passed[:, None], self.division))
        for each in self.inputs:
            reached = each.uncancelled.adjoint(everywhere)
            variance += each.rows.num_features * float((each.row_norms() * reached).square().sum())
        return math.sqrt(variance)

    def column_chunks(self) -> Iterator[tuple[int, Tensor]]:
        """Yield H a few columns at a time: the first column's number and the columns (n_own, width), until complete.

        Each worker computes its own columns for all rows.
        """
        width = max(_LEAST_COLUMNS, min(_CHUNK_COLUMNS, _CHUNK_BYTES // (8 * max(self.nodes, 1))))
        first = 0
        for each in self.inputs:
            k = each.rows.num_features
            for begins, taken in Division.evenly(k, self.workers.count).rounds(width):
                for block, image in enumerate(self._images(each, begins[self.workers.rank], taken)):
                    columns = self.workers.to_rows(image, self.division, taken)
                    for begin, part in zip(begins, taken.parts, strict=True):
                        if part.start < part.stop:
                            yield first + block * k + begin, columns[:, part]
            first += each.operators.blocks * k

    def _images(self, given: Input, start: int, taken: Division) -> Iterator[Tensor]:
        """Yield S R_b X[:, start:…] for each block b, (n_train, k), with this worker's number of columns."""
        width = taken.counts[self.workers.rank]
        nothing = self._rows.new_empty((self.nodes, 0), dtype=torch.float64)
        columns = given.columns(start, start + width) if width else nothing
        if not self._takes_part(columns):
            yield from itertools.repeat(nothing[self._rows], given.operators.blocks)
            return
        for image in given.operators.images(columns):
            yield image[self._rows]

    def dense(self) -> Tensor:
        """Return H itself, (n_own, p); takes n_own * p * 8 bytes."""
        H = self.empty()
        for start, columns in self.column_chunks():
            H[:, start : start + columns.shape[1]] = columns
        return H

    def empty(self) -> Tensor:
        """Return an uninitialised matrix (n_own, p) float64 for H."""
        own = self.division.counts[self.workers.rank]
        return torch.empty((own, self.columns), dtype=torch.float64, device=self._rows.device)

    def with_dense(self, H: Tensor) -> "DenseRepresentation":
        """Return the same representation with `H` (n_own, p) float64, which is kept, not copied."""
        return DenseRepresentation(self.inputs, self._rows.cpu().numpy(), H, self.workers, self.division)

    def bytes_of_product(self, classes: int) -> float:
        """Return the approximate bytes read by a product with H plus one with H^T."""
        return 2 * sum(each.rows.stored_bytes * (1 if each.rows.dense else max(1, classes / 4)) for each in self.inputs)


class DenseRepresentation(Representation):
    """H kept on a device: products with training rows use H itself, those with all nodes do not."""

    def __init__(
        self,
        inputs: Inputs,
        rows: NDArray[np.int64],
        H: Tensor | None = None,
        workers: Workers = ALONE,
        division: Division | None = None,
    ) -> None:
        """Keep `H` (n_own, p) float64 without a copy, or compute H if None."""
        super().__init__(inputs, rows, workers, division)
        self._H = super().dense() if H is None else H

    def logits(self, W: Tensor) -> Tensor:
        """Return H W, (n_own, C)."""
        # (W^T H^T)^T is twice as fast as H W. [12,000 x 800, C = 40, in float64.]
        return (W.T @ self._H.T).T.contiguous()

    def transposed(self, R: Tensor) -> Tensor:
        """Return H^T R, (p, C), from this worker's rows of R, (n_own, C)."""
        product = R.new_zeros((self.columns, R.shape[1]))
        for rows, residual in zip(*(torch.split(each, CHUNK_ROWS) for each in (self._H, R)), strict=True):
            product += transposed_product(rows, residual)
        return self.workers.sum(product)

    @property
    def terms(self) -> int:
        """Most terms that an entry of H^T R adds in sequence."""
        return chunked_terms(self.rows) + self.workers.count + self._neighbours

    def logit_rounding(self, passed: Tensor) -> float:
        """Return the rounding of H itself combined with that of its products with W, of p terms."""
        return math.hypot(super().logit_rounding(passed), math.sqrt(self.columns) * self.norm(self.row_bounds * passed))

    def dense(self) -> Tensor:
        """Return H itself, (n_own, p), read only."""
        return self._H

    def bytes_of_product(self, classes: int) -> float:
        """Return the bytes read by a product with H plus one with H^T in single precision."""
        return 2.0 * 4 * self._H.numel()
