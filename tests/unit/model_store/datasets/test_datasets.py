"""Datasets by name and their splits."""

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import model_store.datasets
from model_store.datasets.downloads import DOWNLOADABLE, download, fetch
from model_store.datasets.load import default_data_dirs, load_dataset
from model_store.errors import DatasetNotFound
from projector.errors import GraphError
from tests.support.models.small_datasets import NO_SPLIT, arrays, load


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


def test_a_public_split_that_does_not_exist_is_refused(save: Callable[..., Path]) -> None:
    with pytest.raises(GraphError, match="--split full"):
        load(save(**NO_SPLIT), split="public")


def test_datasets_are_looked_for_where_the_design_says() -> None:
    env = {"LETHE_DATA_DIR": "/data/sets", "HOME": "/home/eva"}
    places = ["/data/sets", "data", "/home/eva/.cache/lethe"]
    assert [str(folder) for folder in default_data_dirs(env)] == places
    assert [str(folder) for folder in default_data_dirs({"HOME": "/home/eva"})] == places[1:]
    assert default_data_dirs(os.environ)[-1].name == "lethe"


def test_cora_ships_with_the_package_and_is_found_without_a_folder_or_a_network(tmp_path: Path) -> None:
    def forbidden(name: str, folder: Path) -> Path:
        raise AssertionError(name)

    for folders in ([], [tmp_path]):
        cora = load_dataset("Cora", split="public", data_dirs=folders, download=forbidden)
        assert (cora.nodes, cora.edges, cora.num_features, cora.num_classes) == (2708, 5278, 1433, 7)
        assert [int(mask.sum()) for mask in (cora.train_mask, cora.val_mask, cora.test_mask)] == [140, 500, 1000]


def test_what_ships_has_its_source_its_licence_and_the_digest_it_states() -> None:
    folder = Path(model_store.datasets.__file__).parent
    stated = (folder / "cora.txt").read_text()
    assert hashlib.sha256((folder / "cora.npz").read_bytes()).hexdigest() in stated
    assert "https://github.com/kimiyoung/planetoid" in stated
    assert "The MIT License (MIT)\nCopyright (c) 2016 Zhilin Yang" in stated
    assert [path.name for path in folder.glob("*.npz")] == ["cora.npz"]


@pytest.mark.parametrize("source", ["citeseer", "unheard_of", "", ".."])
def test_a_dataset_found_nowhere_is_refused_with_every_place_that_was_searched(source: str, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(DatasetNotFound) as refused:
        load_dataset(source, data_dirs=folders, download=None)
    for folder in (*folders, Path(model_store.datasets.__file__).parent):
        assert str(folder) in refused.value.detail
    assert "LETHE_DATA_DIR" in refused.value.remedy
    assert "synthetic:" in refused.value.remedy


def fetched(name: str, folder: Path) -> Mapping[str, Any]:
    (folder / "raw.bin").write_bytes(b"raw")
    tensors = {key: torch.from_numpy(array) for key, array in arrays().items()}
    return {**tensors, "x": torch.eye(6, 30)}


def test_a_known_name_is_downloaded_once_and_leaves_one_file(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    graph = load_dataset("pubmed", data_dirs=[tmp_path, cache], download=lambda name, to: download(name, to, fetched))
    assert (graph.nodes, graph.num_features) == (6, 30)
    assert [path.name for path in cache.iterdir()] == ["pubmed.npz"]
    assert load_dataset("pubmed", data_dirs=[tmp_path, cache], download=None).nodes == 6


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


def test_a_download_without_torch_geometric_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(DatasetNotFound) as refused:
        load_dataset("pubmed", data_dirs=[tmp_path], download=download)
    assert "'pubmed' could not be downloaded without torch-geometric" in refused.value.detail


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
