"""Two models whose layers can be differentiated twice: the linear model, and a two-layer GCN.

The methods of this folder start from a trained model and change its parameters, or what its layers return. Training and
its reference stay what they are elsewhere: the linear model is the optimum of `linear.fitted`, the GCN is that of
`nonlinear.Network`. Everything here is in double precision.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, dropout, one_hot

from benchmarks.baselines.linear import check_linear, fitted, probabilities, propagation, remaining, without_nodes
from benchmarks.baselines.nonlinear import SETTINGS, Kind, Network
from benchmarks.baselines.protocol import Array, BaselineError, Nodes
from projector import ModelSpec
from projector.graph.features import csr_of
from projector.graph.graph import Graph
from projector.network.spec import LossKind, PropagationKind

Parameters: TypeAlias = tuple[Tensor, ...]
#: Features (n, d) and propagation matrix (n, n), float64.
Inputs: TypeAlias = tuple[Tensor, Tensor]
#: P = D^-1/2 (A + I) D^-1/2.
_PROPAGATION = ModelSpec(propagation=PropagationKind.SYM, self_loops=1.0)


@dataclass(frozen=True)
class Backbone:
    """The linear model P^L X W of `spec`, or with a `seed` the GCN P relu(P X W_1 + b_1) W_2 + b_2 trained from it."""

    spec: ModelSpec
    seed: int | None = None

    @property
    def hops(self) -> int:
        """Number of edges that a node's features travel."""
        return self.spec.hops if self.seed is None else 2

    @property
    def decay(self) -> float:
        """Factor of |parameters|^2 / 2 in the training objective, beside the mean loss of the training nodes."""
        return self.spec.regularization if self.seed is None else SETTINGS[Kind.GCN].decay

    def trained(self, graph: Graph) -> Parameters:
        """Return the parameters trained on `graph`: W (d, C), or W_1 (d, 64), b_1, W_2 (64, C), b_2."""
        return _trained(graph, self)

    def layers(self, parameters: Parameters, inputs: Inputs, dropped: float = 0.0) -> list[Tensor]:
        """Return what each layer returns before its activation; the last are the logits, (n, C)."""
        x, P = inputs
        if self.seed is None:
            found = x @ parameters[0]
            for _ in range(self.hops):
                found = P @ found
            return [found]
        first, first_bias, second, second_bias = parameters
        inner = P @ (x @ first) + first_bias
        return [inner, self.outer(inner, second, second_bias, P, dropped)]

    @staticmethod
    def outer(inner: Tensor, weights: Tensor, bias: Tensor, P: Tensor, dropped: float = 0.0) -> Tensor:
        """Return the second layer of the GCN from the first, (n, C)."""
        return P @ (dropout(torch.relu(inner), dropped) @ weights) + bias

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the nodes' losses: of the spec's loss, and of the cross-entropy for the GCN."""
        if self.seed is None and self.spec.loss is LossKind.OVR:
            targets = one_hot(labels, logits.shape[1]).to(logits.dtype)
            return binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        return cross_entropy(logits, labels, reduction="sum")

    def answers(self, logits: Array) -> Array:
        """Return class probabilities (n, C) of logits (n, C)."""
        return probabilities(logits, self.spec.loss if self.seed is None else LossKind.SOFTMAX)


class Method(Protocol):
    """A way to forget nodes."""

    def forget(self, model: "Model", nodes: Nodes, left: Graph) -> "Model":
        """Return `model` without `nodes` (m,), which `left` no longer has."""


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model of a backbone and the method that it forgets by. Subclasses change what layers return."""

    backbone: Backbone
    method: Method
    graph: Graph
    live: NDArray[np.bool_]
    parameters: Parameters

    @property
    def weights(self) -> Array | None:
        """As `Trained.weights`."""
        return self.parameters[0].numpy()[None] if self.backbone.seed is None else None

    def logits_on(self, graph: Graph) -> Array:
        """Return the logits of every node of a graph with the same features, (n, C) float64."""
        return self.backbone.layers(self.parameters, inputs(graph))[-1].numpy()

    def predict_on(self, graph: Graph) -> Array:
        """As `Trained.predict_on`."""
        return self.backbone.answers(self.logits_on(graph))

    def predict(self) -> Array:
        """As `Trained.predict`."""
        return np.where(self.live[:, None], self.predict_on(self.graph), 0.0)

    def unlearn(self, nodes: Nodes) -> "Model":
        """As `Trained.unlearn`."""
        live, left = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        return replace(self.method.forget(self, nodes, left), graph=left, live=live)


@dataclass(frozen=True)
class Forgetting:
    """Trains the backbone and forgets by `method`."""

    backbone: Backbone
    method: Method

    def fit(self, graph: Graph) -> Model:
        """As `Baseline.fit`. Raises BaselineError for a linear model with several blocks or another P."""
        spec = self.backbone.spec
        check_linear(spec)
        if len(spec.block_hops) > 1 or spec.propagation is not PropagationKind.SYM or spec.self_loops != 1.0:
            raise BaselineError(
                "These methods are written for one block and P = D^-1/2 (A + I) D^-1/2.",
                "Take combine last, propagation sym and self-loops of weight 1.",
            )
        live = np.ones(graph.nodes, dtype=np.bool_)
        return Model(self.backbone, self.method, graph, live, self.backbone.trained(graph))


def inputs(graph: Graph) -> Inputs:
    """Return what the layers take of a graph; features stay sparse where they are stored so."""
    X, P = graph.features, _csr(propagation(graph, _PROPAGATION))
    if isinstance(X, np.ndarray):
        return torch.from_numpy(X.astype(np.float64)), P
    return _csr(sp.csr_array(X.astype(np.float64))).to_sparse(), P


def training(graph: Graph) -> tuple[Tensor, Tensor]:
    """Return the training nodes (m,) and their labels (m,), int64."""
    nodes = np.flatnonzero(graph.train_mask)
    return torch.from_numpy(nodes), torch.from_numpy(graph.labels[nodes])


def flat(parameters: Sequence[Tensor]) -> Array:
    """Return all parameters as one vector, float64."""
    return np.concatenate([each.detach().numpy().ravel() for each in parameters])


def _csr(matrix: sp.csr_array) -> Tensor:
    indptr, indices = (torch.from_numpy(each.astype(np.int64)) for each in (matrix.indptr, matrix.indices))
    return csr_of(indptr, indices, torch.from_numpy(matrix.data), matrix.shape)


@lru_cache(maxsize=4)
def _trained(graph: Graph, backbone: Backbone) -> Parameters:
    if backbone.seed is None:
        return (torch.from_numpy(fitted(graph, backbone.spec).weights[0].copy()),)
    return parameters_of(Network(Kind.GCN, backbone.seed).fit(graph).layers)


def parameters_of(layers: torch.nn.Module) -> Parameters:
    """Return the parameters of the GCN of `nonlinear.Network`, in the order and shapes used here."""
    of = {name: each.detach().to(torch.float64) for name, each in layers.named_parameters()}
    return of["first.lin.weight"].T, of["first.bias"], of["second.lin.weight"].T, of["second.bias"]
