"""Reconstruct a deleted node's features, by an attacker that knows how answers are rounded and has rehearsed (ours).

It deletes public nodes from its own model and rounds the answers as the service does. From these it learns the number
of least-squares steps, and the weight of its guess against the public rows' mean. It may learn to guess the mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.attacks.black_box import BlackBox, recorded
from benchmarks.attacks.knowledge import Known, answers, expected
from benchmarks.attacks.reconstruction import nearest, rows_by_steps
from benchmarks.baselines.linear import remaining, representation
from benchmarks.baselines.protocol import Array, Nodes
from projector.graph.graph import Graph

#: Choices for the steps of conjugate gradients and for the share of the guess against the mean.
_STEPS, _SHARES = (1, 2, 4, 8), (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """Public nodes (m,) deleted from the attackers' own model, with its answers (n, C) before and after."""

    nodes: Nodes
    before: Array
    after: Array

    @classmethod
    def drawn(
        cls, graph: Graph, known: Known, count: int, random: np.random.Generator, sigma: float = 0.0
    ) -> "Rehearsal":
        """Delete `count` random nodes. The weights take one step towards the optimum without them, as long as the
        model's.

        `sigma` is the standard deviation of the noise in each version's published weights.

        The step is of Newton's method, with the Hessian from before, scaled by the larger number of nodes that the
        attackers train on.
        """
        labelled = known.public[graph.labels[known.public] >= 0]
        nodes = np.sort(random.choice(labelled, count, replace=False))
        rows = representation(remaining(graph, nodes), known.spec, np.arange(graph.nodes))
        left = np.setdiff1d(labelled, nodes)
        slopes = expected(rows[left] @ known.W, known.spec.loss)
        slopes[np.arange(left.size), graph.labels[left]] -= 1.0
        gradient = rows[left].T @ slopes / left.size + known.spec.regularization * known.W
        W = known.W - known.hessian.solve(gradient) * (labelled.size / known.training)
        # The noise has its own stream, so that the same nodes are drawn with and without noise.
        (noise,) = random.spawn(1)
        before, after = (
            answers(H @ (weights + sigma * noise.standard_normal(weights.shape)), known.temperature)
            for H, weights in ((known.H, known.W), (rows, W))
        )
        # The service does not answer for a deleted node.
        after[nodes] = 0.0
        return cls(nodes, before, after)


@dataclass(frozen=True)
class Rehearsed:
    """What the attacker has learned."""

    steps: int
    #: Share of the guess; the mean has the rest.
    share: float

    @classmethod
    def by(cls, rehearsals: Sequence[Rehearsal], known: Known, decimals: int | None) -> "Rehearsed":
        """Choose what comes nearest to the nodes' rows, on average over the rehearsals, at `decimals` places."""
        cosines = np.zeros((len(_STEPS), len(_SHARES)))
        for one in rehearsals:
            versions = recorded(one.before, decimals), recorded(one.after, decimals)
            guesses = rows_by_steps(*versions, known, one.nodes.size, _STEPS)
            rows = known.H[one.nodes]
            cosines += [[nearest(_beside_mean(guess, share, known), rows) for share in _SHARES] for guess in guesses]
        steps, share = np.unravel_index(cosines.argmax(), cosines.shape)
        return cls(_STEPS[steps], _SHARES[share])

    def row(self, before: BlackBox, after: BlackBox, known: Known, count: int = 1) -> Array:
        """Return the guess (p,)."""
        if not self.share:
            return known.mean
        return _beside_mean(rows_by_steps(before, after, known, count, [self.steps])[0], self.share, known)


def _beside_mean(guess: Array, share: float, known: Known) -> Array:
    return (1.0 - share) * _direction(known.mean) + share * _direction(guess)


def _direction(row: Array) -> Array:
    """Normalise a row (p,) to length 1; zeros stay zeros."""
    return np.asarray(row / (np.linalg.norm(row) or 1.0))
