"""Weights of edges, and edges in one direction: what is read, and what is refused."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from model_store.datasets.benchmark_files import without_loops
from model_store.datasets.files import read_npz, write_npz
from projector import from_arrays
from projector.errors import GraphError
from projector.graph.from_data import graph_of
from projector.graph.graph import Graph, validate
from projector.graph.raw_graph import RawGraph
from tests.support.models.small_datasets import arrays, load

#: Of the edges 0-1, 1-0, 1-2, 2-1, 4-5, 5-4.
WEIGHTS = np.array([0.5, 0.5, 3.0, 3.0, 1.0, 1.0])
EDGES = arrays()["edge_index"].astype(np.int64)


def expected() -> np.ndarray:
    A = np.zeros((6, 6))
    A[EDGES[0], EDGES[1]] = WEIGHTS
    return A


def test_every_format_gives_the_same_weights(
    save: Callable[..., Path], saved_data: Callable[..., Path], tmp_path: Path
) -> None:
    made = arrays()
    half = EDGES[0] < EDGES[1]
    data = torch.load(saved_data(edge_index=EDGES, edge_weight=WEIGHTS.astype(np.float32)), weights_only=False)
    given: dict[str, Graph] = {
        "npz": load(save(edge_weight=WEIGHTS)),
        "npz, a column": load(save(edge_weight=WEIGHTS[:, None].astype(np.float32))),
        "saved Data": load(saved_data(edge_index=EDGES, edge_weight=WEIGHTS)),
        "Data": graph_of(data),
        "scipy": from_arrays(sp.csr_array(expected()), made["x"], made["y"]),
        "scipy, one direction": from_arrays(sp.csr_array(np.triu(expected())), made["x"], made["y"]),
        "arrays": from_arrays(EDGES[:, half], made["x"], made["y"], edge_weight=WEIGHTS[half]),
        "npz, one direction": load(save(edge_index=EDGES[:, half], edge_weight=WEIGHTS[half]), undirected=True),
    }
    del data.edge_index, data.edge_weight
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for make in (torch.Tensor.to_sparse_coo, torch.Tensor.to_sparse_csr, torch.Tensor.to_sparse_csc):
            data.adj_t = make(torch.from_numpy(expected()))
            given[f"adj_t, {make}"] = graph_of(data)
            torch.save(data, tmp_path / "sparse.pt")
            given[f"saved adj_t, {make}"] = load(tmp_path / "sparse.pt")
    for graph in given.values():
        validate(graph)
        assert graph.weighted
        assert np.array_equal(graph.adjacency.toarray(), expected())


def test_weights_of_1_are_an_unweighted_graph(save: Callable[..., Path]) -> None:
    for graph in (load(save(edge_weight=np.ones(6, dtype=np.int64))), load(save())):
        assert not graph.weighted
        assert np.array_equal(graph.adjacency.data, np.ones(6))


def test_a_graph_with_weights_may_be_left_without_edges() -> None:
    made = arrays()
    loops = RawGraph.of(
        "loops", edge_index=np.array([[2], [2]]), edge_weight=np.array([0.5]), features=made["x"], labels=made["y"],
        masks=(), node_ids=None,
    )  # fmt: skip
    assert without_loops(loops).in_both_directions().adjacency(dedupe=True).nnz == 0


def test_weights_that_are_written_are_read_back(save: Callable[..., Path], tmp_path: Path) -> None:
    raw = read_npz(save(edge_weight=WEIGHTS))
    write_npz(tmp_path / "again.npz", raw)
    read = read_npz(tmp_path / "again.npz").edge_weight
    assert read is not None
    assert np.array_equal(read, WEIGHTS)


def changed(place: int, value: float) -> np.ndarray:
    """Return the weights with another one for both directions of an edge."""
    weights = WEIGHTS.copy()
    weights[[place, place + 1]] = value
    return weights


REPEATED = np.concatenate([EDGES, EDGES[:, :2]], axis=1)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "zero": ({"edge_weight": changed(2, 0.0)}, "1 -> 2 with 0"),
    "negative": ({"edge_weight": changed(2, -1.0)}, "1 -> 2 with -1"),
    "not a number": ({"edge_weight": changed(2, np.nan)}, "1 -> 2 with nan"),
    "infinite": ({"edge_weight": changed(2, np.inf)}, "1 -> 2 with inf"),
    "too small": ({"edge_weight": changed(2, 1e-40)}, "1 -> 2 with 1e-40"),
    "too many": ({"edge_weight": np.ones(7)}, "(7,) for 6 columns"),
    "text": ({"edge_weight": np.full(6, "a")}, "one number per column"),
    "different in both directions": (
        {"edge_weight": np.array([0.5, 0.5, 3.0, 2.0, 1.0, 1.0])},
        "1 -> 2 with 3 and back with 2",
    ),
    "repeated": ({"edge_index": REPEATED, "edge_weight": np.append(WEIGHTS, [0.5, 0.5])}, "repeated, such as 0 -> 1"),
    "repeated with others": (
        {"edge_index": REPEATED, "edge_weight": np.append(WEIGHTS, [0.25, 0.25])},
        "different weights, such as 0 -> 1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_weights_that_cannot_be_used_are_refused_with_an_edge(case: str, save: Callable[..., Path]) -> None:
    changes, named = WRONG[case]
    with pytest.raises(GraphError) as refused:
        load(save(**changes))
    assert named in str(refused.value)


def test_a_matrix_of_other_nodes_or_beside_edges_is_refused(saved_data: Callable[..., Path]) -> None:
    data = torch.load(saved_data(edge_index=EDGES), weights_only=False)
    data.adj_t = torch.from_numpy(expected()).to_sparse()
    with pytest.raises(GraphError, match="as adj_t and as edge_index"):
        graph_of(data)
    del data.edge_index
    for wrong in (torch.from_numpy(expected()), torch.eye(7).to_sparse()):
        data.adj_t = wrong
        with pytest.raises(GraphError, match=r"no sparse tensor of shape \(6, 6\)"):
            graph_of(data)


def test_repeated_entries_of_a_matrix_are_their_sum_and_those_of_adj_t_are_refused() -> None:
    made = arrays()
    rows, columns = EDGES[:, [*range(6), *range(6)]]
    halves = sp.coo_array((np.tile(WEIGHTS / 2, 2), (rows, columns)), shape=(6, 6))
    graph = from_arrays(halves, made["x"], made["y"])
    assert np.array_equal(graph.adjacency.toarray(), expected())
    assert halves.nnz == 12
    ones = from_arrays(sp.coo_array((np.ones(12), (rows, columns)), shape=(6, 6)), made["x"], made["y"])
    assert np.array_equal(ones.adjacency.toarray(), expected() > 0)
    data = {"x": torch.from_numpy(made["x"]), "y": torch.from_numpy(made["y"])}
    by_rows = torch.sparse_csr_tensor([0, 2, 4, 4, 4, 4, 4], [1, 1, 0, 0], torch.ones(4), (6, 6))
    listed = torch.sparse_coo_tensor(torch.from_numpy(np.stack([rows, columns])), torch.ones(12), (6, 6))
    for twice in (listed, by_rows):
        with pytest.raises(GraphError, match="more than once"):
            graph_of({**data, "adj_t": twice})


def test_a_repeated_edge_counts_once_on_request_unless_its_weights_differ(save: Callable[..., Path]) -> None:
    twice = np.append(WEIGHTS, [0.5, 0.5])
    graph = load(save(edge_index=REPEATED, edge_weight=twice), dedupe=True)
    assert np.array_equal(graph.adjacency.toarray(), expected())
    with pytest.raises(GraphError, match="different weights"):
        load(save(edge_index=REPEATED, edge_weight=np.append(WEIGHTS, [0.25, 0.25])), dedupe=True)


def test_edges_in_one_direction_are_refused_with_the_option_that_adds_the_other(save: Callable[..., Path]) -> None:
    # One edge of three is given in both directions.
    mixed = EDGES[:, [0, 1, 2, 4]]
    with pytest.raises(GraphError, match="--undirected"):
        load(save(edge_index=mixed))
    graph = load(save(edge_index=mixed), undirected=True)
    assert np.array_equal(graph.adjacency.toarray(), expected() > 0)
