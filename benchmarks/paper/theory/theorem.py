"""Theorem 1's bound compared with the distance that it bounds, and Proposition 2's condition.

Descent starts from 0 with the step for which the paper proves a rate, 1 / (lambda + B_x^2 P_s^2). It runs T times on
the graph before and on the graph after 1 % of the training nodes were deleted, giving w(T) and w_u(T). The projection
of w(T) is w_p. The paper assumes G for any w; here G is taken at w_u(T), and B_w along the runs. The bound is thus
rather too small than too large, the safe side for calling it vacuous. (A counterexample has to take G for any w.) The
bound holds for every class, so the largest G, B_w and distance are compared.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines.linear import remaining, representation, within_hops
from benchmarks.baselines.protocol import Nodes
from benchmarks.paper.setting import drawn, spec_of
from benchmarks.paper.theory.descent import Problem, descend, largest_change, largest_row, longest_features
from benchmarks.paper.units import Cases, Unit
from projector import ModelSpec
from projector.forgetting.gram import downdate, factorise
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph
from projector.solvers.objective import Objective

#: T.
_STEPS = (1, 10, 100, 1000)


def theorem(graph: Graph, unit: Unit) -> Cases:
    """Yield the bound and the distance after 1 to 1,000 steps, with 1 % of the training nodes deleted."""
    yield from bounded(graph, spec_of(unit.dataset), drawn(graph, 0.01, unit.seed))


def bounded(graph: Graph, spec: ModelSpec, nodes: Nodes) -> Cases:
    """Yield the same for any model and `nodes` (m,)."""
    before, after = Problem.of(graph, spec), Problem.of(remaining(graph, nodes), spec)
    hops = before.hops(), after.hops(nodes)
    # A row of P^L changes if the degree of a node within its reach changes.
    near = np.flatnonzero(within_hops(graph, nodes, spec.hops + 1))
    B_x, P_d = longest_features(graph), largest_change(*hops, near)
    P_s = max(largest_row(each, symmetric=True) for each in hops)
    smoothness = spec.regularization + (B_x * P_s) ** 2
    step = 1 / smoothness
    lost, delta = _lost(graph, nodes)
    training = np.flatnonzero(graph.train_mask)
    H, H_u = (representation(each.graph, spec, training) for each in (before, after))
    longest, moved = (float(np.linalg.norm(rows, axis=1).max()) for rows in (np.concatenate([H, H_u]), H - H_u))
    everyone = _all_losses(after, graph)
    B_w = 0.0
    runs = (descend(each.objective, each.zero, step, range(max(_STEPS) + 1)) for each in (before, after))
    for (taken, w), (_, w_u) in zip(*runs, strict=True):
        B_w = max(B_w, _largest(w.W), _largest(w_u.W))
        if taken not in _STEPS:
            continue
        w_p = w.W - lost @ (lost.T @ w.W)
        G = _largest(everyone.at(w_u.W).gradient - w_u.gradient)
        Q = step * ((1 + B_x * B_w * P_s) * B_x * P_d + G)
        yield (
            str(taken),
            {
                "nodes": nodes.size,
                "bound": Q * (2.0**taken - 1) + delta * step * taken * nodes.size,
                "distance": _largest(w_u.W - w_p),
                "triangle": _largest(w_u.W) + _largest(w_p),
                "step": step,
                "delta": delta,
                "condition": (1 / (spec.regularization * step * taken) + 1) * B_x * graph.nodes / nodes.size,
                "G": G,
                "B_w": B_w,
                "B_x": B_x,
                "P_s": P_s,
                "P_d": P_d,
                "longest_row": longest,
                "largest_change": moved,
            },
        )


def _lost(graph: Graph, nodes: Nodes) -> tuple[Tensor, float]:
    """Return orthonormal directions (d, k) that `nodes` alone support, and delta: a node's largest part along them."""
    features = FeatureMatrix(graph.features)
    gram = factorise(features, np.ones(graph.nodes, dtype=np.bool_))
    surviving = np.ones(graph.nodes, dtype=np.bool_)
    surviving[nodes] = False
    X_D = features.dense_rows(nodes)
    lost = downdate(gram, X_D, features, surviving).lost_directions
    return lost, float(torch.linalg.vector_norm(X_D @ lost, dim=1).max())


def _all_losses(after: Problem, graph: Graph) -> Objective:
    """Return F^u averaged over all training nodes of `graph`, including deleted ones with zero rows: the g of G."""
    whole = replace(after.graph, train_mask=graph.train_mask, labels=graph.labels)
    return Problem.of(whole, after.spec).objective


def _largest(W: Tensor) -> float:
    """Return the largest norm of a class's column of W (p, C)."""
    return float(torch.linalg.vector_norm(W, dim=0).max())
