"""Lazy propagation against propagation by dense powers, and its bounds against the errors they bound."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks.baselines.linear import remaining, representation, stacked
from benchmarks.baselines.newton.certified_removal import CertifiedRemoval, standardised
from benchmarks.baselines.newton.scalegun import LazyRows, column_sum, degrees, scalegun
from projector import from_arrays
from projector.graph.graph import Graph
from projector.network.spec import Combine
from tests.support.mathematics.baselines import OVR, dense_propagation, signs, small_graph, sum_gradient

pytestmark = pytest.mark.ci

SPEC = replace(OVR, combine=Combine.CONCAT)


def blocks(graph: Graph) -> NDArray[np.float64]:
    P = dense_propagation(graph)
    return np.stack([graph.features, P @ graph.features, P @ P @ graph.features])


def without_two(graph: Graph, lazy: LazyRows) -> tuple[Graph, LazyRows]:
    """Delete a node and then an edge, updating after each."""
    graph = remaining(graph, np.array([3]))
    lazy = lazy.on(graph)
    first = int(np.argmax(degrees(graph)))
    graph = graph.without_edges(np.array([[first, int(graph.adjacency[[first]].indices[0])]]))
    return graph, lazy.on(graph)


@pytest.mark.parametrize("residue", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("later", [False, True])
def test_the_two_equations_hold_and_the_error_is_within_its_bounds(residue: float, later: bool) -> None:
    graph = small_graph()
    lazy = LazyRows.of(graph, SPEC, residue)
    if later:
        graph, lazy = without_two(graph, lazy)
    d = degrees(graph)
    A = graph.adjacency.toarray() + np.eye(graph.nodes)
    q, r = lazy.reserves, lazy.residues
    np.testing.assert_allclose(q[0] + r[0], np.sqrt(d)[:, None] * graph.features, atol=1e-12)
    for k in (1, 2):
        np.testing.assert_allclose(q[k] + r[k], (A / d) @ q[k - 1], atol=1e-12)
    assert np.abs(r).max() <= residue
    every = np.arange(graph.nodes)
    missing = blocks(graph) - lazy.rows(every).reshape(graph.nodes, 3, -1).transpose(1, 0, 2)
    sizes = np.linalg.norm(missing, axis=(1, 2))
    assert (sizes <= lazy.errors + 1e-12).all()
    assert np.linalg.norm(missing) <= lazy.error + 1e-12
    # The paper's bound on a column after L hops.
    assert np.linalg.norm(missing[2], axis=0).max() <= np.sqrt(graph.nodes) * 2 * residue + 1e-12
    if residue:
        assert sizes.min() > 0


def test_only_what_a_deletion_touches_is_computed() -> None:
    path = sp.csr_array(np.eye(40, k=1))
    graph = from_arrays(path, np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2)
    lazy = LazyRows.of(graph, SPEC, 1e-9)
    after = lazy.on(remaining(graph, np.array([5])))
    far = np.linalg.matrix_power(graph.adjacency.toarray() + np.eye(graph.nodes), 3)[5] == 0
    assert far.sum() > 10
    np.testing.assert_array_equal(after.reserves[:, far], lazy.reserves[:, far])


def test_with_no_residue_it_is_certified_graph_removal() -> None:
    graph = standardised(small_graph())
    nodes = np.flatnonzero(graph.train_mask)[:3]
    lazy, exact = (
        each.fit(graph).unlearn(nodes)
        for each in (scalegun(SPEC, epsilon=1e6, rmax=0.0), CertifiedRemoval(SPEC, epsilon=1e6))
    )
    np.testing.assert_allclose(lazy.weights, exact.weights, atol=1e-8)
    np.testing.assert_allclose(lazy.residual_bounds, exact.residual_bounds, rtol=1e-6)


def test_residues_scale_with_the_mean_column_sum_as_in_the_authors_code() -> None:
    graph = small_graph()
    assert np.isclose(column_sum(graph), np.abs(graph.features).sum(axis=0).mean())
    sparse = replace(graph, features=sp.csr_array(graph.features))
    assert np.isclose(column_sum(sparse), column_sum(graph))
    lazy = scalegun(SPEC, rmax=1e-3).fit(graph).embedding
    assert isinstance(lazy, LazyRows)
    largest = np.abs(lazy.residues).max()
    assert lazy.residue == 1e-3 * column_sum(graph)
    assert 1e-3 < largest <= lazy.residue


def test_the_bound_covers_the_gradient_on_exact_rows() -> None:
    graph = standardised(small_graph())
    nodes = np.flatnonzero(graph.train_mask)[:3]
    fitted = scalegun(SPEC, epsilon=1e6, rmax=0.01).fit(graph)
    b = np.random.default_rng((0, 0)).normal(scale=0.1, size=stacked(fitted.weights).shape)
    model = fitted.unlearn(nodes)
    assert model.retrainings == 0
    kept = np.flatnonzero(model.graph.train_mask)
    H, s = representation(model.graph, SPEC, kept), signs(model.graph, kept)
    for c, w in enumerate(stacked(model.weights).T):
        left = np.linalg.norm(sum_gradient(H, s[:, c], w, SPEC.regularization) + b[:, c])
        assert 0 < left <= model.residual_bounds[c]
    assert (model.residual_bounds > model.spent).all()
