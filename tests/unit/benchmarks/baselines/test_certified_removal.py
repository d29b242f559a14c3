"""Certified removal against its formulas, evaluated densely, and its bounds against the gradients they bound."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import aslinearoperator

from benchmarks.baselines.linear import remaining, representation, stacked, train_linear
from benchmarks.baselines.newton.certified_removal import (
    CertifiedModel,
    CertifiedRemoval,
    spectral_norm,
    standardised,
    trained_as_published,
)
from benchmarks.baselines.newton.logistic import normal
from benchmarks.baselines.protocol import Array
from projector.graph.graph import Graph
from tests.support.mathematics.baselines import OVR, dense_propagation, signs, small_graph, sum_gradient, sum_hessian

pytestmark = pytest.mark.ci

LAM = OVR.regularization


def dense_rows(graph: Graph) -> NDArray[np.float64]:
    P = dense_propagation(graph)
    return (P @ P @ graph.features)[graph.train_mask]


def removed(model: CertifiedModel, kind: str) -> tuple[CertifiedModel, Graph]:
    """Return the model and the graph after one request."""
    graph = model.graph
    node = int(np.flatnonzero(graph.train_mask)[0])
    if kind == "node":
        return model.unlearn(np.array([node])), remaining(graph, np.array([node]))
    if kind == "edge":
        neighbour = int(graph.adjacency[[node]].indices[0])
        adjacency = graph.adjacency.toarray()
        adjacency[node, neighbour] = adjacency[neighbour, node] = 0
        return model.unlearn_edge(neighbour, node), replace(graph, adjacency=type(graph.adjacency)(adjacency))
    kept, training = np.ones(graph.nodes), graph.train_mask.copy()
    kept[node], training[node] = 0.0, False
    features = graph.features * kept[:, None]
    return model.unlearn_features(node), replace(graph, features=features, train_mask=training)


@pytest.mark.parametrize("kind", ["node", "edge", "features"])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array])
def test_a_request_is_one_newton_step_and_one_bound(kind: str, form: Callable[[Any], Any]) -> None:
    graph = standardised(small_graph())
    graph = replace(graph, features=form(graph.features))
    fitted = CertifiedRemoval(OVR, epsilon=1e6).fit(graph)
    found, left = removed(fitted, kind)
    assert found.retrainings == 0
    old, new, W = dense_rows(graph), dense_rows(left), stacked(fitted.weights)
    sign_old, sign_new = (signs(each, np.flatnonzero(each.train_mask)) for each in (graph, left))
    for c, w in enumerate(W.T):
        delta = sum_gradient(old, sign_old[:, c], w, LAM) - sum_gradient(new, sign_new[:, c], w, LAM)
        step = np.linalg.solve(sum_hessian(new, sign_new[:, c], w, LAM), delta)
        np.testing.assert_allclose(stacked(found.weights)[:, c], w + step, atol=1e-9)
        bound = 0.25 * np.linalg.norm(new, 2) * np.linalg.norm(step) * np.linalg.norm(new @ step)
        assert found.spent[c] == pytest.approx(bound)


def test_the_bounds_cover_what_is_left_of_the_gradient_over_many_requests() -> None:
    graph = standardised(small_graph())
    fitted = CertifiedRemoval(OVR, epsilon=1e6, seed=1).fit(graph)
    training = np.flatnonzero(graph.train_mask)

    def perturbed_gradients(model: CertifiedModel) -> NDArray[np.float64]:
        s = signs(model.graph, np.flatnonzero(model.graph.train_mask))
        H, W = dense_rows(model.graph), stacked(model.weights)
        return np.stack([sum_gradient(H, s[:, c], w, LAM) for c, w in enumerate(W.T)], axis=1)

    b = normal(0.1, (1, 0), stacked(fitted.weights).shape)
    assert (np.linalg.norm(perturbed_gradients(fitted) + b, axis=0) <= fitted.residual_bounds + 1e-12).all()
    assert (fitted.residual_bounds < 1e-6).all()
    model = fitted
    for node in training[:4]:
        model = model.unlearn(np.array([node]))
        left = np.linalg.norm(perturbed_gradients(model) + b, axis=0)
        assert (left <= model.residual_bounds).all()
        assert (left > 1e-12).all()
    assert model.retrainings == 0
    assert model.epsilon == pytest.approx(model.settings.c * np.linalg.norm(model.spent) / 0.1)


def test_the_budget_is_guos_and_ends_in_training_anew() -> None:
    settings = CertifiedRemoval(OVR, noise=0.1, epsilon=1.0, delta=1e-4)
    assert settings.budget == pytest.approx(0.1 / np.sqrt(2 * np.log(1.5e4)))
    graph = standardised(small_graph())
    tight = replace(settings, epsilon=1e-6)
    nodes = np.flatnonzero(graph.train_mask)[:2]
    model = tight.fit(graph).unlearn(nodes)
    assert model.retrainings == 2
    assert (model.spent < 1e-9).all()
    left = remaining(graph, nodes)
    H, s = dense_rows(left), signs(left, np.flatnonzero(left.train_mask))
    gradients = np.stack([sum_gradient(H, s[:, c], w, LAM) for c, w in enumerate(stacked(model.weights).T)], axis=1)
    np.testing.assert_allclose(gradients, -0.1 * np.random.default_rng((0, 2)).normal(size=gradients.shape), atol=1e-8)


@pytest.mark.parametrize(
    "rows",
    [
        *(np.random.default_rng(0).normal(size=shape) for shape in ((1, 4), (4, 1), (1, 1), (6, 3), (3, 6))),
        np.zeros((3, 4)),
        np.ones((5, 4)),
        np.eye(6, 4),
        np.vander(np.linspace(0, 1, 30), 12),
    ],
)
@pytest.mark.parametrize("form", [np.asarray, aslinearoperator])
def test_the_spectral_norm_is_the_largest_singular_value(rows: Array, form: Callable[[Any], Any]) -> None:
    assert spectral_norm(form(rows)) == pytest.approx(np.linalg.svd(rows, compute_uv=False)[0], rel=1e-12)


def test_the_authors_solver_comes_near_the_minimum_that_newtons_method_reaches() -> None:
    graph = standardised(small_graph())
    training = np.flatnonzero(graph.train_mask)
    H = representation(graph, OVR, training)
    found = trained_as_published(H, graph.labels[training], 3, OVR.regularization)
    expected = stacked(train_linear(graph, OVR).weights)
    assert np.linalg.norm(found - expected) < 1e-2 * np.linalg.norm(expected)
