"""Squared distances between the ends of edges after some hops of diffusion, without forming the propagated matrix.

The rows H^(l) = G_{l-1} … G_0 X are as wide as X, and dense even if X is sparse. So they exist a few columns at a time,
and only for the nodes that can reach the requested edges.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.graph.features import FeatureMatrix
from projector.graph.neighbourhoods import Neighbourhoods

#: Memory for a chunk of columns over the ball's nodes, and for a chunk of edges within it: a few times faster on a
#: processor while it stays in the cache.
COLUMNS_BYTES = 64 << 20
_EDGES_BYTES = 1 << 20
#: A ball of more than this share of the graph costs more to cut out than it saves.
_LARGEST_BALL = 0.5


@dataclass(frozen=True, eq=False)
class Pattern:
    """The existing part of a pattern of neighbourhoods."""

    neighbourhoods: Neighbourhoods
    #: Mask of the live nodes, (n,), and of the entries of existing edges between live nodes, (nnz,).
    live: NDArray[np.bool_]
    entries: NDArray[np.bool_]

    def reached(self, nodes: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the mask (n,) of `nodes` (n,) and their neighbours, live nodes only."""
        return self.neighbourhoods.reached(nodes, self.entries)


@dataclass(frozen=True, eq=False)
class Ball:
    """The part of the graph that propagates columns to the ends of some edges."""

    #: The input nodes, (b,) ascending.
    nodes: NDArray[np.int64]
    #: G_0, …, G_{l-1} cut to the nodes that matter at each hop.
    operators: tuple[Tensor, ...]
    #: Index of each edge's two ends among the output rows, (k,) each.
    first: Tensor
    second: Tensor

    @classmethod
    def around(cls, edges: NDArray[np.int64], pattern: Pattern, operators: Sequence[Tensor]) -> "Ball":
        """Return the ball of len(operators) hops around the ends of the edges numbered `edges` (k,)."""
        hoods = pattern.neighbourhoods
        ends = [end[edges] for end in hoods.ends]
        reached = [np.zeros(hoods.nodes, dtype=np.bool_)]
        reached[0][np.concatenate(ends)] = True
        for _ in operators:
            reached.append(pattern.reached(reached[-1]))
        if reached[-1].sum() > _LARGEST_BALL * pattern.live.sum():
            everyone = np.arange(hoods.nodes)
            return cls(everyone, tuple(operators), *(torch.from_numpy(end).to(hoods.device) for end in ends))
        # reached[0] is farthest from the input rows, so the first hop is cut to the last two.
        cut = tuple(
            hoods.cut(operator.values(), pattern.entries, np.flatnonzero(onto), np.flatnonzero(of))
            for operator, onto, of in zip(operators, reached[-2::-1], reached[:0:-1], strict=True)
        )
        rows = np.flatnonzero(reached[0])
        places = (torch.from_numpy(np.searchsorted(rows, end)).to(hoods.device) for end in ends)
        return cls(np.flatnonzero(reached[-1]), cut, *places)

    def propagated(self, columns: Tensor) -> Tensor:
        """Return G_{l-1} … G_0 applied to `columns` (b, c), at the ends of the edges."""
        for operator in self.operators:
            columns = operator @ columns
        return columns


def column_chunks(features: FeatureMatrix, rows: NDArray[np.int64], kept: NDArray[np.bool_]) -> Iterator[Tensor]:
    """Yield X[rows] a few columns at a time, (b, width) float64 each; rows outside the mask `kept` (n,) are zero."""
    width = max(1, COLUMNS_BYTES // (8 * max(rows.size, 1)))
    mask = None if kept[rows].all() else torch.from_numpy(kept[rows]).to(features.device)[:, None]
    for start in range(0, features.num_features, width):
        columns = features.dense_columns(start, min(start + width, features.num_features), rows)
        yield columns if mask is None else columns * mask


def differences(columns: Tensor, first: Tensor, second: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield columns[first] - columns[second] with their edge slices, a few edges at a time."""
    step = max(1, _EDGES_BYTES // (8 * max(columns.shape[1], 1)))
    for start in range(0, first.shape[0], step):
        part = slice(start, start + step)
        yield part, columns.index_select(0, first[part]).sub_(columns.index_select(0, second[part]))


def squared_distances(columns: Iterator[Tensor], ball: Ball) -> Tensor:
    """Return |h_i - h_j|^2 for the edges of `ball`, (k,), summed over chunks of input columns."""
    distances = ball.first.new_zeros(ball.first.shape, dtype=torch.float64)
    for chunk in columns:
        for part, difference in differences(ball.propagated(chunk), ball.first, ball.second):
            distances[part] += torch.linalg.vecdot(difference, difference)
    return distances
