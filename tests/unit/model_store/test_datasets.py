"""Datasets from files, names and parameters."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import dense, dense_features, float32_features, sparse_features

from model_store.dataset_files import read_npz, write_npz
from model_store.datasets import INJECTED_CLASS, default_data_dirs, inject_channel, load_dataset
from model_store.downloads import DOWNLOADABLE, download, fetch
from model_store.errors import DatasetNotFound, GraphError
from model_store.graph import Graph, validate
from model_store.raw_graph import RawGraph
from model_store.spec import ModelSpec
from model_store.synthetic import DEFAULT_SYNTHETIC, SyntheticParameters, parse
from model_store.training import train


def arrays(**changes: Any) -> dict[str, Any]:
    """A valid dataset of 6 nodes with a public split; a change to None leaves an array out."""
    labels = np.array([0, 1, 2, 0, -1, 1])
    whole: dict[str, Any] = {
        "edge_index": np.array([[0, 1, 1, 2, 4, 5], [1, 0, 2, 1, 5, 4]], dtype=np.int32),
        "x": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y": labels,
        "train_mask": np.array([True, False, False, False, False, False]),
        "val_mask": np.array([False, True, False, False, False, False]),
        "test_mask": np.array([False, False, True, False, False, False]),
        **changes,
    }
    return {name: array for name, array in whole.items() if array is not None}


NO_SPLIT = {"train_mask": None, "val_mask": None, "test_mask": None}


def load(path: Path, **options: Any) -> Graph:
    return load_dataset(str(path), data_dirs=[], **options)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    def saved(**changes: Any) -> Path:
        np.savez(tmp_path / "graph.npz", **arrays(**changes))
        return tmp_path / "graph.npz"

    return saved


# Files


def test_an_npz_becomes_the_graph_it_describes(save: Callable[..., Path]) -> None:
    graph = load(save())
    assert (graph.nodes, graph.edges, graph.num_features) == (6, 3, 2)
    assert graph.adjacency.toarray()[1].tolist() == [1, 0, 1, 0, 0, 0]
    assert np.array_equal(graph.features, arrays()["x"])
    assert graph.features.dtype == np.float32
    assert graph.labels.tolist() == [0, 1, 2, 0, -1, 1]
    assert graph.node_ids == ("0", "1", "2", "3", "4", "5")
    assert graph.class_names == ("0", "1", "2")


def test_full_trains_on_every_labelled_node_outside_validation_and_test(save: Callable[..., Path]) -> None:
    full, public = load(save(), split="full"), load(save(), split="public")
    assert np.flatnonzero(full.train_mask).tolist() == [0, 3, 5]
    assert np.flatnonzero(public.train_mask).tolist() == [0]
    for graph in (full, public):
        assert np.flatnonzero(graph.val_mask).tolist() == [1]
        assert np.flatnonzero(graph.test_mask).tolist() == [2]


@settings(deadline=None)
@given(
    labels=st.lists(st.integers(-1, 2), min_size=6, max_size=40).filter(lambda y: max(y) >= 1), seed=st.integers(0, 99)
)
def test_a_dataset_without_a_split_gets_a_seeded_one_of_its_labelled_nodes(
    tmp_path_factory: pytest.TempPathFactory, labels: list[int], seed: int
) -> None:
    path = tmp_path_factory.mktemp("drawn") / "graph.npz"
    x = np.ones((len(labels), 2))
    np.savez(path, **arrays(x=x, y=np.array(labels), **NO_SPLIT))
    graph, again = load(path, seed=seed), load(path, seed=seed)
    masks = [graph.train_mask, graph.val_mask, graph.test_mask]
    assert np.array_equal(np.sum(masks, axis=0), (np.array(labels) >= 0).astype(int))
    labelled = int((np.array(labels) >= 0).sum())
    assert [int(mask.sum()) for mask in masks[:2]] == [int(np.ceil(0.6 * labelled)), int(0.2 * labelled)]
    assert np.array_equal(graph.train_mask, again.train_mask)


def test_another_seed_draws_another_split() -> None:
    first, second = (load_dataset(DEFAULT_SYNTHETIC, data_dirs=[], seed=seed) for seed in (0, 1))
    assert not np.array_equal(first.train_mask, second.train_mask)


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


def test_a_public_split_that_does_not_exist_is_refused(save: Callable[..., Path]) -> None:
    with pytest.raises(GraphError, match="--split full"):
        load(save(**NO_SPLIT), split="public")


def test_sparse_parts_that_do_not_fit_together_are_refused(save: Callable[..., Path]) -> None:
    parts = {
        "x_indptr": np.array([0, 9]),
        "x_indices": np.array([0]),
        "x_data": np.ones(1),
        "x_shape": np.array([6, 2]),
    }
    with pytest.raises(GraphError, match="do not fit together"):
        load(save(x=None, **parts))
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


# torch-geometric


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


# Names


def test_datasets_are_looked_for_where_the_design_says() -> None:
    env = {"LETHE_DATA_DIR": "/data/sets", "HOME": "/home/eva"}
    places = ["/data/sets", "../shared/data", "data", "/home/eva/.cache/lethe"]
    assert [str(folder) for folder in default_data_dirs(env)] == places
    assert [str(folder) for folder in default_data_dirs({"HOME": "/home/eva"})] == places[1:]
    assert default_data_dirs(os.environ)[-1].name == "lethe"


def test_a_name_is_found_in_the_first_folder_that_has_it(tmp_path: Path, save: Callable[..., Path]) -> None:
    file = save()
    (tmp_path / "empty").mkdir()
    for name in ("CORA", "cora"):
        file.rename(tmp_path / "cora.npz")
        file = tmp_path / "cora.npz"
        assert load_dataset(name, data_dirs=[tmp_path / "empty", tmp_path], download=None).nodes == 6


@pytest.mark.parametrize("source", ["cora", "unheard_of", "", ".."])
def test_a_dataset_found_nowhere_is_refused_with_every_place_that_was_searched(source: str, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(DatasetNotFound) as refused:
        load_dataset(source, data_dirs=folders, download=None)
    for folder in folders:
        assert str(folder) in refused.value.detail
    assert "LETHE_DATA_DIR" in refused.value.remedy
    assert "synthetic:" in refused.value.remedy


def fetched(name: str, folder: Path) -> Mapping[str, Any]:
    (folder / "raw.bin").write_bytes(b"raw")
    tensors = {key: torch.from_numpy(array) for key, array in arrays().items()}
    return {**tensors, "x": torch.eye(6, 30)}


def test_a_known_name_is_downloaded_once_and_leaves_one_file(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    graph = load_dataset("cora", data_dirs=[tmp_path, cache], download=lambda name, to: download(name, to, fetched))
    assert (graph.nodes, graph.num_features) == (6, 30)
    assert [path.name for path in cache.iterdir()] == ["cora.npz"]
    assert load_dataset("cora", data_dirs=[tmp_path, cache], download=None).nodes == 6


def test_a_download_that_fails_says_why_and_where_else_it_looked(tmp_path: Path) -> None:
    def unreachable(name: str, folder: Path) -> Mapping[str, Any]:
        raise OSError("Name or service not known")

    with pytest.raises(DatasetNotFound) as refused:
        load_dataset(
            "pubmed", data_dirs=[tmp_path / "a", tmp_path / "b"], download=lambda n, to: download(n, to, unreachable)
        )
    assert "Name or service not known" in refused.value.detail
    assert str(tmp_path / "a") in refused.value.detail
    assert list((tmp_path / "b").iterdir()) == []


def test_unknown_names_are_not_downloaded(tmp_path: Path) -> None:
    def forbidden(name: str, folder: Path) -> Path:
        raise AssertionError(name)

    with pytest.raises(DatasetNotFound):
        load_dataset("unheard_of", data_dirs=[tmp_path], download=forbidden)


def test_every_downloadable_name_is_fetched_from_the_class_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric import datasets
        from torch_geometric.data import Data
    made: list[tuple[str, str]] = []
    for kind in {kind for kind, _ in DOWNLOADABLE.values()}:
        assert hasattr(datasets, kind)

        def dataset(root: str, name: str, kind: str = kind) -> list[Data]:
            made.append((kind, name))
            return [Data(x=torch.ones(2, 1))]

        monkeypatch.setattr(datasets, kind, dataset)
    for name in DOWNLOADABLE:
        assert fetch(name, tmp_path)["x"].shape == (2, 1)
    assert made == list(DOWNLOADABLE.values())


def test_a_real_dataset_has_the_published_size(cora: Graph, data_dir: Path | None) -> None:
    assert cora.edges == 5278 or data_dir is None
    held_out = int(cora.val_mask.sum() + cora.test_mask.sum())
    assert int(cora.train_mask.sum()) + held_out == cora.nodes


# Synthetic graphs


def test_synthetic_parameters_are_read_in_any_order() -> None:
    assert parse("synthetic:seed=3, classes=2,n=50,d=8") == SyntheticParameters(n=50, d=8, classes=2, seed=3)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("synthetic:", "unknown or repeated parameter ''"),
        ("synthetic:n=100,d=10,classes=3", "seed"),
        ("synthetic:n=100", "d, classes, seed"),
        ("synthetic:n=100,d=10,classes=3,seed=0,size=4", "'size'"),
        ("synthetic:n=100,n=100,d=10,classes=3,seed=0", "repeated"),
        ("synthetic:n=many,d=10,classes=3,seed=0", "'many'"),
        ("synthetic:n=-5,d=10,classes=3,seed=0", "'-5'"),
        ("synthetic:n=1e3,d=10,classes=3,seed=0", "'1e3'"),
        ("synthetic:n=٣٠,d=10,classes=3,seed=0", "whole number"),
        ("synthetic:n=100,d=10,classes=1,seed=0", "classes must be at least 2"),
        ("synthetic:n=3,d=10,classes=2,seed=0", "n must be at least 4"),
        ("synthetic:n=10,d=10,classes=6,seed=0", "too few nodes"),
        ("synthetic:n=100,d=3,classes=6,seed=0", "too few"),
    ],
)
def test_bad_synthetic_parameters_are_refused_by_name(source: str, named: str) -> None:
    with pytest.raises(GraphError) as refused:
        load_dataset(source, data_dirs=[])
    assert named in refused.value.detail
    assert DEFAULT_SYNTHETIC in refused.value.remedy


@settings(deadline=None, max_examples=40)
@given(classes=st.integers(2, 6), d=st.integers(6, 60), n=st.integers(12, 150), seed=st.integers(0, 2**31))
def test_synthetic_graphs_of_every_size_are_valid_and_reproducible(classes: int, d: int, n: int, seed: int) -> None:
    source = f"synthetic:n={n},d={d},classes={classes},seed={seed}"
    graph, again = load_dataset(source, data_dirs=[]), load_dataset(source, data_dirs=[])
    assert (graph.nodes, graph.num_features, graph.num_classes) == (n, d, classes)
    assert np.array_equal(dense(graph.features), dense(again.features))
    assert np.array_equal(graph.adjacency.toarray(), again.adjacency.toarray())
    assert set(np.unique(dense(graph.features))) <= {0.0, 1.0}
    assert set(graph.labels.tolist()) == set(range(classes))


def test_a_linear_model_learns_the_default_synthetic_graph() -> None:
    graph = load_dataset(DEFAULT_SYNTHETIC, data_dirs=[])
    right = train(ModelSpec(), graph).logits.argmax(dim=1).numpy() == graph.labels
    assert right[graph.test_mask].mean() >= 0.86
    carriers = np.asarray((graph.features != 0).sum(axis=0))
    assert (carriers == 1).any(), "no node has a word of its own"
    same = graph.labels[graph.adjacency.nonzero()[0]] == graph.labels[graph.adjacency.nonzero()[1]]
    assert same.mean() > 0.6


# The feature injection test


@pytest.mark.parametrize("extra_class", [False, True])
@pytest.mark.parametrize("make", [dense_features, float32_features, sparse_features])
def test_an_injected_channel_is_one_on_its_nodes_and_zero_elsewhere(
    make: Callable[[], Graph], extra_class: bool
) -> None:
    graph = make()
    injected = inject_channel(graph, ["node-7", "node-2", "node-7"], extra_class=extra_class)
    validate(injected)
    features = dense(injected.features)
    assert np.array_equal(features[:, :-1], dense(graph.features))
    assert np.flatnonzero(features[:, -1]).tolist() == [2, 7]
    assert features[2, -1] == 1.0
    assert injected.features.dtype == graph.features.dtype
    assert isinstance(injected.features, np.ndarray) == isinstance(graph.features, np.ndarray)
    relabelled = graph.labels.copy()
    if extra_class:
        relabelled[[2, 7]] = graph.num_classes
        assert injected.class_names == (*graph.class_names, INJECTED_CLASS)
    assert np.array_equal(injected.labels, relabelled)
    assert dense(graph.features).shape[1] + 1 == injected.num_features


@pytest.mark.parametrize(
    ("ids", "named"), [(["node-1", "nobody", "nothing"], "nobody, nothing"), ([""], "1 node id"), ([], "No node")]
)
def test_a_channel_for_unknown_nodes_is_refused(ids: list[str], named: str) -> None:
    with pytest.raises(GraphError, match=named):
        inject_channel(dense_features(), ids, extra_class=False)


def test_two_injected_classes_cannot_share_a_name() -> None:
    once = inject_channel(dense_features(), ["node-1"], extra_class=True)
    with pytest.raises(GraphError, match="already"):
        inject_channel(once, ["node-2"], extra_class=True)
