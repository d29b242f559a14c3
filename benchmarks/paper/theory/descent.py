"""Gradient descent on the objective of a graph, and the constants of the paper's Assumption 1.

B_x is the largest |x_i|. P_s is the largest 2-norm of a row of P^L before and after the deletion, and P_d that of a row
of their difference, over all nodes; a deleted node's row is zero afterwards. The paper's P is D^-1/2 A D^-1/2, and it
does not say whether A has self-loops. Here it has, as in training. The paper writes lambda |w|_2, but its gradients are
those of lambda/2 |w|^2, which is used here.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.baselines.protocol import Nodes
from projector import ModelSpec
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.diffusion import Diffusion
from projector.network.inputs import inputs_of
from projector.network.losses import loss_of
from projector.network.product_costs import keeps_dense
from projector.network.propagation import Propagator
from projector.network.representation import DenseRepresentation, Representation
from projector.network.sizes import Sizes
from projector.solvers.objective import Objective, Point

#: Number of rows of P^L in memory at a time.
_CHUNK = 256


@dataclass(frozen=True, eq=False)
class Problem:
    """F of a graph, with the sigmas of adaptive diffusion fixed."""

    graph: Graph
    spec: ModelSpec
    representation: Representation
    objective: Objective

    @classmethod
    def of(cls, graph: Graph, spec: ModelSpec, diffusion: Diffusion | None = None) -> "Problem":
        """Build F of the training nodes of `graph`, with one block of features (H = P^L X)."""
        rows = np.flatnonzero(graph.train_mask)
        propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops)
        labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
        inputs = inputs_of(spec, FeatureMatrix(graph.features.astype(np.float64)), labels, propagator, diffusion)
        representation = Representation(inputs, rows)
        products = DenseRepresentation(inputs, rows) if keeps_dense(spec, Sizes.of(graph)) else representation
        of_rows = torch.from_numpy(graph.labels[rows])
        return cls(graph, spec, representation, Objective(products, loss_of(spec.loss), of_rows, spec.regularization))

    @property
    def zero(self) -> Tensor:
        """W = 0, (p, C)."""
        return torch.zeros((self.representation.columns, self.graph.num_classes), dtype=torch.float64)

    def accuracy(self, W: Tensor, mask: NDArray[np.bool_]) -> float:
        """Return the share of the nodes in `mask` (n,) that W (p, C) classifies correctly."""
        right = self.representation.all_logits(W).argmax(dim=1).numpy() == self.graph.labels
        return float(right[mask].mean())

    def hops(self, deleted: Nodes | None = None) -> list[sp.csr_array]:
        """Return the operators of the hops, first applied first, (n, n) each; the rows `deleted` (m,) are zero."""
        every, there = np.arange(self.graph.nodes), np.ones(self.graph.nodes)
        if deleted is not None:
            there[deleted] = 0.0
        operators = self.representation.inputs.features.operators
        keep = sp.diags_array(there)
        return [sp.csr_array(keep @ operators.step(hop, every, every)) for hop in range(self.spec.hops)]


def descend(objective: Objective, W: Tensor, step: float, at: Collection[int]) -> Iterator[tuple[int, Point]]:
    """Yield the points of gradient descent from W (p, C) after each number of steps in `at`, ascending."""
    point = objective.at(W)
    for taken in range(max(at) + 1):
        if taken:
            point = objective.at(point.W - step * point.gradient)
        if taken in at:
            yield taken, point


def rows_of_power(hops: list[sp.csr_array], nodes: Nodes) -> sp.csr_array:
    """Return rows (m, n) of the product of the `hops`; the first hop is applied first."""
    rows = sp.csr_array(hops[-1][nodes])
    for hop in reversed(hops[:-1]):
        rows = rows @ hop
    return rows


def largest_row(hops: list[sp.csr_array], *, symmetric: bool) -> float:
    """Return the largest 2-norm of a row of the product of the `hops` (non-negative), without computing all rows.

    Rows are taken in the order of an upper bound until none can be larger: |e_j P^L| <= |e_j P| for symmetric P of norm
    at most 1, and |e_j G M| <= sum_k G_jk |e_k M| for others.
    """
    bounds = norms(hops[0])
    if not symmetric:
        for hop in hops[1:]:
            bounds = hop @ bounds
    order = np.argsort(-bounds, kind="stable")
    found = 0.0
    for start in range(0, order.size, _CHUNK):
        chunk = order[start : start + _CHUNK]
        if found >= bounds[chunk[0]]:
            break
        found = max(found, float(norms(rows_of_power(hops, chunk)).max()))
    return found


def largest_change(before: list[sp.csr_array], after: list[sp.csr_array], near: Nodes) -> float:
    """Return the largest 2-norm of a row of the difference of two products; rows outside `near` (m,) are equal."""
    largest = 0.0
    for start in range(0, near.size, _CHUNK):
        chunk = near[start : start + _CHUNK]
        largest = max(largest, float(norms(rows_of_power(after, chunk) - rows_of_power(before, chunk)).max()))
    return largest


def longest_features(graph: Graph) -> float:
    """B_x."""
    return float(FeatureMatrix(graph.features).row_norms.max())


def norms(rows: sp.csr_array) -> NDArray[np.float64]:
    """Return the 2-norm of each row, (m,)."""
    return np.asarray(np.sqrt(np.asarray(rows.power(2).sum(axis=1)).ravel()))
