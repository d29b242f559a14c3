"""The paper's Algorithm 1 in its printed forms, against their formulas and against projections by QR."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.baselines.lethe import Lethe
from benchmarks.baselines.printed import Printed, PrintedProjector, option_1
from benchmarks.baselines.retraining import Retraining
from projector.graph.graph import Features, Graph
from projector.network.spec import Combine
from tests.support.mathematics.baselines import OVR, small_graph
from tests.support.models.small_graphs import dense

pytestmark = pytest.mark.ci


def with_lost_direction() -> tuple[Graph, NDArray[np.int64]]:
    """Return a graph whose first column only the two nodes to be deleted have."""
    graph = small_graph()
    nodes = np.flatnonzero(graph.train_mask)[:2]
    X = np.array(graph.features)
    X[:, 0] = 0.0
    X[nodes, 0] = [1.0, -0.5]
    return replace(graph, features=X), nodes


def projected(rows: Features, W: NDArray[np.float64]) -> NDArray[np.float64]:
    _, sizes, V = np.linalg.svd(dense(rows), full_matrices=False)
    V = V[sizes > 1e-10 * sizes[0]]
    return V.T @ (V @ W)


@pytest.mark.parametrize("combine", list(Combine))
def test_option_1_projects_on_the_remaining_training_nodes(combine: Combine) -> None:
    graph, nodes = with_lost_direction()
    fitted = PrintedProjector(replace(OVR, combine=combine), Printed.OPTION_1).fit(graph)
    kept = np.setdiff1d(np.flatnonzero(graph.train_mask), nodes)
    found = fitted.unlearn(nodes).weights
    np.testing.assert_allclose(found, projected(graph.features[kept], fitted.weights), atol=1e-12)
    assert np.abs(fitted.weights[:, 0]).max() > 1e-2
    assert np.abs(found[:, 0]).max() < 1e-12


def test_option_1_takes_away_what_test_nodes_support_and_lethe_does_not() -> None:
    graph = small_graph(features=40)
    nodes = np.flatnonzero(graph.train_mask)[:2]
    printed = PrintedProjector(OVR, Printed.OPTION_1).fit(graph)
    lethe = Lethe(OVR, repair=False).fit(graph)
    alive = np.setdiff1d(np.arange(graph.nodes), nodes)
    np.testing.assert_allclose(
        lethe.unlearn(nodes).weights, projected(graph.features[alive], printed.weights), atol=1e-9
    )
    assert np.abs(printed.unlearn(nodes).weights - lethe.unlearn(nodes).weights).max() > 1e-2


@pytest.mark.parametrize("form", list(Printed))
def test_no_projection_reads_an_edge(form: Printed) -> None:
    graph, nodes = with_lost_direction()
    fitted = PrintedProjector(OVR, form).fit(graph)
    assert graph.adjacency.nnz
    elsewhere = replace(fitted, graph=fitted.graph.without_any_edges())
    np.testing.assert_array_equal(elsewhere.unlearn(nodes).weights, fitted.unlearn(nodes).weights)


def test_with_nothing_deleted_the_weights_stay_only_if_all_nodes_remain() -> None:
    graph, nobody = small_graph(features=40), np.empty(0, dtype=np.int64)
    for form, stays in ((Printed.LIVE, True), (Printed.OPTION_1, False)):
        before = PrintedProjector(OVR, form).fit(graph)
        np.testing.assert_allclose(before.weights, Retraining(OVR).fit(graph).weights, atol=1e-6)
        moved = np.linalg.norm(before.unlearn(nobody).weights - before.weights)
        assert (moved < 1e-9) if stays else (moved > 1e-2)


@pytest.mark.parametrize(("r", "d"), [(100, 20), (500, 20), (100, 40)])
def test_option_1_takes_r_d2_for_its_rows_and_inverts_a_d_by_d_matrix(r: int, d: int) -> None:
    with FlopCounterMode(display=False) as counted:
        _, inverse = option_1(np.random.default_rng(0).normal(size=(r, d)), np.ones(r, dtype=np.bool_), single=False)
    # A multiplication and an addition each. The decomposition behind the pseudo-inverse is not counted.
    assert counted.get_total_flops() == 2 * r * d**2
    assert inverse.shape == (d, d)


def test_weights_close_to_retraining_can_hold_the_channel() -> None:
    graph, nodes = with_lost_direction()
    before, anew = PrintedProjector(OVR, Printed.LIVE).fit(graph).weights, Retraining(OVR).fit(graph).unlearn(nodes)
    assert anew.weights is not None
    assert np.abs(anew.weights[:, 0]).max() < 1e-9
    for share in (1e-2, 1e-4):
        near = anew.weights + share * (before - anew.weights)
        assert np.linalg.norm(near - anew.weights) <= share * np.linalg.norm(before - anew.weights) * (1 + 1e-9)
        assert np.abs(near[:, 0]).max() > 1e-2 * share


def test_option_2_is_the_printed_formula_and_no_projection() -> None:
    graph, nodes = with_lost_direction()
    fitted = PrintedProjector(OVR, Printed.OPTION_2).fit(graph)
    X = graph.features
    D = X[nodes]
    M_pinv = np.linalg.pinv(X.T @ X)
    S = D.T @ (np.eye(2) - D @ D.T) @ D
    expected = (X.T @ X - D.T @ D) @ (M_pinv + M_pinv @ S @ M_pinv) @ fitted.weights
    once = fitted.unlearn(nodes)
    np.testing.assert_allclose(once.weights, expected, atol=1e-11)
    # The next deletion starts from this one's M and M^+.
    third = np.flatnonzero(graph.train_mask)[2:3]
    E = X[third]
    M, M_pinv = X.T @ X - D.T @ D, M_pinv + M_pinv @ S @ M_pinv
    S = E.T @ (np.eye(1) - E @ E.T) @ E
    again = once.unlearn(third)
    np.testing.assert_allclose(
        again.weights, (M - E.T @ E) @ (M_pinv + M_pinv @ S @ M_pinv) @ once.weights, rtol=1e-9, atol=1e-9
    )
    # It is far from the projection even if no direction is lost.
    plain = small_graph()
    before = PrintedProjector(OVR, Printed.OPTION_2).fit(plain)
    changed = before.unlearn(nodes).weights
    assert np.linalg.norm(changed - before.weights) > 0.1 * np.linalg.norm(before.weights)
    assert np.linalg.norm(Lethe(OVR, repair=False).fit(plain).unlearn(nodes).weights - before.weights) < 1e-9


def test_woodbury_has_nothing_to_invert_where_a_direction_is_lost() -> None:
    def updated(X_r: NDArray[Any], X_D: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the identity's middle before its inversion, and the result with a pseudo-inverse there."""
        M_pinv = np.linalg.pinv(X_r.T @ X_r + X_D.T @ X_D)
        middle = np.eye(len(X_D)) - X_D @ M_pinv @ X_D.T
        return middle, M_pinv + M_pinv @ X_D.T @ np.linalg.pinv(middle) @ X_D @ M_pinv

    X_r, X_D = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[1.0, 0.0]])
    np.testing.assert_allclose(updated(X_r, X_D)[1], np.linalg.pinv(X_r.T @ X_r), atol=1e-12)
    X_r = np.array([[0.0, 1.0]])
    middle, found = updated(X_r, X_D)
    assert middle == 0.0
    np.testing.assert_array_equal(np.linalg.pinv(X_r.T @ X_r), np.diag([0.0, 1.0]))
    np.testing.assert_array_equal(found, np.eye(2))


def test_the_official_code_projects_on_all_remaining_nodes_in_single_precision() -> None:
    graph, nodes = with_lost_direction()
    fitted = PrintedProjector(OVR, Printed.OFFICIAL).fit(graph)
    kept = np.setdiff1d(np.arange(graph.nodes), nodes)
    error = np.abs(fitted.unlearn(nodes).weights - projected(graph.features[kept], fitted.weights)).max()
    assert 1e-9 < error < 1e-4


def test_the_official_code_drops_what_single_precision_does_not_tell_from_rounding() -> None:
    graph = small_graph()
    X = np.array(graph.features)
    X[:, 0] *= 1e-4
    nodes = np.flatnonzero(graph.train_mask)[:2]
    fitted = PrintedProjector(OVR, Printed.OFFICIAL).fit(replace(graph, features=X))
    size = np.linalg.norm(fitted.weights[:, 0])
    assert size > 0
    assert np.linalg.norm(fitted.unlearn(nodes).weights[:, 0]) < 0.1 * size
    lethe = Lethe(OVR, repair=False).fit(replace(graph, features=X))
    np.testing.assert_allclose(lethe.unlearn(nodes).weights, lethe.weights, rtol=1e-9)
