"""Datasets in files: what is read, and what is refused."""

import contextlib
import io
import pickle
import struct
import warnings
import zipfile
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
    "the features are missing": ({"x": None}, "the features are missing"),
    "features of other nodes": ({"x": np.ones((7, 2))}, "shape (6,) for 7 nodes"),
    "labels out of range": ({"y": np.array([0, 1, 2, 0, 10**9, 1])}, "1000000000 of row 4"),
    "labels below -1": ({"y": np.array([0, 1, 2, 0, -7, 1])}, "-7"),
    "labels of floats": ({"y": np.array([0, 1, 2, 0, np.inf, 1])}, "infinite"),
    "one class": ({"y": np.zeros(6, dtype=int)}, "two classes"),
    "no label at all": ({"y": np.full(6, -1), **NO_SPLIT}, "0 class"),
    "no labels": ({"y": None}, "'y'"),
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
    # The last pointer declares it empty, and scipy then checks no other.
    with pytest.raises(GraphError, match="do not fit together"):
        load(save(x=None, **{**parts, "x_indptr": np.array([0, 10**9, 0, 0, 0, 0, 0])}))
    parts = {**parts, "x_indptr": np.array([0, 1, 1, 1, 1, 1, 1]), "x_indices": np.array([2])}
    with pytest.raises(GraphError, match="do not fit together"):
        load(save(x=None, **parts))


class Trap:
    """Unpickling it creates a file."""

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


@pytest.mark.parametrize("source", ["nowhere/graph.npz", "nowhere/graph.pt"])
def test_a_path_to_nothing_is_said_to_be_so(source: str) -> None:
    with pytest.raises(DatasetNotFound, match="The file nowhere/graph"):
        load_dataset(source, data_dirs=[])


@pytest.mark.parametrize("source", ["g.parquet", "nowhere/cora", "."])
def test_a_file_of_another_format_is_said_to_be_one(source: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFound, match=r"ending in \.npz, \.pt, \.pth") as refused:
        load_dataset(source, data_dirs=[tmp_path])
    assert f"{source}.npz" not in str(refused.value)


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


EDGES = arrays()["edge_index"].shape[1]
MEANT: dict[str, Any] = {
    "edge_weights": np.full(EDGES, 0.5),
    "edge_attr": np.full((EDGES, 2), -1.0),
    "weights": np.full(EDGES, np.nan),
    "nodeIds": np.arange(6),
    "user_id": np.arange(6),
    "mask": np.ones(6, dtype=bool),
    "train_idx": np.arange(3),
}


@pytest.mark.parametrize("name", MEANT)
def test_what_looks_meant_to_be_used_and_is_not_read_is_refused_by_name(
    name: str, save: Callable[..., Path], saved_data: Callable[..., Path]
) -> None:
    edges, value = arrays()["edge_index"].astype(np.int64), MEANT[name]
    for path in (save(**{name: value}), saved_data(edge_index=edges, **{name: value})):
        with pytest.raises(GraphError, match=name):
            load(path)
    saved = saved_data(edge_index=edges)
    data = torch.load(saved, weights_only=False)
    data[name] = value.tolist()
    torch.save(data, saved)
    with pytest.raises(GraphError, match=name):
        load(saved)


def test_features_or_arrays_that_are_given_twice_are_refused(save: Callable[..., Path]) -> None:
    with pytest.raises(GraphError, match="as x and in CSR form"):
        load(save(x_data=np.ones(1)))
    path = save()
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore", UserWarning)
        archive.writestr("y.npy", archive.read("y.npy"))
    with pytest.raises(GraphError, match="twice"):
        load(path)


def test_a_tensor_that_is_the_negative_of_what_is_stored_is_refused(saved_data: Callable[..., Path]) -> None:
    path = saved_data()
    stored = torch.load(path, weights_only=False)
    stored.x = torch._neg_view(stored.x)
    torch.save(stored, path)
    with pytest.raises(GraphError, match="negative or conjugate"):
        load(path)


@pytest.mark.parametrize("key", ["a dictionary", "a set"])
def test_a_key_of_many_levels_is_refused_before_it_is_hashed(key: str, tmp_path: Path) -> None:
    """Python hashes a tuple level by level, on a stack that this many levels overflow."""
    nested = pickle.EMPTY_TUPLE + 300_000 * pickle.TUPLE1
    objects = {
        "a dictionary": pickle.EMPTY_DICT + nested + pickle.NONE + pickle.SETITEM,
        "a set": pickle.MARK + nested + pickle.FROZENSET,
    }
    header = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
    parts = [pickle.dumps(part, protocol=2) for part in header]
    program = pickle.PROTO + b"\x02" + objects[key] + pickle.STOP
    (tmp_path / "deep.pt").write_bytes(b"".join(parts) + program + pickle.dumps([], protocol=2))
    with pytest.raises(GraphError, match="a key of a dictionary or set"):
        load(tmp_path / "deep.pt")


def test_a_data_with_the_caches_of_its_own_library_is_read(saved_data: Callable[..., Path]) -> None:
    from torch_geometric.transforms import ToUndirected

    edges = arrays()["edge_index"].astype(np.int64)
    path = saved_data(edge_index=edges[:, edges[0] < edges[1]])
    data = ToUndirected()(torch.load(path, weights_only=False))
    assert data.is_node_attr("x")
    assert data.edge_attrs() == ["edge_index"]
    assert data.is_coalesced()
    torch.save(data, path)
    assert load(path).edges == 3


class _Old:
    """A `Data` from before torch-geometric 2.0: its attributes are the graph's."""


_Old.__module__, _Old.__qualname__ = "torch_geometric.data.data", "Data"


@pytest.mark.parametrize("zipped", [True, False])
def test_a_data_of_torch_geometric_before_2_is_read(
    zipped: bool, saved_data: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved_data(edge_index=arrays()["edge_index"].astype(np.int64))
    expected = load(path)
    old = _Old()
    others = {"edge_attr": None, "pos": None, "normal": None, "face": None, "__num_nodes__": None}
    tensors = {name: torch.from_numpy(array) for name, array in arrays().items()}
    old.__dict__.update(others | tensors | {"edge_index": tensors["edge_index"].long()})
    with monkeypatch.context() as patched:
        patched.setattr("torch_geometric.data.data.Data", _Old)
        torch.save(old, path, _use_new_zipfile_serialization=zipped)
    graph = load(path)
    assert np.array_equal(graph.adjacency.toarray(), expected.adjacency.toarray())
    assert np.array_equal(graph.features, expected.features)
    assert np.array_equal(graph.train_mask, expected.train_mask)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_has_no_more_values_than_the_file(
    zipped: bool, tmp_path: Path, saved_data: Callable[..., Path]
) -> None:
    path = saved_data(edge_index=arrays()["edge_index"].astype(np.int64))
    data = torch.load(path, weights_only=False)
    torch.save(data, path, _use_new_zipfile_serialization=zipped)
    load(path)
    # The shape (6, 2), its strides (2, 1) and a storage of 12 values, as in the pickle.
    for held, claimed in ((b"K\x06K\x02\x86", b"J\xff\xff\xff\x7fK\x02\x86"), (b"K\x0c", b"J\xff\xff\xff\x7f")):
        changed = tmp_path / "changed.pt"
        if zipped:
            with zipfile.ZipFile(path) as old, zipfile.ZipFile(changed, "w") as new:
                for name in old.namelist():
                    content = old.read(name)
                    assert not name.endswith("data.pkl") or held in content
                    new.writestr(name, content.replace(held, claimed) if name.endswith("data.pkl") else content)
        else:
            assert held in path.read_bytes()
            changed.write_bytes(path.read_bytes().replace(held, claimed, 1))
        with pytest.raises(GraphError, match=r"changed\.pt"):
            load(changed)


def test_a_pickle_that_asks_for_memory_is_refused(tmp_path: Path) -> None:
    """200 GB for a byte array and a memo that the file only declares."""
    for asking in (b"\x80\x05\x96" + struct.pack("<Q", 200 << 30), b"\x80\x02]r\xff\xff\xff\xff."):
        (tmp_path / "a.pt").write_bytes(asking)
        with pytest.raises(GraphError, match=r"a\.pt"):
            load(tmp_path / "a.pt")
        with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
            archive.writestr("a/data.pkl", asking)
        with pytest.raises(GraphError, match=r"a\.pt"):
            load(tmp_path / "a.pt")


def test_a_file_with_any_byte_changed_ends_in_a_graph_or_in_words(saved_data: Callable[..., Path]) -> None:
    path = saved_data(edge_index=arrays()["edge_index"].astype(np.int64), x=None)
    data = torch.load(path, weights_only=False)
    data.x = torch.eye(6, 4).to_sparse_csr()
    torch.save(data, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    top = next(name for name in members if name.endswith("data.pkl"))
    generator = np.random.default_rng(0)
    for at in generator.integers(0, len(members[top]), 300):
        changed = bytearray(members[top])
        changed[at] = generator.integers(256)
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, bytes(changed) if name == top else content)
        path.write_bytes(file.getvalue())
        with contextlib.suppress(GraphError):
            load(path)
