"""Rows of the representation for a few nodes, computed from the nodes around them.

Row i of G_{h-1} … G_0 X needs X in the h-neighbourhood of i, G_0 X in the (h-1)-neighbourhood, and so on: the levels of
a pyramid with the requested nodes at the top.
"""

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.graph.ranges import ranges
from projector.network.inputs import Input, Inputs
from projector.network.operators import LabelHops

#: Largest share of the whole work at which a pyramid is cheaper: slicing matrices costs about as much as multiplying.
_WORTH = 0.5
#: Largest share of a graph's entries that are read one by one, rather than all of them in order.
_FEW = 0.1


def neighbourhood(adjacency: sp.csr_array, nodes: NDArray[np.bool_], live: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask (n,) of `nodes` (n,) and their live neighbours; edges with a stored 0 do not exist."""
    rows = np.flatnonzero(nodes)
    starts, ends = adjacency.indptr[rows].astype(np.int64), adjacency.indptr[rows + 1].astype(np.int64)
    if int((ends - starts).sum()) > _FEW * adjacency.nnz:
        return np.asarray(((adjacency @ nodes.astype(np.float64) != 0.0) | nodes) & live)
    entries, reached = ranges(starts, ends), nodes.copy()
    reached[adjacency.indices[entries[adjacency.data[entries] != 0]]] = True
    return np.asarray(reached & live)


def image_rows(
    inputs: Inputs, rows: NDArray[np.int64], adjacency: sp.csr_array, live: NDArray[np.bool_]
) -> Tensor | None:
    """Return [R_b X, one block per operator of each input] in the rows `rows` (m,), (m, p) float64.

    The result is on the inputs' device. `adjacency` and `live` belong to the operators' graph. Returns None if
    computing all rows would cost less.
    """
    hops = max(each.operators.block_hops[-1] for each in inputs)
    levels = [np.zeros_like(live)]
    levels[0][rows] = True
    for _ in range(hops):
        levels.append(neighbourhood(adjacency, levels[-1], live))
    if sum(int(level.sum()) for level in levels[1:]) > _WORTH * hops * int(live.sum()):
        return None
    around = [np.flatnonzero(level) for level in levels]
    return torch.cat([block for each in inputs for block in _blocks(each, around)], dim=1)


def _blocks(each: Input, levels: list[NDArray[np.int64]]) -> list[Tensor]:
    """Return the blocks of one input in the rows levels[0]; levels[h] holds the nodes within h hops of them."""
    operators = each.operators
    rows, depth = levels[0], operators.block_hops[-1]
    base = levels[depth]
    images = each.rows.dense_rows(base).cpu().numpy()
    if each.kept is not None:
        images = images * each.kept[base][:, None]
    own = images[np.searchsorted(base, rows)]
    blocks = []
    for hop in range(depth + 1):
        inner = levels[depth - hop]
        if hop:
            images = operators.step(hop - 1, inner, levels[depth - hop + 1]) @ images
        if hop not in operators.block_hops:
            continue
        block = images[np.searchsorted(inner, rows)]
        if isinstance(operators, LabelHops):
            block = block - operators.diagonals[hop - 1].cpu().numpy()[rows][:, None] * own
        blocks.append(torch.from_numpy(np.ascontiguousarray(block)).to(each.rows.device))
    return blocks
