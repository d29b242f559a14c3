"""GNNDelete: a square matrix behind each layer, learned to make the deleted edges look like no edges.

Cheng, Dasoulas, He, Agarwal and Zitnik, "GNNDelete: A general strategy for unlearning in graph neural networks" (ICLR
2023). The trained parameters stay. Behind each layer l a square matrix D_l is learned, which multiplies the rows of the
nodes within l edges of an edge that is deleted, before the activation. Each D_l descends on the mean of two losses (the
paper's Eq. 5 to 7, with alpha = 1/2):

* deleted edge consistency: the rows at both ends of the deleted edges become those of random pairs without an edge,
  as the layer returned them before;
* neighbourhood influence: the other rows in reach stay what the layer returned on the graph without the edges.

Both are mean squared errors. As in the authors' code, D_l begins with all entries 1/1000, is learned on the edges in
reach alone, layer by layer, and takes 3,000 steps of Adam with rate 1e-3. The linear model is one layer of L edges.

A node that has no edge leaves nothing to learn. The deleted node's neighbours are ends of deleted edges too: their rows
go to those of strangers, and nothing keeps them.
"""

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import mse_loss

from benchmarks.baselines.field.differentiable import Backbone, Model, Parameters, inputs
from benchmarks.baselines.linear import within_hops
from benchmarks.baselines.protocol import Array, Nodes
from projector.graph.graph import Graph

#: Share of deleted edge consistency in the loss.
_ALPHA = 0.5
#: Entries of a matrix before it is learned.
_FIRST = 1e-3


@dataclass(frozen=True, eq=False)
class Operators:
    """Matrices behind the layers, and the nodes whose rows they multiply."""

    matrices: Parameters
    #: A mask (n,) for each layer.
    masks: tuple[Tensor, ...]

    def layers(self, inner: Tensor, parameters: Parameters, P: Tensor) -> list[Tensor]:
        """Return what each layer returns with its matrix, from what the first returns without, (n, k)."""
        first = self.behind(0, inner)
        if len(self.matrices) == 1:
            return [first]
        return [first, self.behind(1, Backbone.outer(first, parameters[2], parameters[3], P))]

    def behind(self, layer: int, rows: Tensor) -> Tensor:
        """Return rows (n, k) of a layer, those of its mask times its matrix."""
        return torch.where(self.masks[layer][:, None], rows @ self.matrices[layer], rows)


@dataclass(frozen=True, eq=False)
class Deleted(Model):
    """A model with the operators of all its deletions, the last one last."""

    operators: Operators

    def logits_on(self, graph: Graph) -> Array:
        """As `Model.logits_on`."""
        given = inputs(graph)
        inner = self.backbone.layers(self.parameters, given)[0]
        return self.operators.layers(inner, self.parameters, given[1])[-1].numpy()


@dataclass(frozen=True)
class GnnDelete:
    """`seed` draws the random pairs."""

    seed: int = 0
    steps: int = 3_000
    rate: float = 1e-3

    def forget(self, model: Model, nodes: Nodes, left: Graph) -> Model:
        """As `Method.forget`, once: operators of several deletions are not combined, and the last remains."""
        if not deleted_edges(model.graph, nodes).size:
            return model
        problem = Problem.of(model, nodes, left, self.seed)
        matrices = tuple(
            torch.full((rows.shape[1],) * 2, _FIRST, dtype=torch.float64, requires_grad=True) for rows in problem.pairs
        )
        operators = Operators(matrices, tuple(mask[problem.near] for mask in problem.masks))
        adams = [torch.optim.Adam([each], lr=self.rate) for each in matrices]
        for _ in range(self.steps):
            rows = operators.layers(problem.inner, model.parameters, problem.P)
            for layer, matrix in enumerate(matrices):
                (matrix.grad,) = torch.autograd.grad(problem.loss(layer, rows[layer]), matrix, retain_graph=True)
            for adam in adams:
                adam.step()
        learned = Operators(tuple(each.detach() for each in matrices), problem.masks)
        return Deleted(model.backbone, model.method, model.graph, model.live, model.parameters, learned)


@dataclass(frozen=True, eq=False)
class Problem:
    """The data that the matrices are learned from; tuples have an entry for each layer."""

    #: Nodes in reach, (r,). Rows and places below are of these nodes alone.
    near: Tensor
    #: Propagation, deleted edges included (r, r), and what the first layer returns by it, (r, k).
    P: Tensor
    inner: Tensor
    #: Nodes whose rows a matrix multiplies, (n,).
    masks: tuple[Tensor, ...]
    #: Ends of the deleted edges (m,), and the rows that they are to have, (m, k): those of random pairs before.
    ends: Tensor
    pairs: tuple[Tensor, ...]
    #: The other nodes that a matrix multiplies, and their rows before.
    others: tuple[Tensor, ...]
    kept: tuple[Tensor, ...]

    @classmethod
    def of(cls, model: Model, nodes: Nodes, left: Graph, seed: int) -> "Problem":
        """Prepare the deletion of `nodes` from `model`."""
        graph, backbone = model.graph, model.backbone
        edges = deleted_edges(graph, nodes)
        touched = np.unique(edges)
        masks = [within_hops(graph, touched, hops) for hops in ((backbone.hops,) if backbone.seed is None else (1, 2))]
        near, place = np.flatnonzero(masks[-1]), np.cumsum(masks[-1]) - 1
        others = [np.setdiff1d(np.flatnonzero(mask), touched) for mask in masks]
        strangers = strange_pairs(graph, edges.shape[1], np.random.default_rng(seed)).ravel()
        keep = sp.diags_array(masks[-1].astype(np.float64))
        x, P = inputs(replace(graph, adjacency=sp.csr_array(keep @ graph.adjacency @ keep)))
        rows = torch.from_numpy(near)
        # Features of the deleted nodes stay, as in the authors' code.
        before = backbone.layers(model.parameters, (x, inputs(left)[1]))
        return cls(
            rows,
            P.to_sparse().index_select(0, rows).index_select(1, rows).coalesce(),
            backbone.layers(model.parameters, (x, P))[0][rows],
            tuple(map(torch.from_numpy, masks)),
            torch.from_numpy(place[edges.ravel()]),
            tuple(each[strangers] for each in before),
            tuple(torch.from_numpy(place[each]) for each in others),
            tuple(each[nodes_] for each, nodes_ in zip(before, others, strict=True)),
        )

    def loss(self, layer: int, rows: Tensor) -> Tensor:
        """Return the loss of a layer from its rows (r, k)."""
        consistency, others = mse_loss(rows[self.ends], self.pairs[layer]), self.others[layer]
        if not others.numel():
            return _ALPHA * consistency
        return _ALPHA * consistency + (1 - _ALPHA) * mse_loss(rows[others], self.kept[layer])


def deleted_edges(graph: Graph, nodes: Nodes) -> Nodes:
    """Return the edges at `nodes`, both directions, (2, m)."""
    ends = np.stack(graph.adjacency.nonzero()).astype(np.int64)
    return ends[:, np.isin(ends, nodes).any(axis=0)]


def strange_pairs(graph: Graph, count: int, random: np.random.Generator) -> Nodes:
    """Draw pairs of different nodes without an edge between them, (2, count)."""
    found: list[NDArray[np.int64]] = []
    while sum(each.shape[1] for each in found) < count:
        pairs = random.integers(graph.nodes, size=(2, count))
        joined = np.asarray(graph.adjacency[pairs[0], pairs[1]]).ravel() != 0
        found.append(pairs[:, ~joined & (pairs[0] != pairs[1])])
    return np.concatenate(found, axis=1)[:, :count]
