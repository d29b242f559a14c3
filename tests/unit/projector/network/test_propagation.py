"""Propagation against a matrix built entry by entry."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.errors import DeviceError, GraphError
from projector.graph.graph import Graph
from projector.network import image_rows
from projector.network.propagation import Propagator
from projector.network.spec import PropagationKind
from tests.support.everyday import every_case
from tests.support.models.small_graphs import (
    GRAPHS,
    dense_features,
    dense_propagation,
    isolated_nodes,
    sparse_features,
    with_weights,
)

KINDS = list(PropagationKind)


def graph_of_50(weighted: bool) -> sp.csr_array:
    adjacency = sparse_features().adjacency
    return with_weights(adjacency) if weighted else adjacency


def as_matrix(propagator: Propagator) -> np.ndarray:
    return propagator.apply(torch.eye(propagator.nodes, dtype=torch.float64)).numpy()


@every_case("self_loops", [0.0, 0.5, 1.0])
@every_case("kind", KINDS)
@every_case("make", GRAPHS)
def test_p_is_the_normalised_adjacency(make: Callable[[], Graph], kind: PropagationKind, self_loops: float) -> None:
    graph = make()
    propagator = Propagator.build(graph.adjacency, kind, self_loops)
    P = dense_propagation(graph.adjacency, kind, self_loops)
    assert np.allclose(as_matrix(propagator), P, rtol=0, atol=1e-15)
    transposed = propagator.apply_transpose(torch.eye(graph.nodes, dtype=torch.float64)).numpy()
    assert np.allclose(transposed, P.T, rtol=0, atol=1e-15)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_symmetric_p_is_so_bit_for_bit(weighted: bool) -> None:
    P = as_matrix(Propagator.build(graph_of_50(weighted), PropagationKind.SYM, 0.3))
    assert np.array_equal(P, P.T)


@pytest.mark.parametrize("kind", KINDS)
def test_without_self_loops_a_node_with_no_edge_has_a_zero_row(kind: PropagationKind) -> None:
    P = as_matrix(Propagator.build(isolated_nodes().adjacency, kind, 0.0))
    assert not P[3:].any()
    assert P[0].any()


@settings(deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    self_loops=st.sampled_from([0.0, 1.0]),
    batches=st.lists(st.lists(st.integers(0, 49), max_size=12), max_size=6),
    weighted=st.booleans(),
)
def test_deleting_in_any_batches_equals_building_on_what_remains(
    kind: PropagationKind, self_loops: float, batches: list[list[int]], weighted: bool
) -> None:
    adjacency = graph_of_50(weighted)
    propagator = Propagator.build(adjacency, kind, self_loops)
    live = np.ones(50, dtype=np.bool_)
    for batch in batches:
        propagator = propagator.without_nodes(np.array(batch, dtype=np.int64))
        live[batch] = False
    fresh = Propagator.build(adjacency, kind, self_loops, live=live)
    P = as_matrix(propagator)
    assert np.array_equal(propagator.live, live)
    assert np.array_equal(P, as_matrix(fresh))
    assert not P[~live].any()
    assert not P[:, ~live].any()
    alone = Propagator.build(adjacency[live][:, live], kind, self_loops)
    assert np.array_equal(P[live][:, live], as_matrix(alone))


#: Consecutive deletions of nodes, or of edges by their ends; many are already deleted or never existed.
DELETIONS = st.lists(
    st.one_of(
        st.lists(st.integers(0, 49), max_size=8),
        st.lists(st.tuples(st.integers(0, 49), st.integers(0, 49)), max_size=8),
        st.lists(st.integers(0, 10_000), max_size=8).map(lambda numbers: [("edge", number) for number in numbers]),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(
    kind=st.sampled_from(KINDS), self_loops=st.sampled_from([0.0, 0.5, 1.0]), batches=DELETIONS, weighted=st.booleans()
)
def test_deleting_nodes_and_edges_in_any_order_equals_building_on_what_remains(
    kind: PropagationKind, self_loops: float, batches: list[list[Any]], weighted: bool
) -> None:
    adjacency = graph_of_50(weighted)
    stored = np.argwhere(adjacency.toarray())
    remaining, live = adjacency.toarray(), np.ones(50, dtype=np.bool_)
    propagator = Propagator.build(adjacency, kind, self_loops)
    for batch in batches:
        if batch and isinstance(batch[0], tuple):
            edges = [stored[end % len(stored)] if first == "edge" else (first, end) for first, end in batch]
            pairs = np.array(edges, dtype=np.int64)
            propagator = propagator.without_edges(pairs)
            remaining[pairs[:, 0], pairs[:, 1]] = remaining[pairs[:, 1], pairs[:, 0]] = 0.0
        else:
            propagator = propagator.without_nodes(np.array(batch, dtype=np.int64))
            live[batch] = False
    fresh = Propagator.build(sp.csr_array(remaining), kind, self_loops, live=live)
    assert np.array_equal(propagator.neighbours, fresh.neighbours)
    assert np.array_equal(as_matrix(propagator), as_matrix(fresh))
    assert np.allclose(as_matrix(propagator), dense_propagation(sp.csr_array(remaining), kind, self_loops, live))
    for power in (1, 2, 3):
        diagonal = np.diag(np.linalg.matrix_power(as_matrix(fresh), power))
        assert np.allclose(propagator.diagonal_of_power(power).numpy(), diagonal, atol=1e-14)
    everywhere = np.argwhere(np.ones((50, 50)))
    expected = (remaining * np.outer(live, live)).astype(bool).ravel()
    assert np.array_equal(propagator.edges.contain(everywhere), expected)


def test_edges_that_are_gone_or_never_were_are_passed_over() -> None:
    propagator = Propagator.build(dense_features().adjacency, PropagationKind.SYM, 1.0)
    first = np.argwhere(dense_features().adjacency.toarray())[:1]
    twice = np.concatenate([first, first[:, ::-1], first, [[3, 3]]])
    once = propagator.without_edges(first)
    assert np.array_equal(as_matrix(propagator.without_edges(twice)), as_matrix(once))
    assert np.array_equal(as_matrix(once.without_edges(twice)), as_matrix(once))
    assert np.array_equal(once.neighbours, once.without_edges(twice).neighbours)


def test_deleting_edges_copies_no_indices_and_leaves_the_propagator_it_started_from_as_it_was() -> None:
    adjacency = dense_features().adjacency
    propagator = Propagator.build(adjacency, PropagationKind.SYM, 1.0)
    before, pairs = as_matrix(propagator), np.argwhere(adjacency.toarray())[:5]
    after = propagator.without_edges(pairs)
    assert np.array_equal(as_matrix(propagator), before)
    assert propagator.edges.contain(pairs).all()
    assert not after.edges.contain(pairs).any()
    assert np.shares_memory(after.edges.adjacency.indices, adjacency.indices)
    assert after._pattern.columns.data_ptr() == propagator._pattern.columns.data_ptr()


def test_edges_of_rows_that_the_graph_does_not_have_are_an_error() -> None:
    propagator = Propagator.build(dense_features().adjacency, PropagationKind.SYM, 1.0)
    for pair in ([-1, 2], [2, -1], [2, 40], [40, 2]):
        with pytest.raises(IndexError):
            propagator.edges.contain(np.array([pair]))


def test_edges_are_found_in_a_matrix_whose_columns_are_in_any_order() -> None:
    columns = np.array([2, 1, 0, 0], dtype=np.int32)
    adjacency = sp.csr_array((np.ones(4), columns, np.array([0, 2, 3, 4])), shape=(3, 3))
    propagator = Propagator.build(adjacency, PropagationKind.SYM, 1.0)
    pairs = np.array([[0, 1], [0, 2], [1, 2], [2, 0]])
    assert propagator.edges.contain(pairs).tolist() == [True, True, False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_joining_edges_of_any_weight_equals_building_the_larger_graph(kind: PropagationKind) -> None:
    """Also on a graph that had no weights before, and for an edge that left and joins with another weight."""
    for weighted in (False, True):
        adjacency = graph_of_50(weighted)
        first = np.argwhere(np.triu(adjacency.toarray()))[:2]
        edges, weights = np.array([*first, [50, 3], [51, 50], [7, 51]]), np.array([0.3, 40.0, 1.0, 2.5, 1e-3])
        grown = Propagator.build(adjacency, kind, 1.0).without_edges(first).with_edges(2, edges, weights)
        larger = np.zeros((52, 52))
        larger[:50, :50] = adjacency.toarray()
        larger[edges[:, 0], edges[:, 1]] = larger[edges[:, 1], edges[:, 0]] = weights
        fresh = Propagator.build(sp.csr_array(larger), kind, 1.0)
        assert np.array_equal(as_matrix(grown), as_matrix(fresh))
        assert np.array_equal(grown.neighbours, fresh.neighbours)
        gone = np.array([3, 50])
        live = ~np.isin(np.arange(52), gone)
        expected = Propagator.build(sp.csr_array(larger), kind, 1.0, live=live)
        assert np.array_equal(as_matrix(grown.without_nodes(gone)), as_matrix(expected))


def test_a_graph_without_weights_holds_one_byte_an_edge() -> None:
    for weighted, kept in ((False, torch.bool), (True, torch.float64)):
        propagator = Propagator.build(graph_of_50(weighted), PropagationKind.SYM, 1.0)
        assert propagator._pattern.values.dtype is kept


def test_deleting_leaves_the_propagator_it_started_from_as_it_was() -> None:
    propagator = Propagator.build(dense_features().adjacency, PropagationKind.SYM, 1.0)
    before, live = as_matrix(propagator), propagator.live.copy()
    propagator.without_nodes(np.array([0, 5, 6]))
    assert np.array_equal(as_matrix(propagator), before)
    assert np.array_equal(propagator.live, live)


def test_hops_are_the_powers_of_p_applied_in_turn() -> None:
    graph = dense_features()
    propagator = Propagator.build(graph.adjacency, PropagationKind.ROW, 1.0)
    P = dense_propagation(graph.adjacency, PropagationKind.ROW, 1.0)
    Y = np.random.default_rng(0).standard_normal((graph.nodes, 2))
    hops = list(propagator.hops(torch.from_numpy(Y), 3))
    assert len(hops) == 4
    for hop, propagated in enumerate(hops):
        assert np.allclose(propagated.numpy(), np.linalg.matrix_power(P, hop) @ Y, atol=1e-14)


@pytest.mark.parametrize("self_loops", [-1.0, float("nan"), float("inf")])
def test_self_loops_of_impossible_weight_are_refused(self_loops: float) -> None:
    with pytest.raises(GraphError, match="self loops"):
        Propagator.build(dense_features().adjacency, PropagationKind.SYM, self_loops)


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_missing_gpu_is_an_error_and_never_a_silent_fallback(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="CUDA"):
        Propagator.build(dense_features().adjacency, PropagationKind.SYM, 1.0, device=device)


@pytest.mark.parametrize("few", [0.0, 1.0])
def test_a_neighbourhood_is_what_live_nodes_a_stored_edge_leads_to(few: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_rows, "_FEW", few)
    adjacency, rng = graph_of_50(True), np.random.default_rng(0)
    symmetric = sp.csr_array(adjacency, copy=True)
    ends = np.repeat(np.arange(50), np.diff(symmetric.indptr))
    # A deleted edge stays stored, in both directions.
    symmetric.data[(ends + symmetric.indices) % 5 == 0] = 0.0
    for share in (0.0, 0.05, 0.5, 1.0):
        nodes, live = rng.random(50) < share, rng.random(50) < 0.8
        expected = (((symmetric.toarray() != 0) & nodes).any(axis=1) | nodes) & live
        assert np.array_equal(image_rows.neighbourhood(symmetric, nodes, live), expected)
