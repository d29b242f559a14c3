"""The baselines' external view of the linear model equals the library's internal one."""

import gc
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.baselines.lethe import Lethe
from benchmarks.baselines.linear import (
    fitted,
    logits,
    probabilities,
    propagation,
    remaining,
    representation,
    representation_operator,
    stacked,
)
from benchmarks.baselines.retraining import Retraining
from projector import fit
from projector.network.spec import Combine, LossKind, PropagationKind
from tests.support.mathematics.baselines import OVR, dense_propagation, signs, small_graph, sum_gradient

pytestmark = pytest.mark.ci


def test_methods_share_weights_until_their_graph_is_gone() -> None:
    graph, other = small_graph(), small_graph()
    weights = fitted(graph, OVR).weights
    assert fitted(graph, OVR).weights is weights
    np.testing.assert_array_equal(fitted(other, OVR).weights, weights)
    assert fitted(graph, replace(OVR, regularization=0.5)).weights is not weights
    gone = ref(graph)
    del graph
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", list(PropagationKind))
@pytest.mark.parametrize("combine", list(Combine))
def test_rows_and_logits_are_the_dense_ones(kind: PropagationKind, combine: Combine) -> None:
    graph = small_graph()
    spec = replace(OVR, propagation=kind, combine=combine)
    P = dense_propagation(graph, row=kind is PropagationKind.ROW)
    np.testing.assert_allclose(propagation(graph, spec).toarray(), P, atol=1e-15)
    X = np.asarray(graph.features)
    H = P @ P @ X if combine is Combine.LAST else np.hstack([X, P @ X, P @ P @ X])
    every = np.arange(graph.nodes)
    np.testing.assert_allclose(representation(graph, spec, every), H, atol=1e-14)
    some, random = np.array([5, 2, 9]), np.random.default_rng(2)
    for features in (X, sp.csr_array(X)):
        operator = representation_operator(replace(graph, features=features), spec, some)
        w, v = random.normal(size=H.shape[1]), random.normal(size=some.size)
        np.testing.assert_allclose(operator @ w, H[some] @ w, atol=1e-13)
        np.testing.assert_allclose(operator.T @ v, H[some].T @ v, atol=1e-13)
    W = np.random.default_rng(1).normal(size=(len(spec.block_hops), X.shape[1], 3))
    np.testing.assert_allclose(logits(graph, spec, W), H @ stacked(W), atol=1e-13)


@pytest.mark.parametrize("loss", [LossKind.SOFTMAX, LossKind.OVR])
def test_predictions_are_those_of_the_library(loss: LossKind) -> None:
    graph = small_graph()
    spec = replace(OVR, loss=loss, combine=Combine.CONCAT)
    model = fit(graph, spec)
    found = probabilities(logits(graph, spec, model.weights), loss)
    np.testing.assert_allclose(found, model.predict(), atol=1e-13)


def test_what_remains_has_neither_edges_nor_features_nor_labels_of_the_deleted() -> None:
    graph, nodes = small_graph(), np.array([2, 5])
    left = remaining(graph, nodes)
    kept = np.setdiff1d(np.arange(graph.nodes), nodes)
    np.testing.assert_array_equal(
        left.adjacency.toarray()[np.ix_(kept, kept)], graph.adjacency.toarray()[np.ix_(kept, kept)]
    )
    assert left.adjacency[nodes].nnz == left.adjacency[:, nodes].nnz == 0
    assert not left.features[nodes].any()
    assert (left.labels[nodes] == -1).all()
    assert not (left.train_mask | left.val_mask | left.test_mask)[nodes].any()
    assert left.class_names == graph.class_names


def test_retraining_is_what_lethe_reaches_with_its_repair_and_not_without() -> None:
    graph, nodes = small_graph(), np.array([0, 4, 9])
    retrained = Retraining(OVR).fit(graph).unlearn(nodes)
    repaired, projected = (Lethe(OVR, repair).fit(graph).unlearn(nodes) for repair in (True, False))
    size = np.linalg.norm(retrained.weights)
    assert np.linalg.norm(repaired.weights - retrained.weights) <= 1e-8 * size
    assert np.linalg.norm(projected.weights - retrained.weights) > 1e-3 * size
    np.testing.assert_allclose(repaired.predict(), retrained.predict(), atol=1e-8)
    assert not retrained.predict()[nodes].any()


def test_retraining_ends_where_the_gradient_of_what_remains_is_zero() -> None:
    graph, nodes = small_graph(), np.array([0, 4, 9])
    retrained = Retraining(OVR).fit(graph).unlearn(nodes)
    left = remaining(graph, nodes)
    P, rows = dense_propagation(left), np.flatnonzero(left.train_mask)
    H, s = (P @ P @ np.asarray(left.features))[rows], signs(left, rows)
    for w, of_class in zip(retrained.weights[0].T, s.T, strict=True):
        gradient = sum_gradient(H, of_class, w, OVR.regularization)
        assert np.linalg.norm(gradient) <= 1e-8 * np.linalg.norm(sum_gradient(H, of_class, 0 * w, OVR.regularization))
