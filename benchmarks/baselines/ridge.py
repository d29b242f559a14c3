"""Ridge regression on propagated features, updated in closed form: GraphEditor and closed-form SGC.

GraphEditor (Cong and Mahdavi, an ICLR 2023 submission that the Projector paper names beside itself) keeps S = (H^T H +
mu I)^-1 and targets of 1 and -1. All training rows that a deletion changes leave S with their old values, by Sherman,
Morrison and Woodbury, and the surviving ones join it with their new values. W = S H^T Y is then fine-tuned by 500 steps
of Adam on the cross-entropy. mu does not follow the number of rows: here it is lambda n_train at the fit, so that both
start from one objective. Adam uses its default rate, 1e-3. Where more rows change than H has columns, S is inverted
again instead: the same matrix, in less time and memory. The method follows a description; neither the paper's text nor
the authors' code was available.

Closed-form SGC (Gaur and Sharma, arXiv 2605.25662) keeps the sums H^T H and H^T Y of one-hot targets. It subtracts the
old and adds the new rows within L hops of a change, and solves again. Its router, its solvers for heterophilous graphs
and its post-processing are left out, and the ridge is lambda n_train of the model here: only its abstract was
available.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from torch.nn.functional import cross_entropy

from benchmarks.baselines.linear import (
    LinearModel,
    blocks_of,
    check_linear,
    remaining,
    representation,
    within_hops,
    without_nodes,
)
from benchmarks.baselines.newton.influence import reach
from benchmarks.baselines.protocol import Array, Nodes
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind

#: GraphEditor's fine-tuning.
_STEPS, _RATE = 500, 1e-3
#: Temperature at which a ridge regression on one-hot targets has GraphEditor's answers. Targets of 1 and -1 are twice
#: the one-hot ones, less 1 in all columns, and the softmax drops what all columns share.
EDITOR_TEMPERATURE = 0.5


class Editing(Enum):
    """How GraphEditor computes its weights."""

    #: By the updated inverse alone.
    CLOSED_FORM = auto()
    #: By the updated inverse, then by steps on the cross-entropy.
    FINE_TUNED = auto()
    #: By solving again, with the ridge of the first solution: the reference for the closed form.
    RETRAINED = auto()


@dataclass(frozen=True, eq=False)
class EditedModel(LinearModel):
    """Weights S H^T Y, possibly fine-tuned, with their factors."""

    editing: Editing
    #: mu.
    ridge: float
    #: S, (p, p), and H^T Y, (p, C).
    inverse: Array
    correlation: Array

    def unlearn(self, nodes: Nodes) -> "EditedModel":
        """Subtract the affected rows with their old values, and add those that remain with their new values."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        if self.editing is Editing.RETRAINED:
            return _edited(graph, self.spec, live, self.editing, self.ridge)
        old, new = _changed(self.graph, graph, self.spec, nodes)
        A, B = representation(self.graph, self.spec, old), representation(graph, self.spec, new)
        inverse = exchanged(self.inverse, A, B)
        correlation = self.correlation - A.T @ _signs(self.graph, old) + B.T @ _signs(graph, new)
        weights = _tuned(graph, self.spec, inverse @ correlation, self.editing)
        return EditedModel(
            graph, self.spec, live, blocks_of(weights, self.spec), self.editing, self.ridge, inverse, correlation
        )


def exchanged(inverse: Array, A: Array, B: Array) -> Array:
    """Return (M - A^T A + B^T B)^-1 for M^-1 (p, p), rows A (m, p) and rows B (k, p)."""
    if max(len(A), len(B)) > len(inverse):
        return np.asarray(np.linalg.inv(np.linalg.inv(inverse) - A.T @ A + B.T @ B))
    return with_rows(without_rows(inverse, A), B)


def without_rows(inverse: Array, A: Array) -> Array:
    """Return (M - A^T A)^-1 for M^-1 (p, p) and rows A (m, p): S + S A^T (I - A S A^T)^-1 A S."""
    SA = inverse @ A.T
    return np.asarray(inverse + SA @ np.linalg.solve(np.eye(len(A)) - A @ SA, SA.T))


def with_rows(inverse: Array, B: Array) -> Array:
    """Return (M + B^T B)^-1 for M^-1 (p, p) and rows B (m, p): S - S B^T (I + B S B^T)^-1 B S."""
    SB = inverse @ B.T
    return np.asarray(inverse - SB @ np.linalg.solve(np.eye(len(B)) + B @ SB, SB.T))


@dataclass(frozen=True)
class GraphEditor:
    """Forgets by editing a ridge regression."""

    spec: ModelSpec
    editing: Editing

    def fit(self, graph: Graph) -> EditedModel:
        """As `Baseline.fit`."""
        check_linear(self.spec)
        # Its answers are the softmax of the scores, which its fine-tuning optimises.
        spec, everyone = replace(self.spec, loss=LossKind.SOFTMAX), np.ones(graph.nodes, dtype=np.bool_)
        return _edited(graph, spec, everyone, self.editing, spec.regularization * int(graph.train_mask.sum()))


def _edited(graph: Graph, spec: ModelSpec, live: NDArray[np.bool_], editing: Editing, ridge: float) -> EditedModel:
    rows = np.flatnonzero(graph.train_mask)
    H = representation(graph, spec, rows)
    inverse: Array = np.linalg.inv(H.T @ H + ridge * np.eye(H.shape[1])).astype(np.float64)
    correlation = H.T @ _signs(graph, rows)
    weights = _tuned(graph, spec, inverse @ correlation, editing)
    return EditedModel(graph, spec, live, blocks_of(weights, spec), editing, ridge, inverse, correlation)


def _tuned(graph: Graph, spec: ModelSpec, W: Array, editing: Editing) -> Array:
    """Return `W` (p, C), after Adam on the training nodes' mean cross-entropy if `editing` asks for it."""
    if editing is not Editing.FINE_TUNED:
        return W
    rows = np.flatnonzero(graph.train_mask)
    H, labels = torch.from_numpy(representation(graph, spec, rows)), torch.from_numpy(graph.labels[rows])
    weights = torch.from_numpy(W.copy()).requires_grad_()
    steps = torch.optim.Adam([weights], lr=_RATE)
    for _ in range(_STEPS):
        (weights.grad,) = torch.autograd.grad(cross_entropy(H @ weights, labels), weights)
        steps.step()
    return weights.detach().numpy()


@dataclass(frozen=True, eq=False)
class ResolvedModel(LinearModel):
    """The ridge solution from sums over the training rows."""

    #: H^T H, (p, p), and H^T Y, (p, C).
    gram: Array
    correlation: Array

    def unlearn(self, nodes: Nodes) -> "ResolvedModel":
        """Subtract the rows within reach with their old values, add them with their new values, and solve again."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        old, new = _changed(self.graph, graph, self.spec, nodes)
        A, B = representation(self.graph, self.spec, old), representation(graph, self.spec, new)
        gram = self.gram - A.T @ A + B.T @ B
        correlation = self.correlation - A.T @ _one_hot(self.graph, old) + B.T @ _one_hot(graph, new)
        return _resolved(graph, self.spec, live, gram, correlation)


@dataclass(frozen=True)
class ClosedFormSgc:
    """Forgets by updating the sums of a ridge regression and solving again."""

    spec: ModelSpec

    def fit(self, graph: Graph) -> ResolvedModel:
        """As `Baseline.fit`."""
        check_linear(self.spec)
        rows = np.flatnonzero(graph.train_mask)
        H, everyone = representation(graph, self.spec, rows), np.ones(graph.nodes, dtype=np.bool_)
        return _resolved(graph, self.spec, everyone, H.T @ H, H.T @ _one_hot(graph, rows))


def _resolved(graph: Graph, spec: ModelSpec, live: NDArray[np.bool_], gram: Array, correlation: Array) -> ResolvedModel:
    ridge = spec.regularization * int(graph.train_mask.sum())
    W = cho_solve(cho_factor(gram + ridge * np.eye(len(gram))), correlation)
    return ResolvedModel(graph, spec, live, blocks_of(W, spec), gram, correlation)


def _changed(before: Graph, after: Graph, spec: ModelSpec, nodes: Nodes) -> tuple[Nodes, Nodes]:
    """Return the training nodes whose rows of H change when `nodes` are deleted: those of before, and those that
    remain.
    """
    reached = within_hops(before, nodes, reach(spec))
    return np.flatnonzero(reached & before.train_mask), np.flatnonzero(reached & after.train_mask)


def _one_hot(graph: Graph, rows: Nodes) -> Array:
    return np.eye(graph.num_classes)[graph.labels[rows]]


def _signs(graph: Graph, rows: Nodes) -> Array:
    return 2.0 * _one_hot(graph, rows) - 1.0
