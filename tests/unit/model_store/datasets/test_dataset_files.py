"""Datasets in files: what is read, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from model_store.datasets.files import read_npz, write_npz
from model_store.datasets.load import load_dataset
from model_store.errors import DatasetNotFound
from projector.errors import GraphError
from projector.graph.graph import Graph
from projector.graph.raw_graph import RawGraph
from tests.support.models.small_datasets import NO_SPLIT, arrays, load
from tests.support.models.small_graphs import dense, dense_features, float32_features, sparse_features


def test_an_npz_becomes_the_graph_it_describes(save: Callable[..., Path]) -> None:
    graph = load(save())
    assert (graph.nodes, graph.edges, graph.num_features) == (6, 3, 2)
    assert graph.adjacency.toarray()[1].tolist() == [1, 0, 1, 0, 0, 0]
    assert np.array_equal(graph.features, arrays()["x"])
    assert graph.features.dtype == np.float32
    assert graph.labels.tolist() == [0, 1, 2, 0, -1, 1]
    assert graph.node_ids == ("0", "1", "2", "3", "4", "5")
    assert graph.class_names == ("0", "1", "2")


def test_sparse_features_stay_sparse_and_external_ids_are_kept(save: Callable[..., Path]) -> None:
    X = sp.csr_array(arrays()["x"])
    parts = {"x_indptr": X.indptr, "x_indices": X.indices, "x_data": X.data, "x_shape": np.array(X.shape)}
    graph = load(save(x=None, node_ids=np.array(["ann", "bob", "cy", "dee", "eve", "fay"]), **parts))
    assert isinstance(graph.features, sp.csr_array)
    assert np.array_equal(dense(graph.features), arrays()["x"])
    assert graph.node_ids == ("ann", "bob", "cy", "dee", "eve", "fay")


def test_integer_node_ids_and_labels_in_a_column_are_read(save: Callable[..., Path]) -> None:
    graph = load(save(node_ids=np.arange(100, 106), y=np.array([[0], [1], [2], [0], [-1], [1]])))
    assert graph.node_ids[0] == "100"
    assert graph.labels.tolist() == [0, 1, 2, 0, -1, 1]


def test_binary_and_double_features_keep_their_values(save: Callable[..., Path]) -> None:
    assert load(save(x=np.eye(6, 2, dtype=np.bool_))).features.dtype == np.float32
    assert load(save(x=np.full((6, 2), 1 / 3))).features[0, 0] == 1 / 3
    assert load(save(x=np.full((6, 2), 1 / 3, dtype=">f8"))).features[0, 0] == 1 / 3
    seconds = np.arange(1_700_000_123, 1_700_000_135).reshape(6, 2)
    assert load(save(x=seconds)).features.tolist() == seconds.tolist()
    assert load(save(x=seconds - 1_700_000_000)).features.dtype == np.float32


@pytest.mark.parametrize("make", [dense_features, float32_features, sparse_features])
def test_what_is_written_is_read_back(make: Callable[[], Graph], tmp_path: Path) -> None:
    graph = make()
    edges = np.array(graph.adjacency.nonzero())
    raw = RawGraph.of(
        "made", edge_index=edges, features=graph.features, labels=graph.labels, masks=(None,) * 3,
        node_ids=np.array(graph.node_ids),
    )  # fmt: skip
    write_npz(tmp_path / "made.npz", raw)
    read = read_npz(tmp_path / "made.npz")
    assert np.array_equal(read.adjacency().toarray(), graph.adjacency.toarray())
    assert np.array_equal(dense(read.features), dense(graph.features))
    assert read.features.dtype == graph.features.dtype
    assert read.node_ids == graph.node_ids
    assert [path.name for path in tmp_path.iterdir()] == ["made.npz"]


BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "asymmetric edges": ({"edge_index": np.array([[0, 1, 3], [1, 0, 4]])}, "3 -> 4"),
    "a self loop": ({"edge_index": np.array([[2], [2]])}, "self loop"),
    "a repeated edge": ({"edge_index": np.array([[0, 0, 1, 1], [1, 1, 0, 0]])}, "0 -> 1, given 2 times"),
    "an edge to nowhere": ({"edge_index": np.array([[0, 6], [6, 0]])}, "row 6"),
    "an edge from a negative row": ({"edge_index": np.array([[0, -1], [-1, 0]])}, "row -1"),
    "edges of the wrong shape": ({"edge_index": np.zeros((3, 2), dtype=int)}, "2 x E"),
    "edges of floats": ({"edge_index": np.zeros((2, 2))}, "float64"),
    "NaN features": ({"x": np.full((6, 2), np.nan)}, "NaN"),
    "infinite features": ({"x": np.full((6, 2), np.inf)}, "infinite"),
    "flat features": ({"x": np.ones(6)}, "one row of features"),
    "text features": ({"x": np.full((6, 2), "a")}, "Give numbers"),
    "no features": ({"x": None}, "no features"),
    "features of other nodes": ({"x": np.ones((7, 2))}, "shape (6,) for 7 nodes"),
    "labels out of range": ({"y": np.array([0, 1, 2, 0, 10**9, 1])}, "1000000000 of row 4"),
    "labels below -1": ({"y": np.array([0, 1, 2, 0, -7, 1])}, "-7"),
    "labels of floats": ({"y": np.array([0, 1, 2, 0, np.nan, 1])}, "integer"),
    "one class": ({"y": np.zeros(6, dtype=int)}, "two classes"),
    "no label at all": ({"y": np.full(6, -1), **NO_SPLIT}, "0 class"),
    "no labels": ({"y": None}, "'y'"),
    "no edges array": ({"edge_index": None}, "'edge_index'"),
    "no training node": ({"val_mask": np.arange(6) % 2 == 0, "test_mask": np.arange(6) % 2 == 1}, "label"),
    "overlapping masks": ({"val_mask": np.arange(6) == 2}, "more than one"),
    "a mask missing": ({"val_mask": None}, "only some"),
    "several splits": ({"test_mask": np.zeros((6, 10), dtype=bool)}, "several splits"),
    "a mask of other nodes": ({"test_mask": np.zeros(5, dtype=bool)}, "(5,)"),
    "repeated node ids": ({"node_ids": np.array(["a", "b", "a", "c", "d", "e"])}, "not unique: a"),
    "too few node ids": ({"node_ids": np.array(["a", "b"])}, "2 node ids"),
    "node ids of floats": ({"node_ids": np.ones(6)}, "one string per node"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_a_bad_dataset_is_refused_with_what_is_wrong(case: str, save: Callable[..., Path]) -> None:
    changes, named = BAD_ARRAYS[case]
    with pytest.raises(GraphError) as refused:
        load(save(**changes))
    assert named in str(refused.value)


def test_a_dataset_whose_labels_are_all_held_out_has_no_training_node(save: Callable[..., Path]) -> None:
    labelled = arrays()["y"] >= 0
    with pytest.raises(GraphError, match="no training node"):
        load(save(val_mask=labelled, test_mask=np.zeros(6, dtype=bool)))


def test_sparse_parts_that_do_not_fit_together_are_refused(save: Callable[..., Path]) -> None:
    parts = {
        "x_indptr": np.array([0, 9]),
        "x_indices": np.array([0]),
        "x_data": np.ones(1),
        "x_shape": np.array([6, 2]),
    }
    with pytest.raises(GraphError, match="do not fit together"):
        load(save(x=None, **parts))
    # The last pointer says that it is empty, and scipy then looks at no other.
    with pytest.raises(GraphError, match="do not fit together"):
        load(save(x=None, **{**parts, "x_indptr": np.array([0, 10**9, 0, 0, 0, 0, 0])}))
    parts = {**parts, "x_indptr": np.array([0, 1, 1, 1, 1, 1, 1]), "x_indices": np.array([2])}
    with pytest.raises(GraphError, match="do not fit together"):
        load(save(x=None, **parts))


class Trap:
    """Unpickling one creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_objects_in_a_file_are_never_unpickled(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    np.savez(tmp_path / "trap.npz", **arrays(y=np.array([Trap(sprung)], dtype=object)), allow_pickle=True)
    torch.save(Trap(sprung), tmp_path / "trap.pt")
    for name in ("trap.npz", "trap.pt"):
        with pytest.raises(GraphError, match=name):
            load(tmp_path / name)
    assert not sprung.exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_a_truncated_file_is_refused_by_name(save: Callable[..., Path], suffix: str, share: float) -> None:
    path = save()
    if suffix == ".pt":
        path = path.with_suffix(".pt")
        torch.save({"x": torch.ones(50, 50)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(GraphError, match=path.name):
        load(path)


def test_a_damaged_compressed_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.savez_compressed(path, **arrays(x=np.random.default_rng(0).random((6, 400))))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(bytes(damaged))
    with pytest.raises(GraphError, match=r"graph\.npz"):
        load(path)


@pytest.mark.parametrize("source", ["nowhere/graph.npz", "nowhere/graph.pt"])
def test_a_path_to_nothing_is_said_to_be_so(source: str) -> None:
    with pytest.raises(DatasetNotFound, match="no file nowhere/graph"):
        load_dataset(source, data_dirs=[])


@pytest.fixture
def saved_data(tmp_path: Path) -> Callable[..., Path]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric.data import Data

    def saved(**changes: Any) -> Path:
        whole = arrays(**changes)
        ids = {"node_ids": whole.pop("node_ids")} if "node_ids" in whole else {}
        tensors = {name: torch.from_numpy(array) for name, array in whole.items()}
        torch.save(Data(**tensors, **ids), tmp_path / "graph.pt")
        return tmp_path / "graph.pt"

    return saved


def test_a_saved_torch_geometric_data_is_the_same_graph_as_its_npz(
    save: Callable[..., Path], saved_data: Callable[..., Path]
) -> None:
    x = np.zeros((6, 20), dtype=np.float32)
    x[0, 3] = x[5, 1] = 2.0
    edges = arrays()["edge_index"].astype(np.int64)
    graph = load(saved_data(x=x, edge_index=edges, node_ids=["a", "b", "c", "d", "e", "f"]))
    expected = load(save(x=x))
    assert isinstance(graph.features, sp.csr_array)
    assert np.array_equal(dense(graph.features), x)
    assert np.array_equal(graph.adjacency.toarray(), expected.adjacency.toarray())
    assert np.array_equal(graph.train_mask, expected.train_mask)
    assert np.array_equal(graph.labels, expected.labels)
    assert graph.node_ids == ("a", "b", "c", "d", "e", "f")


def test_weights_of_edges_other_than_1_are_refused(saved_data: Callable[..., Path]) -> None:
    edges = arrays()["edge_index"].astype(np.int64)
    ones = np.ones(edges.shape[1], dtype=np.float32)
    load(saved_data(edge_index=edges, edge_weight=ones))
    with pytest.raises(GraphError, match="edge_weight"):
        load(saved_data(edge_index=edges, edge_weight=2 * ones))


def test_a_directed_torch_geometric_data_is_refused(saved_data: Callable[..., Path]) -> None:
    with pytest.raises(GraphError, match="one direction"):
        load(saved_data(edge_index=np.array([[0, 1], [1, 2]])))


def test_a_torch_geometric_data_without_labels_is_refused(saved_data: Callable[..., Path]) -> None:
    with pytest.raises(GraphError, match="'y'"):
        load(saved_data(y=None))


def test_a_pt_file_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "tensors.pt")
    with pytest.raises(GraphError, match="holds a dict"):
        load(tmp_path / "tensors.pt")
