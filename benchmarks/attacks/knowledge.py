"""The attackers' knowledge beyond answers: public nodes, candidates, and the first-order effect of a deletion.

Around weights W, the answers p of a node with row h change by J (h dW), where J = dp/dz for its logits z = h W. Leaving
out one of m training rows h_v changes W by about H^-1 (h_v s_v^T) / m, where s_v is the derivative of its loss by its
logits and H is the Hessian of Eq. 1. One solution with H compares all candidates with an observed change, since <J h
dW, d> = <dW, h^T J^T d>.
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
from projector.network.losses import UNFITTED_TEMPERATURE
from projector.network.spec import LossKind

#: Number of random changes used to estimate the length of the candidates' effects, to one part in eight.
_PROBES = 32
#: Maximum number of public rows for estimating the Hessian, which takes their Gram matrix for every class.
_ROWS = 20_000
#: Quantile at which changes of answers are clipped. Larger changes belong to the deleted node's neighbours, whose rows
#: the attackers know only as they were before.
_UNCLIPPED = 0.98
#: Temperatures of the softmax in `probabilities`; None for sigmoids divided by their sum.
_TEMPERATURES = {LossKind.SOFTMAX: 1.0, LossKind.OVR: None, LossKind.SQUARED: UNFITTED_TEMPERATURE}


@dataclass(frozen=True, eq=False)
class Hessian:
    """Hessian of the mean of Eq. 1 over rows (m, p): rows^T S rows / m + regularization, S = diag(a) - b b^T of each
    row.
    """

    rows: Array
    #: a and b, (m, C) each; b is zero if the logits do not interact.
    a: Array
    b: Array
    regularization: float

    @classmethod
    def at(cls, rows: Array, W: Array, loss: LossKind, regularization: float) -> "Hessian":
        """Return the Hessian at W (p, C), for softmax, one-vs-rest or squares."""
        if loss is LossKind.SQUARED:
            shape = len(rows), W.shape[1]
            return cls(rows, np.ones(shape), np.zeros(shape), regularization)
        p = expected(rows @ W, loss)
        coupled = loss is LossKind.SOFTMAX
        return cls(rows, p if coupled else p * (1 - p), p if coupled else np.zeros_like(p), regularization)

    def times(self, V: Array) -> Array:
        """Return H V for V (p, C)."""
        z = self.rows @ V
        curved = self.a * z - self.b * (self.b * z).sum(axis=1, keepdims=True)
        return np.asarray(self.rows.T @ curved / len(self.rows) + self.regularization * V)

    def solve(self, G: Array) -> Array:
        """Return H^-1 G for G (p, C), class by class; for a softmax, with the diagonal of S only.

        Leaves out the coupling of classes: with it, conjugate gradients take a hundred steps a solution.
        """
        return np.stack([cho_solve(one, g) for one, g in zip(self._classes, G.T, strict=True)], axis=1)

    @cached_property
    def _classes(self) -> list[tuple[Array, bool]]:
        """One factor for each class; the same for all if they have the same curvature, as squares do."""
        curvatures = self.a - self.b**2
        if (curvatures == curvatures[:, :1]).all():
            return [self._factor(curvatures[:, 0])] * curvatures.shape[1]
        return [self._factor(each) for each in curvatures.T]

    def _factor(self, curvature: Array) -> tuple[Array, bool]:
        # One array on both sides, since numpy then computes a triangle only.
        scaled = np.sqrt(curvature / len(self.rows))[:, None] * self.rows
        whole = scaled.T @ scaled
        whole[np.diag_indices_from(whole)] += self.regularization
        factor: tuple[Array, bool] = cho_factor(whole.T, overwrite_a=True)
        return factor


@dataclass(frozen=True, eq=False)
class Linearised:
    """J = dp/dz of each answer by its logits, from answers p (a, C) and the slopes (a, C) of their logarithms."""

    p: Array
    slopes: Array

    def forth(self, z: Array) -> Array:
        """Return J z for changes z (a, C) of the logits."""
        steep = self.slopes * z
        return np.asarray(self.p * (steep - (self.p * steep).sum(axis=1, keepdims=True)))

    def back(self, d: Array) -> Array:
        """Return J^T d for changes d (a, C) of the answers."""
        return np.asarray(self.slopes * (self.p * d - self.p * (self.p * d).sum(axis=1, keepdims=True)))


@dataclass(frozen=True, eq=False)
class Known:
    """The attackers' side: rows of the graph before the deletion, a model of their own, and the candidates."""

    #: Rows of H of all nodes before the deletion, (n, p).
    H: Array
    #: P before the deletion, (n, n).
    P: sp.csr_array
    #: Weights (p, C) of the attackers' own model, trained on the public nodes.
    W: Array
    spec: ModelSpec
    #: Hessian of the public rows at W.
    hessian: Hessian
    #: Public nodes that are queried, (a,). The rows of the other public nodes are known as well.
    asked: Nodes
    #: Candidates, one of which is deleted, (k,).
    candidates: Nodes
    #: m, the number of nodes that the model was trained on.
    training: int
    #: Temperature of the softmax in the answers; None if they are sigmoids divided by their sum.
    temperature: float | None

    @classmethod
    def of(cls, graph: Graph, spec: ModelSpec, candidates: Nodes) -> "Known":
        """Build the attackers' knowledge: all nodes except `candidates` (k,) are public and labelled, and train W."""
        nobody = np.zeros(graph.nodes, dtype=np.bool_)
        public = graph.labels >= 0
        public[candidates] = False
        W = train_linear(replace(graph, train_mask=public, val_mask=nobody, test_mask=nobody), spec).weights
        H = representation(graph, spec, np.arange(graph.nodes))
        asked = np.setdiff1d(np.arange(graph.nodes), candidates)
        training = int(graph.train_mask.sum())
        some = asked[:: -(-asked.size // _ROWS)]
        hessian = Hessian.at(H[some], stacked(W), spec.loss, spec.regularization)
        P, temperature = propagation(graph, spec), _TEMPERATURES[spec.loss]
        return cls(H, P, stacked(W), spec, hessian, asked, candidates, training, temperature)

    def changes(self, before: BlackBox, after: BlackBox) -> Array:
        """Return the change of the answers on queried nodes, (a, C); zero for a node that is now missing."""
        new = after(self.asked)
        return np.where(new.any(axis=1, keepdims=True), new - before(self.asked), 0.0)

    def agreement(self, changes: Array, labels: Nodes | None) -> Array:
        """Score how well each candidate's deletion explains `changes` (a, C): the cosine to its effects, times a
        constant.

        `labels` (k,) are the candidates'. Without them, the label that explains the changes best is used. Times the
        norm of the changes, this is the likelihood under normal noise, with the scale of the effect left open. Changes
        are clipped at the size that 2 % of them exceed, since changes next to a deleted edge do not follow from the
        weights. Returns (k,).
        """
        seen = self._with_each_label(self._projected(clipped(changes)))
        agreement = np.divide(seen, self.lengths, out=np.zeros_like(seen), where=self.lengths > 0)
        return np.asarray(agreement.max(axis=1) if labels is None else agreement[np.arange(len(labels)), labels])

    @cached_property
    def public(self) -> Nodes:
        """All nodes except the candidates, queried or not, (n - k,)."""
        return np.setdiff1d(np.arange(len(self.H)), self.candidates)

    @cached_property
    def mean(self) -> Array:
        """Mean of the public nodes' rows, (p,)."""
        return np.asarray(self.H[self.public].mean(axis=0))

    @cached_property
    def lengths(self) -> Array:
        """Size of the effect of each candidate's deletion on the public answers, for each possible label, (k, C)."""
        random = np.random.default_rng(0)
        squares = np.zeros((self.candidates.size, self.W.shape[1]))
        for _ in range(_PROBES):
            probe = random.normal(size=(self.asked.size, self.W.shape[1]))
            squares += self._with_each_label(self._projected(probe)) ** 2
        return np.sqrt(squares / _PROBES)

    @property
    def answers(self) -> Array:
        """Answers of the attackers' own model for all nodes, (n, C)."""
        return answers(self.H @ self.W, self.temperature)

    @cached_property
    def linearised(self) -> "Linearised":
        """Derivative of the queried nodes' answers by their logits."""
        logits = self.H[self.asked] @ self.W
        return Linearised(answers(logits, self.temperature), log_slopes(logits, self.temperature))

    def on(self, H: Array, P: sp.csr_array) -> "Known":
        """Return the same attackers with the rows of a later graph. Their trained model and the lengths of effects
        stay.
        """
        later = replace(self, H=H, P=P)
        # Sets a cached property: a few nodes change it by less than its precision.
        later.__dict__["lengths"] = self.lengths
        return later

    def _projected(self, d: Array) -> Array:
        """Return R (k, C): the effect of a candidate with slopes s projects on the direction d (a, C) as s R."""
        solved = self.hessian.solve(self.H[self.asked].T @ self.linearised.back(d))
        return np.asarray(self.H[self.candidates] @ solved) / self.training

    def _with_each_label(self, R: Array) -> Array:
        """Return s R for the slopes s = p - y of every label y, (k, C)."""
        p = expected(self.H[self.candidates] @ self.W, self.spec.loss)
        return np.asarray((p * R).sum(axis=1, keepdims=True) - R)


def clipped(changes: Array) -> Array:
    """Clip `changes` (a, C) at the size that 2 % of them exceed, or the smallest nonzero size if fewer are nonzero."""
    size = np.abs(changes)
    limit = np.quantile(size, _UNCLIPPED) or size[size > 0].min(initial=np.inf)
    return np.clip(changes, -limit, limit)


def expected(logits: Array, loss: LossKind) -> Array:
    """Return the p in the loss's derivative p - y by the logits (m, C)."""
    if loss is LossKind.SQUARED:
        return logits.copy()
    return np.asarray(softmax(logits, axis=1) if loss is LossKind.SOFTMAX else expit(logits))


def answers(logits: Array, temperature: float | None) -> Array:
    """Return the answers for logits (m, C): a softmax at `temperature`, or without one the sigmoids divided by their
    sum.
    """
    if temperature is not None:
        return np.asarray(softmax(logits / temperature, axis=1))
    p = expit(logits)
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def log_slopes(logits: Array, temperature: float | None) -> Array:
    """Return the derivative of an answer's logarithm by its logit, before the division by the sum, (m, C)."""
    if temperature is not None:
        return np.full_like(logits, 1 / temperature)
    return np.asarray(expit(-logits))
