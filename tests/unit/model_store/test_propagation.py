"""Propagation against a matrix built entry by entry."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import GRAPHS, dense_features, dense_propagation, isolated_nodes, sparse_features

from model_store.errors import DeviceError, GraphError
from model_store.graph import Graph
from model_store.propagation import Propagator
from model_store.spec import PropagationKind

KINDS = list(PropagationKind)


def as_matrix(propagator: Propagator) -> np.ndarray:
    return propagator.apply(torch.eye(propagator.nodes, dtype=torch.float64)).numpy()


@pytest.mark.parametrize("self_loops", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", GRAPHS)
def test_p_is_the_normalised_adjacency(make: Callable[[], Graph], kind: PropagationKind, self_loops: float) -> None:
    graph = make()
    propagator = Propagator.build(graph.adjacency, kind, self_loops)
    P = dense_propagation(graph.adjacency, kind, self_loops)
    assert np.allclose(as_matrix(propagator), P, rtol=0, atol=1e-15)
    transposed = propagator.apply_transpose(torch.eye(graph.nodes, dtype=torch.float64)).numpy()
    assert np.allclose(transposed, P.T, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_without_self_loops_a_node_with_no_edge_has_a_zero_row(kind: PropagationKind) -> None:
    P = as_matrix(Propagator.build(isolated_nodes().adjacency, kind, 0.0))
    assert not P[3:].any()
    assert P[0].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_whose_last_neighbour_is_deleted_becomes_isolated(kind: PropagationKind) -> None:
    propagator = Propagator.build(isolated_nodes().adjacency, kind, 0.0)
    after = as_matrix(propagator.without_nodes(np.array([1])))
    assert not after.any()


@settings(deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    self_loops=st.sampled_from([0.0, 1.0]),
    batches=st.lists(st.lists(st.integers(0, 49), max_size=12), max_size=6),
)
def test_deleting_in_any_batches_equals_building_on_what_remains(
    kind: PropagationKind, self_loops: float, batches: list[list[int]]
) -> None:
    adjacency = sparse_features().adjacency
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


@pytest.mark.parametrize("device", ["tpu", "mps", "abacus"])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(DeviceError, match=device):
        Propagator.build(dense_features().adjacency, PropagationKind.SYM, 1.0, device=device)
