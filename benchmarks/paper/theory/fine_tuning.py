"""Fine-tuning after the projection (the paper's Table 6, Figure 6 and the rate of its Theorem 1), beside the repair.

1 % of the training nodes are deleted. From the projected weights, gradient descent on the remaining graph takes the
step 1 / (lambda + B_x^2 P_s^2), with the sigmas of adaptive diffusion unchanged. It is compared with the same descent
from W = 0, and with retraining to the optimum, which learns the sigmas as well. The repair ends at the minimum that
fine-tuning approaches.
"""

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.baselines.linear import remaining
from benchmarks.paper.setting import drawn, spec_of
from benchmarks.paper.theory.descent import Problem, descend, largest_row, longest_features
from benchmarks.paper.units import Cases, Figures, Unit
from projector import fit
from projector.graph.graph import Graph
from projector.training.fit import train

PLAIN, DIFFUSED = "lethe, projection", "lethe, projection, with diffusion"
#: The paper stops when validation accuracy has not risen for 10 iterations on ogbn-arxiv, 1,000 on ogbn-products.
ITERATIONS = (10, 100, 1000)
FROM_ZERO = "from zero, {}"


def fine_tuning(graph: Graph, unit: Unit) -> Cases:
    """Yield accuracies and the distance to the minimum, before and after, along fine-tuning, repaired and retrained."""
    spec = replace(spec_of(unit.dataset), diffusion=unit.method == DIFFUSED)
    nodes = drawn(graph, 0.01, unit.seed)
    diffusion = train(spec, graph).diffusion
    before = Problem.of(graph, spec, diffusion)
    after = Problem.of(remaining(graph, nodes), spec, diffusion)
    model = fit(graph, spec)
    projected, repaired = (model.forget(nodes=nodes, repair=repair)[0] for repair in (False, True))
    W, W_p, least = (torch.from_numpy(each.weights[0]) for each in (model, projected, repaired))
    P_s = max(largest_row(each, symmetric=not spec.diffusion) for each in (before.hops(), after.hops(nodes)))
    smoothness = spec.regularization + (longest_features(graph) * P_s) ** 2

    lowest = after.objective.at(least).value

    def along(point: Tensor) -> Figures:
        away = float(torch.linalg.norm(point - least) / torch.linalg.norm(least))
        gap = after.objective.at(point).value - lowest
        return _accuracies(after, point, after.graph) | {"gap": gap, "distance": away}

    yield "before", _accuracies(before, W, after.graph)
    for name, start in (("{}", W_p), (FROM_ZERO, after.zero)):
        away = float(((start - least) ** 2).sum())
        for taken, point in descend(after.objective, start, 1 / smoothness, (0, *ITERATIONS)):
            # The last line of the proof of the rate.
            bound: Figures = {"rate": 2 * smoothness * away / (taken + 4), "step": 1 / smoothness}
            yield ("after" if name == "{}" and not taken else name.format(taken)), along(point.W) | bound
    yield "repaired", along(least)
    anew = train(spec, after.graph)
    retrained = Problem.of(after.graph, spec, anew.diffusion)
    yield "retrained", _accuracies(retrained, anew.weights[0], after.graph)


def _accuracies(of: Problem, W: Tensor, left: Graph) -> Figures:
    """Return the accuracies of W (p, C) in a problem, on remaining training, validation and test nodes."""
    masks = {"train": left.train_mask, "validation": left.val_mask, "accuracy": left.test_mask}
    return {name: of.accuracy(W, mask) if mask.any() else None for name, mask in masks.items()}
