"""Weights from elsewhere: refused outside the span, otherwise trained on to the one optimum."""

import io
import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file

from model_store.build import BuiltModel, build_model
from model_store.datasets.files import read_torch_geometric
from model_store.datasets.load import load_dataset
from model_store.disk.untrusted_arrays import read_npy
from model_store.pretrained_files import read_weights
from model_store.rebuild import with_weights
from projector import from_tables
from projector.errors import GraphError, ProjectorError
from projector.graph.graph import Graph, feature_rows
from projector.network.spec import Combine, LossKind, ModelSpec, SolverKind
from projector.training.pretrained import PretrainedWeights, WeightsError
from tests.support.models.users import COLUMNS, users

SPEC = ModelSpec(combine=Combine.CONCAT, hops=1, regularization=1e-2)


@pytest.fixture(scope="module")
def graph() -> Graph:
    """60 nodes and 12 features, the last one unused, so that the span is not everything."""
    graph = load_dataset("synthetic:n=60,d=12,classes=3,seed=1", data_dirs=[])
    features = feature_rows(graph.features, np.arange(graph.nodes))
    features[:, 11] = 0.0
    return replace(graph, features=features)


def built(graph: Graph, spec: ModelSpec = SPEC, pretrained: PretrainedWeights | None = None) -> BuiltModel:
    return build_model(graph, spec, name="m", dataset="d", split="full", pretrained=pretrained)


def in_span(shape: tuple[int, ...]) -> NDArray[np.float64]:
    W = np.random.default_rng(0).standard_normal(shape)
    W[:, 11] = 0.0
    return W


def test_a_model_trained_on_from_other_weights_keeps_what_is_known_of_its_dataset(tmp_path: Path) -> None:
    graph, made, spec = from_tables(*users(), **COLUMNS), "Dropped self loops: 3.", replace(SPEC, hops=2)
    given = PretrainedWeights(np.zeros((3, graph.num_features, 3)))
    first = build_model(graph, spec, name="m", dataset="d", split="full", warnings=[made], pretrained=given)
    again = with_weights(first.write(tmp_path / "a").path, given, tmp_path / "b").manifest
    assert graph.columns is not None
    assert again.columns == graph.columns.columns
    assert again.warnings == first.manifest.warnings
    assert [made in again.warnings, "moved the given weights" in again.warnings[-1]] == [True, True]


@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, label_hops=2, loss=LossKind.OVR)])
def test_foreign_weights_end_at_the_optimum_that_training_reaches(graph: Graph, spec: ModelSpec) -> None:
    label_weights = np.ones((2, 3, 3)) if spec.label_hops else None
    ours = built(graph, spec)
    theirs = built(graph, replace(spec, solver=SolverKind.SGD), PretrainedWeights(in_span((2, 12, 3)), label_weights))
    assert np.linalg.norm(theirs.weights - ours.weights) <= 1e-8 * np.linalg.norm(ours.weights)
    assert np.linalg.norm(theirs.label_weights - ours.label_weights) <= 1e-8 * np.linalg.norm(ours.weights)
    assert theirs.manifest.training.identity_error <= 1e-8
    assert theirs.manifest.spec.solver is SolverKind.NEWTON
    assert "moved the given weights to the optimum" in theirs.manifest.warnings[0]


def test_foreign_weights_are_for_the_features_before_they_are_rescaled(graph: Graph) -> None:
    assert isinstance(graph.features, np.ndarray)
    uneven = replace(graph, features=graph.features * np.logspace(-3, 3, 12)[None, :])
    ours = built(uneven)
    exponents = ours.manifest.column_scale
    assert exponents is not None
    original = ours.weights * np.exp2(np.array(exponents, dtype=np.float64))[:, None]
    again = built(uneven, pretrained=PretrainedWeights(original))
    assert again.manifest.training.iterations <= 1
    assert np.linalg.norm(again.weights - ours.weights) <= 1e-9 * np.linalg.norm(ours.weights)


@pytest.mark.parametrize(("share", "refused"), [(1e-5, True), (1e-8, False)])
def test_weights_outside_the_span_are_refused_from_a_share_of_a_millionth(
    graph: Graph, share: float, refused: bool
) -> None:
    W = in_span((2, 12, 3))
    W[1, 11, 0] = share * np.linalg.norm(W[1])
    if refused:
        with pytest.raises(WeightsError, match="outside the span of the features"):
            built(graph, pretrained=PretrainedWeights(W))
    else:
        assert not built(graph, pretrained=PretrainedWeights(W)).weights[:, 11].any()


def test_weights_of_another_graph_or_class_count_are_refused_by_name(graph: Graph) -> None:
    with pytest.raises(WeightsError, match="1 blocks where the model has 2 and 9 features where the model has 12"):
        built(graph, pretrained=PretrainedWeights(np.ones((1, 9, 3))))
    with pytest.raises(WeightsError, match="4 classes where the model has 3"):
        built(graph, pretrained=PretrainedWeights(np.ones((2, 12, 4))))
    with pytest.raises(WeightsError, match="label blocks have shape none"):
        built(graph, replace(SPEC, label_hops=1), PretrainedWeights(in_span((2, 12, 3))))
    with pytest.raises(WeightsError, match="adaptive diffusion"):
        built(graph, replace(SPEC, diffusion=True), PretrainedWeights(in_span((2, 12, 3))))


def test_more_classes_than_training_nodes_are_refused(graph: Graph) -> None:
    few = np.zeros(graph.nodes, dtype=np.bool_)
    few[np.flatnonzero(graph.train_mask)[:2]] = True
    with pytest.raises(GraphError, match=r"more classes \(3\) than training nodes \(2\)"):
        built(replace(graph, train_mask=few))


def test_weights_are_read_from_safetensors_and_npz(tmp_path: Path) -> None:
    W, V = in_span((2, 12, 3)), np.ones((1, 3, 3), dtype=np.float32)
    save_file({"W": W, "label_W": V}, tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", W=W)
    read = read_weights(tmp_path / "w.safetensors")
    assert read.label_weights is not None
    assert (read.label_weights == V).all()
    assert (read.weights == W).all()
    assert (read_weights(tmp_path / "w.npz").weights == W).all()


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"\x10\x00")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 cut")
    np.savez(tmp_path / "pickled.npz", W=np.array([{"a": 1}], dtype=object))
    np.savez(tmp_path / "other.npz", X=np.ones(3))
    np.savez(tmp_path / "flat.npz", W=np.ones((3, 2)))
    np.savez(tmp_path / "nan.npz", W=np.full((1, 2, 2), np.nan))
    (tmp_path / "weights.pt").touch()
    for file in tmp_path.iterdir():
        with pytest.raises(WeightsError, match=file.stem) as refused:
            read_weights(file)
        assert refused.value.remedy
    with pytest.raises(WeightsError, match="does not exist"):
        read_weights(tmp_path / "absent.npz")


def test_what_a_file_of_weights_holds_beside_them_is_refused_by_name(tmp_path: Path) -> None:
    W = torch.tensor(in_span((2, 12, 3)))
    save_torch_file({"W": W, "label_w": W.clone()}, tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", W=W, label_w=W)
    for file in tmp_path.iterdir():
        with pytest.raises(WeightsError, match="label_w"):
            read_weights(file)


@pytest.mark.parametrize("suffix", ["safetensors", "npy", "pt"])
def test_a_file_with_holes_is_refused_before_its_bytes_take_memory(suffix: str, tmp_path: Path) -> None:
    """8 TB, in a few KiB on disk."""
    path, size = tmp_path / f"w.{suffix}", 8_000_000_000_000
    array = io.BytesIO()
    npy.write_array_header_1_0(array, {"descr": "<f8", "fortran_order": False, "shape": (size // 8,)})
    header = json.dumps({"W": {"dtype": "F64", "shape": [1, 25, size // 200], "data_offsets": [0, size]}}).encode()
    cases: dict[str, tuple[bytes, Callable[[Path], object]]] = {
        "safetensors": (struct.pack("<Q", len(header)) + header, read_weights),
        "npy": (array.getvalue(), read_npy),
        "pt": (pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2), read_torch_geometric),
    }
    begin, read = cases[suffix]
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(len(begin) + size)
    with pytest.raises(ProjectorError, match="bytes of memory"):
        read(path)
