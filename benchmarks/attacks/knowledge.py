"""What the attackers have beside answers: public nodes, candidates, and what the objective does to first order.

Around weights W, the answers p of a node with row h change by J (h dW), where J = dp/dz of its logits z = h W; and
leaving out one of m training rows h_v changes W by about H^-1 (h_v s_v^T) / m, with s_v the derivative of its loss by
its logits and H the Hessian of Eq. 1. How well the candidates' changes agree with a change that was seen takes one
solution with H for all of them, since <J h dW, d> = <dW, h^T J^T d>.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit, softmax

from benchmarks.attacks.black_box import BlackBox
from benchmarks.baselines.linear import propagation, representation, stacked, train_linear
from benchmarks.baselines.protocol import Array, Nodes
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import LossKind

#: Random changes from which the length of the candidates' effects is estimated, to one part in eight.
_PROBES = 32
#: Of public rows, at most, that the Hessian is estimated from: it takes their Gram matrix for every class.
_ROWS = 20_000
#: What is left of the changes of answers, as a share: beyond it are the deleted node's neighbours, of whose rows the
#: attackers know only what they were.
_UNCLIPPED = 0.98


@dataclass(frozen=True, eq=False)
class Hessian:
    """Of the mean of Eq. 1 over m rows (m, p): rows^T S rows / m + regularization, S = diag(a) - b b^T of each row."""

    rows: Array
    #: a and b, (m, C) each; b is zero where the logits do not act on each other.
    a: Array
    b: Array
    regularization: float

    @classmethod
    def at(cls, rows: Array, W: Array, loss: LossKind, regularization: float) -> "Hessian":
        """At W (p, C), for a softmax or one class against the rest."""
        p = expected(rows @ W, loss)
        coupled = loss is LossKind.SOFTMAX
        return cls(rows, p if coupled else p * (1 - p), p if coupled else np.zeros_like(p), regularization)

    def times(self, V: Array) -> Array:
        """H V for V (p, C)."""
        z = self.rows @ V
        curved = self.a * z - self.b * (self.b * z).sum(axis=1, keepdims=True)
        return np.asarray(self.rows.T @ curved / len(self.rows) + self.regularization * V)

    def solve(self, G: Array) -> Array:
        """H^-1 G for G (p, C), class by class: for a softmax with the diagonal of S alone.

        The coupling of classes is left out there: conjugate gradients with it take a hundred steps a solution.
        """
        return np.stack([cho_solve(one, g) for one, g in zip(self._classes, G.T, strict=True)], axis=1)

    @cached_property
    def _classes(self) -> list[tuple[Array, bool]]:
        factors = []
        for curvature in (self.a - self.b**2).T:
            whole = self.rows.T @ (curvature[:, None] * self.rows) / len(self.rows)
            whole[np.diag_indices_from(whole)] += self.regularization
            factors.append(cho_factor(whole))
        return factors


@dataclass(frozen=True, eq=False)
class Linearised:
    """J = dp/dz of each answer by its logits, from answers p (a, C) and the slopes (a, C) of their logarithms."""

    p: Array
    slopes: Array

    def forth(self, z: Array) -> Array:
        """J z of changes z (a, C) of the logits."""
        steep = self.slopes * z
        return np.asarray(self.p * (steep - (self.p * steep).sum(axis=1, keepdims=True)))

    def back(self, d: Array) -> Array:
        """J^T d of changes d (a, C) of the answers."""
        return np.asarray(self.slopes * (self.p * d - self.p * (self.p * d).sum(axis=1, keepdims=True)))


@dataclass(frozen=True, eq=False)
class Known:
    """The attackers' side: rows of the graph of before, a model of their own, and who may have been deleted."""

    #: Rows of H of all nodes on the graph of before, (n, p).
    H: Array
    #: P, (n, n), there.
    P: sp.csr_array
    #: Weights (p, C) of a model that the attackers trained on the public nodes.
    W: Array
    spec: ModelSpec
    #: Of public rows, there.
    hessian: Hessian
    #: Public nodes whose answers are asked for, (a,); the others' rows are known all the same.
    asked: Nodes
    #: One of them is deleted, (k,).
    candidates: Nodes
    #: m, how many nodes the model was trained on.
    training: int

    @classmethod
    def of(cls, graph: Graph, spec: ModelSpec, candidates: Nodes) -> "Known":
        """Everybody but the `candidates` (k,) is public, with labels; the attackers train on those."""
        nobody = np.zeros(graph.nodes, dtype=np.bool_)
        public = graph.labels >= 0
        public[candidates] = False
        W = train_linear(replace(graph, train_mask=public, val_mask=nobody, test_mask=nobody), spec).weights
        H = representation(graph, spec, np.arange(graph.nodes))
        asked = np.setdiff1d(np.arange(graph.nodes), candidates)
        training = int(graph.train_mask.sum())
        some = asked[:: -(-asked.size // _ROWS)]
        hessian = Hessian.at(H[some], stacked(W), spec.loss, spec.regularization)
        return cls(H, propagation(graph, spec), stacked(W), spec, hessian, asked, candidates, training)

    def changes(self, before: BlackBox, after: BlackBox) -> Array:
        """By how much the answers on public nodes changed, (a, C); zero for one that is not there any more."""
        new = after(self.asked)
        return np.where(new.any(axis=1, keepdims=True), new - before(self.asked), 0.0)

    def agreement(self, changes: Array, labels: Nodes | None) -> Array:
        """How well each candidate's deletion explains `changes` (a, C): the cosine to its effects, times a constant.

        `labels` (k,) are the candidates'; without them, the label that explains the changes best. Times the changes'
        norm this is the likelihood of normal noise, the effect's scale left open. Changes are clipped at the size that
        2 % of them exceed, since what happens where an edge went does not follow from the weights. Returns (k,).
        """
        seen = self._with_each_label(self._projected(clipped(changes)))
        agreement = np.divide(seen, self.lengths, out=np.zeros_like(seen), where=self.lengths > 0)
        return np.asarray(agreement.max(axis=1) if labels is None else agreement[np.arange(len(labels)), labels])

    @cached_property
    def public(self) -> Nodes:
        """All nodes that are no candidates, asked or not, (n - k,)."""
        return np.setdiff1d(np.arange(len(self.H)), self.candidates)

    @cached_property
    def mean(self) -> Array:
        """Of the public nodes' rows, (p,)."""
        return np.asarray(self.H[self.public].mean(axis=0))

    @cached_property
    def lengths(self) -> Array:
        """How far each candidate's deletion changes the public answers, for each label that it may have, (k, C)."""
        random = np.random.default_rng(0)
        squares = np.zeros((self.candidates.size, self.W.shape[1]))
        for _ in range(_PROBES):
            probe = random.normal(size=(self.asked.size, self.W.shape[1]))
            squares += self._with_each_label(self._projected(probe)) ** 2
        return np.sqrt(squares / _PROBES)

    @property
    def answers(self) -> Array:
        """What the attackers' own model tells of all nodes, (n, C)."""
        return answers(self.H @ self.W, self.spec.loss)

    @cached_property
    def linearised(self) -> "Linearised":
        """How answers of the nodes asked change with their logits."""
        logits = self.H[self.asked] @ self.W
        return Linearised(answers(logits, self.spec.loss), log_slopes(logits, self.spec.loss))

    def on(self, H: Array, P: sp.csr_array) -> "Known":
        """The same attackers with the rows of a later graph; what they trained stays, and how long effects are."""
        later = replace(self, H=H, P=P)
        # A cached property's value. A few nodes change it less than it is known to.
        later.__dict__["lengths"] = self.lengths
        return later

    def _projected(self, d: Array) -> Array:
        """R (k, C): the effect of the candidate with slopes s is in the direction d (a, C) by s R."""
        solved = self.hessian.solve(self.H[self.asked].T @ self.linearised.back(d))
        return np.asarray(self.H[self.candidates] @ solved) / self.training

    def _with_each_label(self, R: Array) -> Array:
        """s R for the slopes s = p - y of every label y, (k, C)."""
        p = expected(self.H[self.candidates] @ self.W, self.spec.loss)
        return np.asarray((p * R).sum(axis=1, keepdims=True) - R)


def clipped(changes: Array) -> Array:
    """`changes` (a, C) clipped at the size that 2 % of them exceed; of those that are not 0 where fewer are."""
    size = np.abs(changes)
    limit = np.quantile(size, _UNCLIPPED) or size[size > 0].min(initial=np.inf)
    return np.clip(changes, -limit, limit)


def expected(logits: Array, loss: LossKind) -> Array:
    """p of the loss' derivative p - y by the logits (m, C)."""
    return np.asarray(softmax(logits, axis=1) if loss is LossKind.SOFTMAX else expit(logits))


def answers(logits: Array, loss: LossKind) -> Array:
    """What is told for logits (m, C); for `ovr` the sigmoids, divided by their sum."""
    p = expected(logits, loss)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def log_slopes(logits: Array, loss: LossKind) -> Array:
    """Derivatives of the logarithm of an answer, before it is divided by the sum, by its logit, (m, C)."""
    return np.ones_like(logits) if loss is LossKind.SOFTMAX else np.asarray(expit(-logits))
