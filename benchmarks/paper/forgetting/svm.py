"""The support vector machine of the paper's appendix ("Connection and potential application to SVM unlearning").

The appendix measures nothing. It says that weights trained from zero by gradients lie in the span of the training rows,
and prints the dual with the constraint sum alpha_i y_i = 0. It proposes the projection followed by some iterations of
Pegasos. Tsai et al. (2014) use the iterations alone, and so have no guarantee. All of this is evaluated here with the
feature injection test. The plain hinge is trained by Pegasos' steps. The hinge smoothed over a width of 1 has an
optimum that Newton's method reaches, and a dual whose alpha_i follow from the margins.
"""

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.baselines.lethe import Lethe
from benchmarks.baselines.linear import logits, probabilities, remaining, representation, stacked
from benchmarks.baselines.protocol import Array, accuracy
from benchmarks.paper.forgetting.injection import with_channel
from benchmarks.paper.setting import SMOOTHED_HINGE, drawn, spec_of
from benchmarks.paper.units import Cases, Unit
from projector import ModelSpec, fit
from projector.graph.graph import Graph
from projector.network.losses import loss_of

#: Number of fine-tuning iterations.
_ITERATIONS = 100


@dataclass(frozen=True, eq=False)
class Machine:
    """The objective, a mean over rows H (m, p) of one machine for each class, and its steps."""

    H: Array
    labels: torch.Tensor
    spec: ModelSpec

    @classmethod
    def of(cls, graph: Graph, spec: ModelSpec) -> "Machine":
        """Build the machine of the training nodes of `graph`."""
        rows = np.flatnonzero(graph.train_mask)
        return cls(representation(graph, spec, rows), torch.from_numpy(graph.labels[rows]), spec)

    def slopes(self, W: Array) -> Array:
        """Return a subgradient of each row's loss by its logits, (m, C); -alpha_i y_i at the smoothed optimum."""
        return loss_of(self.spec.loss).residual(torch.from_numpy(self.H @ W), self.labels).numpy()

    def outside(self, W: Array) -> float:
        """Return the share of W (p, C) outside the span of the rows, in Frobenius norm."""
        combination = np.linalg.lstsq(self.H.T, W, rcond=None)[0]
        return float(np.linalg.norm(W - self.H.T @ combination) / np.linalg.norm(W))

    def imbalance(self, W: Array) -> float:
        """Return |sum_i alpha_i y_i| over sum_i alpha_i, for all classes: 0 if the dual had the printed constraint."""
        signed = self.slopes(W)
        return float(np.abs(signed.sum(axis=0)).sum() / np.abs(signed).sum())

    def tuned(self, W: Array, taken: int, iterations: int = _ITERATIONS) -> Array:
        """Return W (p, C) after `iterations` of descent with all rows.

        The step is 1 / (lambda + the largest curvature). A loss without curvature takes Pegasos' 1 / (lambda t), where
        t continues from the steps `taken`.
        """
        decay, curvature = self.spec.regularization, loss_of(self.spec.loss).largest_curvature
        steepest = curvature * float(np.linalg.norm(self.H, 2)) ** 2 / len(self.H)
        for t in range(taken + 1, taken + 1 + iterations):
            rate = 1 / (decay + steepest) if curvature else 1 / (decay * t)
            W = W - rate * (self.H.T @ self.slopes(W) / len(self.H) + decay * W)
        return W


def svm(graph: Graph, unit: Unit) -> Cases:
    """Give 5 and 10 % of the training nodes a channel of their own, then delete them by projection and fine-tuning."""
    spec = spec_of(unit.dataset, unit.method)
    for share in (0.05, 0.10):
        nodes, injected = drawn(graph, share, unit.seed), with_channel(graph, share, unit.seed)
        fitted = Lethe(spec, repair=False).fit(injected)
        before, projected = stacked(fitted.weights), stacked(fitted.unlearn(nodes).weights)
        rest = remaining(injected, nodes)
        machine = Machine.of(rest, spec)
        steps = spec.epochs * -(-int(injected.train_mask.sum()) // spec.batch_size) if spec.batch_size else 0
        found = {
            "before": before,
            "projected": projected,
            "tuned": machine.tuned(projected, steps),
            "tuned_alone": machine.tuned(before, steps),
            "retrained": stacked(fit(rest, spec).weights),
        }
        first, size, goal = Machine.of(injected, spec), np.linalg.norm(before), found["retrained"]

        def right(W: Array, where: Graph) -> float:
            answers = probabilities(logits(where, spec, W[None]), spec.loss)
            return accuracy(answers, graph, graph.test_mask)

        yield (
            f"{share:g}",
            {
                "nodes": nodes.size,
                "outside_span": first.outside(before),
                "imbalance": first.imbalance(before) if unit.method == SMOOTHED_HINGE else None,
                **{f"channel_{name}": float(np.linalg.norm(W[-1])) for name, W in found.items()},
                **{f"weights_{name}": float(np.linalg.norm(W - goal) / size) for name, W in found.items()},
                **{f"accuracy_{name}": right(W, injected if name == "before" else rest) for name, W in found.items()},
            },
        )
