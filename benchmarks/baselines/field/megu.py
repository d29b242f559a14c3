"""MEGU: gradient descent that forgets and keeps at once.

Li, Zhao, Wu, Zhang, Li and Wang, "Towards effective and general graph unlearning via mutual evolution" (AAAI 2024), by
the authors' code where their paper leaves a choice.

* Influenced nodes: those within L edges of a deleted node whose propagated features change much when the deleted nodes'
  features x become 1 - x. Similarity is the cosine of both; the threshold rises from 0.1 by 0.1 until the most similar
  node below it stays the same.
* The model's logits z, on the graph without the deleted nodes' edges but with their features, pass a linear map, drawn
  at random and learned along: q = A z + a. With y the class that the model gave before, and KL(to | from) of answers at
  temperature 1.5 whose first argument is held fixed:
  0.01 (mean over deleted of KL(q | z) - log-loss(q, y) ) + mean over influenced of KL(z | q) + log-loss(z, y).
  The map is thrown away afterwards.
* Answers are corrected and smoothed (Huang et al., "Combining label propagation and simple models out-performs graph
  neural networks", 2021): 80 steps of 0.8 and of 0.5, from the classes that the model gave training nodes before.

Thirty steps of rate 0.05, as in the code for Cora; the paper's appendix says a hundred. A GCN keeps its dropout.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div
from torch_geometric.nn import CorrectAndSmooth

from benchmarks.baselines.field.differentiable import Model, Parameters, inputs
from benchmarks.baselines.linear import within_hops
from benchmarks.baselines.nonlinear import SETTINGS, Kind
from benchmarks.baselines.protocol import Array, Nodes
from projector.graph.graph import Graph

_TEMPERATURE, _FORGETTING = 1.5, 0.01
_SMOOTHED, _CORRECTION, _SMOOTHING = 80, 0.8, 0.5


@dataclass(frozen=True, eq=False)
class Smoothed(Model):
    """A model that corrects and smooths its answers on its own graph, by the classes it gave before."""

    #: Classes before the deletion, (n,) int64.
    classes: Nodes

    def predict(self) -> Array:
        """As `Trained.predict`, smoothed. `predict_on` and `logits_on` are of the parameters alone."""
        mask = torch.from_numpy(self.graph.train_mask)
        edges = torch.from_numpy(np.stack(self.graph.adjacency.nonzero()).astype(np.int64))
        smooth = CorrectAndSmooth(_SMOOTHED, _CORRECTION, _SMOOTHED, _SMOOTHING, autoscale=False, scale=1.0)
        answers, given = torch.from_numpy(self.predict_on(self.graph)), torch.from_numpy(self.classes)[mask]
        answers = smooth.smooth(smooth.correct(answers, given, mask, edges), given, mask, edges)
        return np.where(self.live[:, None], answers.numpy(), 0.0)


@dataclass(frozen=True)
class Megu:
    """`rate`, `steps` of gradient descent; `seed` draws the map and the dropout."""

    seed: int = 0
    rate: float = 0.05
    steps: int = 30

    def forget(self, model: Model, nodes: Nodes, left: Graph) -> Smoothed:
        """As `Method.forget`."""
        classes = model.logits_on(model.graph).argmax(axis=1)
        # The deleted nodes lose their edges and keep their features.
        given = inputs(model.graph)[0], inputs(left)[1]
        deleted, influenced = torch.from_numpy(nodes), torch.from_numpy(influenced_nodes(model, nodes))
        y = torch.from_numpy(classes)
        dropped = 0.0 if model.backbone.seed is None else SETTINGS[Kind.GCN].dropout
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            through = nn.Linear(model.graph.num_classes, model.graph.num_classes, dtype=torch.float64)
            parameters: Parameters = tuple(each.clone().requires_grad_() for each in model.parameters)
            descent = torch.optim.SGD([*parameters, *through.parameters()], lr=self.rate)
            for _ in range(self.steps):
                z = model.backbone.layers(parameters, given, dropped)[-1]
                loss = objective(z, through(z), y, deleted, influenced)
                descent.zero_grad()
                torch.autograd.backward(loss)
                descent.step()
        moved = tuple(each.detach() for each in parameters)
        earlier = model.classes if isinstance(model, Smoothed) else classes
        return Smoothed(model.backbone, model.method, model.graph, model.live, moved, earlier)


def objective(z: Tensor, q: Tensor, y: Tensor, deleted: Tensor, influenced: Tensor) -> Tensor:
    """Return MEGU's loss from logits z and q (n, C), classes y (n,) and nodes (m,) and (k,)."""
    forgotten = _divergence(q[deleted], z[deleted]) - cross_entropy(q[deleted], y[deleted])
    if not influenced.numel():
        return _FORGETTING * forgotten
    kept = _divergence(z[influenced], q[influenced]) + cross_entropy(z[influenced], y[influenced])
    return _FORGETTING * forgotten + kept


def influenced_nodes(model: Model, nodes: Nodes) -> Nodes:
    """Return the influenced nodes (k,), ascending, none of them deleted."""
    x, P = inputs(model.graph)
    dense = x.to_dense() if x.is_sparse else x
    flipped = dense.clone()
    flipped[nodes] = 1.0 - flipped[nodes]
    for _ in range(model.backbone.hops):
        dense, flipped = P @ dense, P @ flipped
    alike = torch.cosine_similarity(dense, flipped).numpy()
    around = within_hops(model.graph, nodes, model.backbone.hops)
    around[nodes] = False
    return np.flatnonzero(around & (alike <= threshold(alike)))


def threshold(alike: NDArray[np.float64]) -> float:
    """Return the threshold of similarities (n,): the first of 0.1, 0.2, … at which the largest below it repeats."""
    level, largest = 0.1, 0.0
    while True:
        below = alike[alike <= level]
        if below.size:
            if below.max() == largest:
                return level
            largest = float(below.max())
        level += 0.1


def _divergence(fixed: Tensor, moving: Tensor) -> Tensor:
    """Return KL of the answers of `fixed`, held, from those of `moving`, the mean over rows; logits (m, C)."""
    to = torch.softmax(fixed.detach() / _TEMPERATURE, dim=1)
    return kl_div(torch.log_softmax(moving / _TEMPERATURE, dim=1), to, reduction="batchmean")
