"""Influence functions against their formulas, evaluated densely node by node."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.baselines.linear import remaining, stacked, within_hops
from benchmarks.baselines.newton.influence import Affected, Influence, reach
from benchmarks.baselines.retraining import Retraining
from projector.graph.graph import Graph
from projector.network.spec import Combine, PropagationKind
from tests.support.mathematics.baselines import OVR, dense_propagation, signs, small_graph, sum_gradient, sum_hessian

pytestmark = pytest.mark.ci

LAM = OVR.regularization


def deleted_from(graph: Graph) -> NDArray[np.int64]:
    return np.flatnonzero(graph.train_mask)[:2]


def dense_rows(graph: Graph, *, row: bool = False) -> NDArray[np.float64]:
    P = dense_propagation(graph, row=row)
    return P @ P @ graph.features


def test_influence_is_guo_and_others_step_with_the_rows_as_they_were() -> None:
    graph = small_graph()
    nodes = deleted_from(graph)
    kept = np.setdiff1d(np.flatnonzero(graph.train_mask), nodes)
    fitted = Influence(OVR, Affected.DELETED).fit(graph)
    H, W = dense_rows(graph), stacked(fitted.weights)
    for c, w in enumerate(stacked(fitted.unlearn(nodes).weights).T):
        gradient = sum_gradient(H[nodes], signs(graph, nodes)[:, c], W[:, c], LAM)
        hessian = sum_hessian(H[kept], signs(graph, kept)[:, c], W[:, c], LAM)
        np.testing.assert_allclose(w, W[:, c] + np.linalg.solve(hessian, gradient), atol=1e-10)


def test_influence_plus_is_the_appendix_equation_with_its_sign_put_right() -> None:
    graph = small_graph()
    nodes = deleted_from(graph)
    training = np.flatnonzero(graph.train_mask)
    kept = np.setdiff1d(training, nodes)
    fitted = Influence(OVR, Affected.REPLACED).fit(graph)
    old, new, W = dense_rows(graph), dense_rows(remaining(graph, nodes)), stacked(fitted.weights)
    retrained = Retraining(OVR).fit(remaining(graph, nodes))
    affected = training[within_hops(graph, nodes, 3)[training]]
    given_back = np.setdiff1d(affected, nodes)
    assert 0 < affected.size < training.size
    for c, w in enumerate(stacked(fitted.unlearn(nodes).weights).T):
        v = -sum_gradient(old[affected], signs(graph, affected)[:, c], W[:, c], LAM)
        v += sum_gradient(new[given_back], signs(graph, given_back)[:, c], W[:, c], LAM)
        hessian = sum_hessian(old[training], signs(graph, training)[:, c], W[:, c], LAM)
        hessian -= sum_hessian(old[affected], signs(graph, affected)[:, c], W[:, c], LAM)
        hessian += sum_hessian(new[given_back], signs(graph, given_back)[:, c], W[:, c], LAM)
        np.testing.assert_allclose(w, W[:, c] - np.linalg.solve(hessian, v), atol=1e-10)
        # As printed, it moves away from retraining.
        printed, anew = W[:, c] + np.linalg.solve(hessian, v), stacked(retrained.weights)[:, c]
        assert np.linalg.norm(w - anew) < np.linalg.norm(W[:, c] - anew) < np.linalg.norm(printed - anew)
        # v is the gradient on the remaining graph, where training found the optimum, so the step is Newton's.
        whole = sum_gradient(new[kept], signs(graph, kept)[:, c], W[:, c], LAM)
        np.testing.assert_allclose(v, whole, atol=1e-10)


def test_the_authors_code_takes_all_affected_nodes_out_of_training() -> None:
    graph = small_graph()
    nodes = deleted_from(graph)
    training = np.flatnonzero(graph.train_mask)
    affected = training[within_hops(graph, nodes, 2)[training]]
    others = np.setdiff1d(training, affected)
    assert others.size
    fitted = Influence(OVR, Affected.REMOVED).fit(graph)
    H, W = dense_rows(graph), stacked(fitted.weights)
    left = fitted.unlearn(nodes)
    for c, w in enumerate(stacked(left.weights).T):
        gradient = sum_gradient(H[affected], signs(graph, affected)[:, c], W[:, c], LAM)
        hessian = sum_hessian(H[others], signs(graph, others)[:, c], W[:, c], LAM)
        np.testing.assert_allclose(w, W[:, c] + np.linalg.solve(hessian, gradient), atol=1e-10)
    np.testing.assert_array_equal(left.nodes, others)


@pytest.mark.parametrize("kind", list(PropagationKind))
@pytest.mark.parametrize("seed", range(3))
def test_rows_beyond_the_reach_of_a_deletion_do_not_change_and_one_at_it_does(kind: PropagationKind, seed: int) -> None:
    graph = small_graph(seed, nodes=60, features=4)
    spec, nodes, row = replace(OVR, propagation=kind), np.array([5]), kind is PropagationKind.ROW
    changed = np.abs(dense_rows(graph, row=row) - dense_rows(remaining(graph, nodes), row=row)).max(axis=1) > 1e-12
    affected = within_hops(graph, nodes, reach(spec))
    assert not (changed & ~affected).any()
    assert (changed & ~within_hops(graph, nodes, reach(spec) - 1)).any()


@pytest.mark.parametrize("combine", list(Combine))
def test_dependency_is_what_the_plain_influence_function_misses(combine: Combine) -> None:
    graph = small_graph(nodes=60, features=4)
    spec, nodes = replace(OVR, combine=combine), deleted_from(graph)
    retrained = Retraining(spec).fit(graph).unlearn(nodes).weights
    away = {
        affected: np.linalg.norm(Influence(spec, affected).fit(graph).unlearn(nodes).weights - retrained)
        for affected in Affected
    }
    assert away[Affected.REPLACED] < 0.5 * away[Affected.DELETED]
    assert away[Affected.REPLACED] < 0.5 * away[Affected.REMOVED]
