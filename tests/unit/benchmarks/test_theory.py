"""The statements of the paper's theorems against computations from scratch, with an example for each that fails."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks.baselines.linear import propagation, remaining, representation, within_hops
from benchmarks.baselines.newton.logistic import OneAgainstRest
from benchmarks.paper.setting import drawn
from benchmarks.paper.theory.delta import own_parts
from benchmarks.paper.theory.descent import Problem, descend, largest_change, largest_row, longest_features
from benchmarks.paper.theory.duals import change_without, dual_variables
from benchmarks.paper.theory.expressiveness import decomposed, proven
from benchmarks.paper.theory.fine_tuning import PLAIN
from benchmarks.paper.theory.theorem import bounded
from benchmarks.paper.units import Unit, graph_of
from projector import ModelSpec, fit, from_arrays
from projector.graph.graph import Graph
from projector.network.spec import LossKind
from projector.training.fit import train

pytestmark = pytest.mark.ci

TINY = "synthetic:n=60,d=12,classes=3,seed=1"
Matrix = NDArray[np.float64]
OVR = ModelSpec(loss=LossKind.OVR)


def drawn_matrix(kind: str) -> Matrix:
    random = np.random.default_rng(5)
    X = random.normal(size=(9, 6))
    if kind == "rank-deficient":
        X = random.normal(size=(9, 3)) @ random.normal(size=(3, 6))
    elif kind == "more columns than rows":
        X = random.normal(size=(5, 9))
    elif kind == "duplicated rows":
        X = X[[0, 1, 2, 0, 1, 3]]
    elif kind == "zero rows":
        X[[2, 5]] = 0.0
        X[:, 4] = 0.0
        X[7, 4] = 0.25
    elif kind == "one row":
        X = X[:1]
    elif kind == "ill-conditioned":
        X = X * 10.0 ** -np.arange(0, 3, 0.5)
        X[3] += 5.0 * np.ones(6)
    return X


KINDS = (
    "random",
    "rank-deficient",
    "more columns than rows",
    "duplicated rows",
    "zero rows",
    "one row",
    "ill-conditioned",
)


@pytest.mark.parametrize("kind", KINDS)
def test_delta_is_what_leaving_one_out_gives(kind: str) -> None:
    X = drawn_matrix(kind)
    expected = []
    for node, row in enumerate(X):
        others = np.delete(X, node, axis=0)
        fitted = others.T @ np.linalg.lstsq(others.T, row, rcond=1e-9)[0] if len(others) else np.zeros_like(row)
        expected.append(np.linalg.norm(row - fitted))
    for form in (X, sp.csr_array(X)):
        np.testing.assert_allclose(own_parts(form), expected, rtol=1e-7, atol=1e-7)
    # Proposition 2's condition has more than B_x on its right side, so it cannot fail.
    assert max(expected) <= np.linalg.norm(X, axis=1).max() * (1 + 1e-12)


def test_delta_of_cora_is_what_leaving_one_out_gives() -> None:
    X = graph_of(Unit("delta", "cora", "raw", 0)).features
    X = X.toarray().astype(np.float64) if not isinstance(X, np.ndarray) else X
    found = own_parts(X)
    some = [*np.flatnonzero(found)[:2], *np.flatnonzero(found == 0)[:2]]
    for node in some:
        others = np.delete(X, node, axis=0)
        fitted = others.T @ np.linalg.lstsq(others.T, X[node], rcond=1e-9)[0]
        assert np.linalg.norm(X[node] - fitted) == pytest.approx(found[node], abs=1e-7)


@pytest.mark.parametrize("diffused", [False, True])
def test_the_constants_of_assumption_1_are_those_of_the_dense_powers(diffused: bool) -> None:
    unit = Unit("theorem", TINY, PLAIN, 0)
    graph, spec = graph_of(unit), ModelSpec(loss=LossKind.OVR, diffusion=diffused)
    nodes, diffusion = drawn(graph, 0.1, 0), train(spec, graph).diffusion
    problems = [Problem.of(each, spec, diffusion) for each in (graph, remaining(graph, nodes))]
    hops = problems[0].hops(), problems[1].hops(nodes)
    powers = [each[1].toarray() @ each[0].toarray() for each in hops]
    if not diffused:
        for power, each in zip(powers, (graph, remaining(graph, nodes)), strict=True):
            P = propagation(each, spec).toarray()
            rows = np.ones(graph.nodes, dtype=bool)
            rows[nodes] = each is graph
            np.testing.assert_allclose(power[rows], (P @ P)[rows], atol=1e-14)
    for power, factors in zip(powers, hops, strict=True):
        expected = np.linalg.norm(power, axis=1).max()
        assert largest_row(factors, symmetric=not diffused) == pytest.approx(expected, rel=1e-12)
    near = np.flatnonzero(within_hops(graph, nodes, 3)) if not diffused else np.arange(graph.nodes)
    expected = np.linalg.norm(powers[1] - powers[0], axis=1).max()
    assert largest_change(*hops, near) == pytest.approx(expected, rel=1e-12)


def test_the_bound_and_the_distance_are_those_of_descent_written_out() -> None:
    graph = graph_of(Unit("theorem", TINY, PLAIN, 0))
    nodes = drawn(graph, 0.1, 0)
    found: dict[str, Any] = dict(bounded(graph, OVR, nodes))
    kept = np.setdiff1d(np.flatnonzero(graph.train_mask), nodes)
    X, left = graph.features.astype(np.float64), remaining(graph, nodes)
    X = X if isinstance(X, np.ndarray) else X.toarray()
    before, after = (np.linalg.matrix_power(propagation(each, OVR).toarray(), 2) for each in (graph, left))
    after[nodes] = 0.0
    after[:, nodes] = 0.0
    B_x, lam = np.linalg.norm(X, axis=1).max(), OVR.regularization
    P_s = max(np.linalg.norm(each, axis=1).max() for each in (before, after))
    P_d = np.linalg.norm(after - before, axis=1).max()
    eta = 1 / (lam + (B_x * P_s) ** 2)

    def gradient(P: Matrix, rows: NDArray[np.int64], W: Matrix) -> Matrix:
        H = (P @ X)[rows]
        signs = np.where(graph.labels[rows][:, None] == np.arange(3), 1.0, -1.0)
        return H.T @ (-signs * expit(-signs * (H @ W))) / rows.size + lam * W

    training, w, w_u, largest = np.flatnonzero(graph.train_mask), np.zeros((12, 3)), np.zeros((12, 3)), 0.0
    for taken in range(1, 11):
        w, w_u = w - eta * gradient(before, training, w), w_u - eta * gradient(after, kept, w_u)
        largest = max(largest, *(np.linalg.norm(each, axis=0).max() for each in (w, w_u)))
        if str(taken) in found:
            G = np.linalg.norm(gradient(after, training, w_u) - gradient(after, kept, w_u), axis=0).max()
            factor = (1 + eta * (lam + (B_x * P_s) ** 2)) ** np.arange(taken)
            # Every direction has other support: delta is 0 and w_p is w.
            expected = eta * ((1 + B_x * largest * P_s) * B_x * P_d + G) * factor.sum()
            assert found[str(taken)]["delta"] == 0
            assert found[str(taken)]["bound"] == pytest.approx(expected, rel=1e-9)
            assert found[str(taken)]["distance"] == pytest.approx(np.linalg.norm(w_u - w, axis=0).max(), rel=1e-9)
            limit = (1 / (lam * eta * taken) + 1) * B_x * graph.nodes / nodes.size
            assert found[str(taken)]["condition"] == pytest.approx(limit)
    assert found["10"]["bound"] > found["10"]["triangle"]


def bipartite(centres: int, leaves: int) -> Graph:
    """Link every centre (features 0) to every leaf; half of the leaves have the feature 1, the others -1.

    All nodes train: the centres of class 0, the leaves of class 1.
    """
    ends = np.array([(c, centres + leaf) for c in range(centres) for leaf in range(leaves)]).T
    feature = np.concatenate([np.zeros(centres), np.ones(leaves // 2), -np.ones(leaves // 2)])
    labels = np.concatenate([np.zeros(centres), np.ones(leaves)]).astype(int)
    return from_arrays(ends, feature[:, None], labels)


def test_theorem_1_fails_where_many_deleted_neighbours_have_the_same_features() -> None:
    """Every node trains, so both readings of "remaining" agree, and lambda is so large that one step trains well."""
    graph, spec = bipartite(256, 128), ModelSpec(loss=LossKind.OVR, hops=1, regularization=100.0)
    assert graph.train_mask.all()
    deleted = np.flatnonzero(np.asarray(graph.features)[:, 0] == 1)
    one: dict[str, Any] = dict(bounded(graph, spec, deleted))["1"]
    assert one["delta"] == 0
    assert one["largest_change"] > 2 * one["B_x"] * one["P_d"]
    # For any w, g and its mean over the remaining nodes differ by at most the deleted nodes' share of that mean.
    left = remaining(graph, deleted)
    rows = representation(left, spec, np.flatnonzero(left.train_mask))
    G = deleted.size / graph.train_mask.sum() * np.linalg.norm(rows, axis=1).mean()
    assert one["G"] <= G
    assert one["distance"] > 1.2 * (one["bound"] + one["step"] * (G - one["G"]))
    W_p, least = (
        np.asarray(fit(graph, spec).forget(nodes=deleted, repair=repair)[0].weights[0]) for repair in (False, True)
    )
    # Before the deletion the features of the leaves cancel, so W_p is zero, and the distance is that of w_u.
    np.testing.assert_allclose(W_p, 0, atol=1e-9)
    assert one["distance"] == pytest.approx(np.linalg.norm(least - W_p, axis=0).max(), rel=1e-2)


def test_the_step_of_theorem_1_is_too_long_on_stars_of_one_feature() -> None:
    leaves = 200
    ends = np.array([(star * (leaves + 1), star * (leaves + 1) + k) for star in range(3) for k in range(1, leaves + 1)])
    nodes = 3 * (leaves + 1)
    labels = np.full(nodes, -1)
    labels[[0, leaves + 1, 2 * (leaves + 1)]] = 0, 0, 1
    graph = from_arrays(ends.T, np.ones((nodes, 1)), labels)
    deleted = np.array([0])
    model = fit(graph, OVR)
    W_p = torch.from_numpy(model.forget(nodes=deleted, repair=False)[0].weights[0])
    least = torch.from_numpy(model.forget(nodes=deleted)[0].weights[0])
    after = Problem.of(remaining(graph, deleted), OVR)
    P_s = max(largest_row(each, symmetric=True) for each in (Problem.of(graph, OVR).hops(), after.hops(deleted)))
    smoothness = OVR.regularization + (longest_features(graph) * P_s) ** 2
    *_, (_, last) = descend(after.objective, W_p, 1 / smoothness, (1000,))
    rate = 2 * smoothness * float(((W_p - least) ** 2).sum()) / 1004
    assert last.value - after.objective.at(least).value > 10 * rate


def linked(nodes: int, *pairs: tuple[int, int], features: Any = None) -> Graph:
    X = np.random.default_rng(2).normal(size=(nodes, 3)) if features is None else np.asarray(features, dtype=np.float64)
    return from_arrays(np.array(pairs, dtype=np.int64).reshape(-1, 2).T, X, np.arange(nodes) % 2)


STAR = ((0, 1), (0, 2), (0, 3))
PATH = ((0, 1), (1, 2))
#: (graph, proven eigenvalues that repeat with self-loops, dimensions missed)
GRAPHS = {
    "a path's two leaves are one eigenvector": (linked(3, *PATH), 0, 0),
    "three leaves are two": (linked(4, *STAR), 1, 0),
    "two pairs of leaves": (linked(7, (0, 1), (0, 2), (3, 4), (3, 5), (0, 6), (6, 3)), 1, 0),
    "two components": (linked(4, (0, 1), (1, 2)), 1, 0),
    "neighbours of each other": (linked(4, (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)), 2, 0),
    "leaves alike": (linked(4, *STAR, features=[[1, 0], [2, 1], [2, 1], [0, 1]]), 1, 1),
    "alone and nothing": (linked(4, *PATH, features=[[1, 0], [2, 1], [0, 3], [0, 0]]), 1, 1),
    "no features": (linked(3, *PATH, features=np.zeros((3, 2))), 0, 1),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("loops", [0, 1])
def test_what_a_linear_gnn_reaches_is_the_rank_of_all_powers(name: str, loops: int) -> None:
    graph, repeats, missed = GRAPHS[name]
    P = propagation(graph, ModelSpec(self_loops=loops)).toarray()
    X = np.asarray(graph.features)
    reached = np.linalg.matrix_rank(
        np.hstack([np.linalg.matrix_power(P, power) @ X for power in range(graph.nodes)]), tol=1e-9
    )
    every, least = decomposed(graph, loops), proven(graph, loops)
    assert every["missed"] == graph.nodes - reached
    eigenvalues = np.sort(np.linalg.eigvalsh(P))
    assert every["repeats"] == (np.diff(eigenvalues) < 1e-9).sum()
    for figure, expected in (("repeats", repeats), ("missed", missed)):
        assert (least[figure] or 0) <= (every[figure] or 0)
        if loops:
            assert least[figure] == expected


def test_the_weights_change_most_without_a_misclassified_node_and_its_dual_variable_is_never_zero() -> None:
    H, signs = np.ones((6, 1)), np.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0])
    one = OneAgainstRest(H, signs, 0.1 / 6)

    def minimum(s: Matrix) -> float:
        return float(brentq(lambda w: (-s * expit(-s * w)).sum() + 0.1 * w, -50, 50, xtol=1e-14))

    w = minimum(signs)
    alpha = dual_variables(one, np.array([w]))
    assert w > 0
    assert alpha[4] > 0.5 > alpha[0]
    assert w == pytest.approx((alpha * signs).sum() / 0.1)
    for node in range(6):
        expected = abs(minimum(np.delete(signs, node)) - w) / w
        assert change_without(one, np.array([w]), node) == pytest.approx(expected, rel=1e-8)
    assert change_without(one, np.array([w]), 4) > 0.5
