"""The rows of P, divided among workers: each holds the values of its own rows and multiplies all workers' columns."""

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.parallel.workers import Division, Workers

#: Stored values of P from which it is divided. Below, exchanging columns at every hop costs more than memory is worth.
LEAST_ENTRIES = 1 << 23


@dataclass(frozen=True, eq=False)
class RowShare:
    """One worker's part of the rows."""

    workers: Workers
    #: The first row of each worker, except the first worker's. They stay fixed, so new rows go to the last worker.
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, starts: NDArray[np.integer], workers: Workers) -> "RowShare":
        """Divide rows that begin at the entries `starts` (n + 1,), with about as many entries for each worker."""
        shares = np.arange(1, workers.count) * (int(starts[-1]) / workers.count)
        return cls(workers, tuple(np.searchsorted(starts[:-1], shares).tolist()))

    def division(self, nodes: int) -> Division:
        """Return every worker's number of rows, out of `nodes`."""
        edges = (0, *self.bounds, nodes)
        return Division(tuple(stop - start for start, stop in itertools.pairwise(edges)))

    def rows(self, nodes: int) -> slice:
        """Return this worker's rows, out of `nodes`."""
        return self.division(nodes).part(self.workers.rank)

    def widest(self, width: int, device: torch.device) -> int:
        """Return the largest of all workers' `width`. `device` is that of the products."""
        return max(self._widths(width, device).counts)

    def product(self, P: Tensor, Y: Tensor) -> Tensor:
        """Return P Y, (n, c), for this worker's columns Y (n, c), from all workers' rows P (n_own, n).

        All workers call this together, including those without columns. One after another, they send theirs to all.
        """
        workers, widths = self.workers, self._widths(Y.shape[1], Y.device)
        own = Y.new_empty((P.shape[0], widths.length))
        for rank, part in enumerate(widths.parts):
            if part.start < part.stop:
                mine = rank == workers.rank
                columns = Y.contiguous() if mine else Y.new_empty((Y.shape[0], part.stop - part.start))
                workers.spread(columns, rank)
                if P.shape[0]:
                    own[:, part] = P @ columns
        return workers.to_columns(own, self.division(Y.shape[0]), widths)

    def _widths(self, width: int, device: torch.device) -> Division:
        each = Division((1,) * self.workers.count)
        return Division(tuple(self.workers.joined(torch.tensor([width], device=device), each).tolist()))
