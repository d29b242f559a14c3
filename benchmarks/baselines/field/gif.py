"""GIF and IDEA: one step with the inverse Hessian, estimated by a series; IDEA adds noise.

* GIF: Wu, Yang, Qian, Sui, Wang and He, "GIF: A general graph unlearning strategy via influence function" (WWW 2023).
  The parameters move by H^-1 v. H is the Hessian of the objective as trained, v the gradient of the losses of the
  deleted and the influenced training nodes on the graph before, less that of the influenced on the graph after. Other
  nodes have the same loss on both, so v is the difference of the whole gradients. The inverse is a series: u_0 = v,
  u_{t+1} = v + u_t - H u_t / scale, and the step u / scale. It converges to H^-1 v if H is positive definite and its
  largest eigenvalue is below 2 scale.
* IDEA: Dong, Zhang, Lei, Zou and Li, "IDEA: A flexible framework of certified unlearning for graph neural networks"
  (KDD 2024). Theorem 1 is the same step. Theorem 3 adds normal noise of standard deviation
  zeta sqrt(2 ln(1.25 / delta)) / epsilon, zeta the bound of Proposition 3 on the distance to retraining.

Scale 500, 100 steps and IDEA's noise of 0.6 are what the authors' code has for GCN and SGC on Cora and Citeseer. What
differs from it:

* The scale is the Hessian's largest eigenvalue where that is more than 500, by 20 steps of the power method. The
  authors set it by hand for each graph and network, up to 1e8. [With 500, the parameters of the GCN here move by 1e25
  times their norm on Cora.]
* Only training nodes count. The authors' code sums v over all nodes in reach, test nodes with their labels among them.
* H has the weight decay of the training, which the authors' code leaves out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.baselines.field.differentiable import Model, Parameters, inputs, training
from benchmarks.baselines.protocol import Nodes
from projector.graph.graph import Graph

#: Steps of the power method.
_POWERS = 20


@dataclass(frozen=True)
class InfluenceFunction:
    """GIF with the least scale and the steps of the series; with `noise`, a standard deviation, IDEA."""

    least_scale: float = 500.0
    steps: int = 100
    noise: float = 0.0
    seed: int = 0

    def forget(self, model: Model, nodes: Nodes, left: Graph) -> Model:
        """As `Method.forget`."""
        moved = [
            each + step
            for each, step in zip(model.parameters, influence(model, left, self.least_scale, self.steps), strict=True)
        ]
        if self.noise:
            random = torch.Generator().manual_seed(self.seed)
            moved = [each + self.noise * torch.randn(each.shape, generator=random, dtype=each.dtype) for each in moved]
        return replace(model, parameters=tuple(moved))


def influence(model: Model, left: Graph, least_scale: float, steps: int) -> Parameters:
    """Return GIF's change of the parameters, by `steps` of the series."""
    parameters = [each.clone().requires_grad_() for each in model.parameters]
    before = _gradient(model, parameters, model.graph, create_graph=True)
    after = _gradient(model, parameters, left)
    v = [old.detach() - new for old, new in zip(before, after, strict=True)]
    decay = model.backbone.decay * int(model.graph.train_mask.sum())

    def times_hessian(u: Sequence[Tensor]) -> list[Tensor]:
        product = torch.autograd.grad(before, parameters, grad_outputs=tuple(u), retain_graph=True)
        return [each + decay * from_ for each, from_ in zip(product, u, strict=True)]

    scale = max(least_scale, _largest_eigenvalue(times_hessian, v))
    u = v
    for _ in range(steps):
        u = [start + each - times / scale for start, each, times in zip(v, u, times_hessian(u), strict=True)]
    return tuple(each / scale for each in u)


def _largest_eigenvalue(times: Callable[[Sequence[Tensor]], list[Tensor]], start: Sequence[Tensor]) -> float:
    """Return the eigenvalue of largest size of a symmetric matrix, by the power method; 0 from a `start` of zeros."""
    u, size = list(start), _norm(start)
    for _ in range(_POWERS):
        if size == 0:
            return 0.0
        u = times([each / size for each in u])
        size = _norm(u)
    return size


def _norm(vector: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float((each**2).sum()) for each in vector))


def bound(
    step: float, nodes: int, deleted: int, affected: int, *, lipschitz: float, convexity: float, loss: float
) -> float:
    """Return IDEA's Proposition 3: an upper bound on the distance to retraining.

    `step` is the norm of the change, `nodes`, `deleted` and `affected` count training nodes; the assumptions are a loss
    that is `lipschitz`, at least `convexity`-strongly convex, and at most `loss` at both optima.
    """
    lost = lipschitz * deleted
    root = math.sqrt(4 * nodes * convexity * loss * affected + lost**2)
    return step + (lost + root) / (nodes * convexity)


def certified_noise(distance: float, epsilon: float, delta: float) -> float:
    """Return IDEA's Theorem 3: the standard deviation that hides a `distance` at (epsilon, delta)."""
    return distance * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _gradient(
    model: Model, parameters: Sequence[Tensor], graph: Graph, *, create_graph: bool = False
) -> tuple[Tensor, ...]:
    """Return the gradient of the sum of the training nodes' losses on `graph`."""
    nodes, labels = training(graph)
    logits = model.backbone.layers(tuple(parameters), inputs(graph))[-1]
    return torch.autograd.grad(model.backbone.loss(logits[nodes], labels), parameters, create_graph=create_graph)
