"""GraphEditor and closed-form SGC against their formulas, evaluated densely."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.baselines.linear import remaining, stacked
from benchmarks.baselines.retraining import Retraining
from benchmarks.baselines.ridge import ClosedFormSgc, Editing, GraphEditor, exchanged, with_rows, without_rows
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import Combine, LossKind, PropagationKind
from tests.support.mathematics.baselines import dense_propagation, signs, small_graph

pytestmark = pytest.mark.ci

SQUARED = ModelSpec(loss=LossKind.SQUARED, regularization=1e-2)


def deleted_from(graph: Graph) -> NDArray[np.int64]:
    return np.flatnonzero(graph.train_mask)[:2]


def solved(graph: Graph, spec: ModelSpec, ridge: float, targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ridge solution as a least-squares problem of H above rows of sqrt(ridge) I."""
    P = dense_propagation(graph, row=spec.propagation is PropagationKind.ROW)
    images = [graph.features, P @ graph.features, P @ P @ graph.features]
    H = np.hstack([images[hop] for hop in spec.block_hops])[graph.train_mask]
    rows = np.vstack([H, np.sqrt(ridge) * np.eye(H.shape[1])])
    sides = np.vstack([targets, np.zeros((H.shape[1], targets.shape[1]))])
    return np.linalg.lstsq(rows, sides, rcond=None)[0]


def inverted(M: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.inv(M), dtype=np.float64)


def signs_of(graph: Graph) -> NDArray[np.float64]:
    return signs(graph, np.flatnonzero(graph.train_mask))


@pytest.mark.parametrize("propagation", list(PropagationKind))
@pytest.mark.parametrize("combine", list(Combine))
def test_graph_editor_is_the_ridge_solution_of_what_remains_with_the_ridge_of_before(
    propagation: PropagationKind, combine: Combine
) -> None:
    graph, spec = small_graph(), replace(SQUARED, propagation=propagation, combine=combine)
    nodes = deleted_from(graph)
    ridge = spec.regularization * int(graph.train_mask.sum())
    fitted, after = GraphEditor(spec, Editing.CLOSED_FORM).fit(graph), remaining(graph, nodes)
    np.testing.assert_allclose(stacked(fitted.weights), solved(graph, spec, ridge, signs_of(graph)), atol=1e-11)
    left = fitted.unlearn(nodes)
    expected = solved(after, spec, ridge, signs_of(after))
    np.testing.assert_allclose(stacked(left.weights), expected, atol=1e-11)
    again = GraphEditor(spec, Editing.RETRAINED).fit(graph).unlearn(nodes)
    np.testing.assert_allclose(again.weights, left.weights, atol=1e-11)
    # It is not the solution whose ridge follows the number of rows.
    fewer = spec.regularization * int(after.train_mask.sum())
    assert np.abs(expected - solved(after, spec, fewer, signs_of(after))).max() > 1e-4


def test_rows_leave_and_join_an_inverse_as_the_matrix_without_and_with_them_is_inverted() -> None:
    random = np.random.default_rng(0)
    H, A, B = (random.standard_normal((rows, 6)) for rows in (20, 3, 9))
    M = H.T @ H + A.T @ A + np.eye(6)
    S = inverted(M)
    np.testing.assert_allclose(without_rows(S, A), inverted(M - A.T @ A), atol=1e-12)
    np.testing.assert_allclose(with_rows(S, B), inverted(M + B.T @ B), atol=1e-12)
    # B has more rows than columns; its first rows have not.
    for joining in (B, B[:5]):
        np.testing.assert_allclose(exchanged(S, A, joining), inverted(M - A.T @ A + joining.T @ joining), atol=1e-12)


def test_fine_tuning_is_five_hundred_steps_of_adam_on_the_cross_entropy_of_what_remains() -> None:
    graph = small_graph()
    nodes = deleted_from(graph)
    closed, tuned = (GraphEditor(SQUARED, each).fit(graph) for each in (Editing.CLOSED_FORM, Editing.FINE_TUNED))
    after = remaining(graph, nodes)
    P = dense_propagation(after)
    H, labels = (P @ P @ after.features)[after.train_mask], after.labels[after.train_mask]
    # Adam as in its paper.
    W, m, v = stacked(closed.unlearn(nodes).weights), 0.0, 0.0
    for step in range(1, 501):
        p = np.exp(H @ W - (H @ W).max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        slope = H.T @ (p - np.eye(3)[labels]) / len(H)
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
        W = W - 1e-3 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(stacked(tuned.unlearn(nodes).weights), W, atol=1e-9)
    assert np.linalg.norm(W - stacked(closed.unlearn(nodes).weights)) > 1e-2


@pytest.mark.parametrize("propagation", list(PropagationKind))
def test_closed_form_sgc_is_retraining_with_the_squared_loss(propagation: PropagationKind) -> None:
    graph, spec = small_graph(), replace(SQUARED, propagation=propagation)
    nodes, ridge = deleted_from(graph), spec.regularization * int(graph.train_mask.sum())
    fitted, retraining = ClosedFormSgc(spec).fit(graph), Retraining(spec).fit(graph)
    one_hot = np.eye(3)[graph.labels[graph.train_mask]]
    np.testing.assert_allclose(stacked(fitted.weights), solved(graph, spec, ridge, one_hot), atol=1e-11)
    np.testing.assert_allclose(fitted.weights, retraining.weights, atol=1e-9)
    np.testing.assert_allclose(fitted.unlearn(nodes).weights, retraining.unlearn(nodes).weights, atol=1e-9)
    np.testing.assert_allclose(fitted.predict(), retraining.predict(), atol=1e-8)


def test_several_deletions_in_a_row_are_one() -> None:
    graph = small_graph()
    first, second = np.flatnonzero(graph.train_mask)[[0, 5]], np.array([7])
    for baseline in (GraphEditor(SQUARED, Editing.CLOSED_FORM), ClosedFormSgc(SQUARED)):
        apart = baseline.fit(graph).unlearn(first).unlearn(second)
        together = baseline.fit(graph).unlearn(np.sort(np.concatenate([first, second])))
        np.testing.assert_allclose(apart.weights, together.weights, atol=1e-10)
        assert torch.from_numpy(apart.predict()).isfinite().all()
