"""The representation H of training nodes as an operator: H = S [R_b X, one block per operator of each input].

Letters: X (n, k) an input, R_b (n, n) its operators, S (n_train, n) selects the training rows. The weights of all
blocks of all inputs are stacked in one matrix W (p, C), feature blocks first; p is the number of columns of H.

H is dense even where X and R_b are sparse, so products with it go through the factors: on Cora, Citeseer, Pubmed and
Coauthor CS these are 6 to 40 times faster than products with H itself. Where H itself is faster, training keeps it
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

#: Columns of an input propagated at a time when H is materialised, and how much they may take over all nodes.
_CHUNK_COLUMNS = 512
_CHUNK_BYTES = 8 << 20
#: Fewer take half as long again for each. [612,000 nodes, 15.5 million edges.]
_LEAST_COLUMNS = 4
#: Matrices with fewer columns are multiplied from the left.
_FEW_COLUMNS = 16


def transposed_product(H: Tensor, R: Tensor) -> Tensor:
    """H^T R, (p, C), for H (n, p) and R (n, C) of one dtype.

    [4,590 x 745, C = 8, in float32: 3 times as fast as (R^T H)^T; 18,217 x 500, C = 3: 9 times. With C = 40 H^T R is.]
    """
    return (R.T @ H).T if R.shape[1] < _FEW_COLUMNS else H.T @ R


class Representation:
    """H on a device, in float64; with several workers each has the own rows of what is given by training rows.

    Below, n_own is how many of the n_train rows those are: all, for one that is alone.
    """

    def __init__(
        self,
        inputs: Inputs,
        rows: NDArray[np.int64],
        workers: Workers = ALONE,
        division: Division | None = None,
    ) -> None:
        """`rows` (n_train,) are the rows S selects, of which each worker has some; None for `division`: as many."""
        self.inputs = inputs
        self.workers = workers
        self.division = division or Division.evenly(rows.size, workers.count)
        self._rows = torch.from_numpy(rows).to(inputs.features.rows.device)
        self._own_rows = self._rows[self.own]
        #: Whether W is one block, in both layouts the same.
        self._one_block = sum(each.operators.blocks for each in inputs) == 1

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._rows.device

    @property
    def rows(self) -> int:
        """n_train."""
        return int(self._rows.shape[0])

    @property
    def own(self) -> slice:
        """Which of the training rows are one's own."""
        return self.division.part(self.workers.rank)

    @property
    def nodes(self) -> int:
        """n."""
        return int(self.inputs.features.rows.nodes)

    @property
    def terms(self) -> int:
        """How many numbers an entry of H^T R adds up one after another at most."""
        return max(each.rows.terms for each in self.inputs) + self._neighbours

    @property
    def _neighbours(self) -> int:
        """How many a node's sums over its neighbours add up at most: over those of a hub go no chunks."""
        return max(int(each.operators.row_entries.max()) for each in self.inputs)

    @property
    def columns(self) -> int:
        """p."""
        return sum(each.operators.blocks * each.rows.num_features for each in self.inputs)

    def split(self, W: Tensor) -> list[Tensor]:
        """The rows of W (p, C) that belong to each input, as (blocks, k, C)."""
        parts, start = [], 0
        for each in self.inputs:
            blocks, width = each.operators.blocks, each.rows.num_features
            parts.append(W[start : start + blocks * width].reshape(blocks, width, W.shape[1]))
            start += blocks * width
        return parts

    def all_logits(self, W: Tensor) -> Tensor:
        """sum_b R_b X W_b over all inputs, for every node, (n, C)."""
        return self.inputs.logits([W] if self._one_block else [side_by_side(blocks) for blocks in self.split(W)])

    @together
    def logits_at_first(self, W: Tensor) -> Tensor:
        """sum_b R_b X W_b over all inputs, for every node, (n, C), at the first worker; no rows at the others."""
        classes = self.classes(W.shape[1])
        own = W[:, classes.part(self.workers.rank)]
        columns = self.all_logits(own) if own.shape[1] else own.new_empty((self.nodes, 0))
        return self.workers.to_rows(columns, Division.at_first(self.nodes, self.workers.count), classes)

    def classes(self, number: int) -> Division:
        """Which of so many classes each worker sweeps over the graph for."""
        return Division.evenly(number, self.workers.count)

    def logits(self, W: Tensor) -> Tensor:
        """H W, (n_own, C)."""
        classes = self.classes(W.shape[1])
        own = W[:, classes.part(self.workers.rank)]
        columns = self.all_logits(own)[self._rows] if own.shape[1] else own.new_empty((self.rows, 0))
        return self.workers.to_rows(columns, self.division, classes)

    def scattered(self, R: Tensor) -> Tensor:
        """S^T R for R (n_train, c), all rows of some columns: (n, c)."""
        return R.new_zeros((self.nodes, R.shape[1])).index_copy_(0, self._rows, R)

    def transposed(self, R: Tensor) -> Tensor:
        """H^T R for R of which these are one's own rows, (n_own, C): (p, C)."""
        classes = self.classes(R.shape[1])
        own = self.workers.to_columns(R, self.division, classes)
        columns = self._transposed(own) if own.shape[1] else own.new_empty((self.columns, 0))
        return self.workers.joined(columns.T, classes).T

    def _transposed(self, R: Tensor) -> Tensor:
        """H^T R for R (n_train, c), all rows of some columns: (p, c)."""
        classes = R.shape[1]
        adjoints = zip(self.inputs, self.inputs.adjoint(self.scattered(R)), strict=True)
        products = [each.transposed_matmul(adjoint) for each, adjoint in adjoints]
        if self._one_block:
            return products[0]
        return torch.cat([by_block(product, classes).reshape(-1, classes) for product in products])

    def adjoint(self, R: Tensor) -> list[Tensor]:
        """For each input R_b^T S^T R of its blocks b, (blocks, n, c), for R (n_train, c), all rows of some columns."""
        classes = R.shape[1]
        if not classes:
            return [R.new_empty((each.operators.blocks, self.nodes, 0)) for each in self.inputs]
        return [by_block(adjoint, classes) for adjoint in self.inputs.adjoint(self.scattered(R))]

    def total(self, value: float) -> float:
        """The sum of everybody's `value`."""
        if self.workers.count == 1:
            return value
        return float(self.workers.sum(torch.tensor([value], dtype=torch.float64, device=self._rows.device)))

    def norm(self, R: Tensor) -> float:
        """|R|_F of all rows together, for one's own rows of R (n_own, …)."""
        size = float(torch.linalg.norm(R))
        return size if self.workers.count == 1 else math.sqrt(self.total(size**2))

    @cached_property
    def row_bounds(self) -> Tensor:
        """At least the norm of each row of H, (n_own,): sqrt(sum_b (R_b |x|)_i^2), |x| the norms of the inputs' rows.

        No entry of an operator is negative. It is also what rounding goes by in products through the factors, which
        err before their terms cancel, and takes one sweep over a single column. [At most 3.5 times the norm on Cora,
        Citeseer, Pubmed, Amazon Photo and arXiv, 1.3 to 2 in the middle.]
        """
        squares = torch.zeros((self.nodes, 1), dtype=torch.float64, device=self._rows.device)
        for each in self.inputs:
            for image in each.uncancelled.images(each.row_norms()):
                squares.addcmul_(image, image)
        return squares[self._own_rows, 0].sqrt_()

    def logit_rounding(self, passed: Tensor) -> float:
        """How far rounding of the logits can move sum_i w_i dz_i, at least 0; `passed` (n_own,) are one's own of w.

        In units of eps |W|_F / sqrt(6), by adding up variances: a sum of L terms errs by sqrt(L). A node's product with
        W has k terms and reaches every row that the node does; what a row adds up over its neighbours is its own.
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
        """H a few columns at a time: the first of them, and the columns (n_own, width), until all were given.

        Each worker makes columns of its own, for all rows.
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
        """S R_b X[:, start:…] for each block b, (n_train, k), of as many columns as one takes."""
        width = taken.counts[self.workers.rank]
        if not width:
            nothing = self._rows.new_empty((self.rows, 0), dtype=torch.float64)
            yield from itertools.repeat(nothing, given.operators.blocks)
            return
        for image in given.operators.images(given.columns(start, start + width)):
            yield image[self._rows]

    def dense(self) -> Tensor:
        """H itself, (n_own, p); takes n_own * p * 8 bytes."""
        H = self.empty()
        for start, columns in self.column_chunks():
            H[:, start : start + columns.shape[1]] = columns
        return H

    def empty(self) -> Tensor:
        """A matrix (n_own, p) float64 to put H in."""
        own = self.division.counts[self.workers.rank]
        return torch.empty((own, self.columns), dtype=torch.float64, device=self._rows.device)

    def with_dense(self, H: Tensor) -> "DenseRepresentation":
        """The same by `H` (n_own, p) float64, which is kept."""
        return DenseRepresentation(self.inputs, self._rows.cpu().numpy(), H, self.workers, self.division)

    def bytes_of_product(self, classes: int) -> float:
        """What a product with H and one with H^T read, about."""
        return 2 * sum(each.rows.stored_bytes * (1 if each.rows.dense else max(1, classes / 4)) for each in self.inputs)


class DenseRepresentation(Representation):
    """H on a device, kept: products with training rows are taken with H itself, those with all nodes are not."""

    def __init__(
        self,
        inputs: Inputs,
        rows: NDArray[np.int64],
        H: Tensor | None = None,
        workers: Workers = ALONE,
        division: Division | None = None,
    ) -> None:
        """`H` (n_own, p) float64 is kept, not copied; without it H is computed."""
        super().__init__(inputs, rows, workers, division)
        self._H = super().dense() if H is None else H

    def logits(self, W: Tensor) -> Tensor:
        """H W, (n_own, C)."""
        return self._H @ W

    def transposed(self, R: Tensor) -> Tensor:
        """H^T R for R of which these are one's own rows, (n_own, C): (p, C)."""
        product = R.new_zeros((self.columns, R.shape[1]))
        for rows, residual in zip(*(torch.split(each, CHUNK_ROWS) for each in (self._H, R)), strict=True):
            product += transposed_product(rows, residual)
        return self.workers.sum(product)

    @property
    def terms(self) -> int:
        """How many numbers an entry of H^T R adds up one after another at most."""
        return chunked_terms(self.rows) + self.workers.count + self._neighbours

    def logit_rounding(self, passed: Tensor) -> float:
        """That of H itself and of its products with W, of p terms."""
        return math.hypot(super().logit_rounding(passed), math.sqrt(self.columns) * self.norm(self.row_bounds * passed))

    def dense(self) -> Tensor:
        """H itself, (n_own, p), not to be written to."""
        return self._H

    def bytes_of_product(self, classes: int) -> float:
        """What a product with H and one with H^T read in single precision."""
        return 2.0 * 4 * self._H.numel()
