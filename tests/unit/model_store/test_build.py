"""A built model matches its graph and arrays."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model_store.build import BuiltModel, build_model
from model_store.disk.checksummed import checksummed, read_checksummed
from model_store.manifest import FeatureDtype, FeatureLayout, InjectedChannel, Manifest
from projector.errors import DeviceError, GraphError, RankError, TrainingError
from projector.forgetting.injection import inject_channel
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Graph
from projector.network.spec import Combine, ModelSpec, SolverKind
from tests.support.device import DEVICE
from tests.support.models.small_graphs import (
    dense,
    dense_features,
    dense_representation,
    graph_of,
    side_by_side,
    sparse_features,
)


def build(graph: Graph, spec: ModelSpec | None = None, **options: Any) -> BuiltModel:
    return build_model(graph, spec or ModelSpec(), name="small", dataset="made", split="full", **options)


def uneven_columns(graph: Graph) -> Graph:
    """Column sizes spread over 10 orders of magnitude."""
    features = dense(graph.features)
    return replace(graph, features=features * np.logspace(-5, 5, features.shape[1]))


@pytest.mark.parametrize("make", [dense_features, sparse_features])
def test_weights_dual_variable_and_coefficients_are_of_one_model(make: Callable[[], Graph]) -> None:
    spec = ModelSpec(combine=Combine.CONCAT)
    built = build(make(), spec)
    H = dense_representation(built.graph, spec)
    size = np.linalg.norm(built.weights)
    assert np.linalg.norm(side_by_side(built.weights) - H.T @ built.dual) <= 1e-10 * size
    for W_b, beta_b in zip(built.weights, built.beta, strict=True):
        assert np.linalg.norm(W_b - dense(built.graph.features).T @ beta_b) <= 1e-10 * size


def test_the_manifest_describes_the_model(tmp_path: Path) -> None:
    graph = sparse_features()
    before = datetime.now(UTC)
    manifest = build(graph).manifest
    assert (manifest.name, manifest.dataset, manifest.split) == ("small", "made", "full")
    assert before <= manifest.created_at <= datetime.now(UTC)
    assert (manifest.nodes, manifest.edges, manifest.features) == (graph.nodes, graph.edges, graph.num_features)
    assert (manifest.feature_layout, manifest.feature_dtype) == (FeatureLayout.CSR, FeatureDtype.FLOAT32)
    assert manifest.classes == graph.class_names
    assert manifest.spec == ModelSpec()
    singular = np.linalg.svd(dense(graph.features), compute_uv=False)
    kept = singular[singular > 1e-5 * singular[0]]
    assert manifest.rank == kept.size
    assert manifest.sigma_ref_squared == pytest.approx(singular[0] ** 2, rel=1e-12)
    assert manifest.condition_number == pytest.approx(singular[0] / kept[-1], rel=1e-6)
    assert manifest.training.relative_gradient <= 1e-11
    assert manifest.training.device == DEVICE
    assert manifest.column_scale is None
    assert manifest.warnings == ()
    (tmp_path / "m.json").write_bytes(checksummed(manifest))
    assert read_checksummed(tmp_path / "m.json", Manifest) == manifest


def test_columns_of_very_different_size_are_rescaled_by_recorded_powers_of_two() -> None:
    original = uneven_columns(dense_features())
    built = build(original)
    exponents = built.manifest.column_scale
    assert exponents is not None
    assert np.array_equal(built.graph.features, original.features * np.exp2(np.array(exponents, dtype=float)))
    assert built.manifest.rank == original.num_features
    assert built.manifest.condition_number < 1e4
    assert "powers of two" in built.manifest.warnings[0]
    W = built.weights[0]
    assert np.linalg.norm(W - built.graph.features.T @ built.beta[0]) <= 1e-10 * np.linalg.norm(W)


@pytest.mark.parametrize("prepare", [dense_features, lambda: uneven_columns(dense_features())])
def test_an_injected_channel_is_recorded_and_its_row_of_w_is_the_sum_of_its_coefficients(
    prepare: Callable[[], Graph],
) -> None:
    graph = inject_channel(prepare(), ["node-3", "node-9"], extra_class=True)
    channel = InjectedChannel(column=graph.num_features - 1, nodes=2)
    built = build(graph, injected_channels=[channel])
    assert built.manifest.injected_channels == (channel,)
    row = built.weights[0, channel.column]
    assert np.linalg.norm(row) > 0
    assert np.linalg.norm(row - built.beta[0, [3, 9]].sum(axis=0)) <= 1e-10 * np.linalg.norm(row)


def test_features_too_large_to_prove_a_deletion_are_a_warning() -> None:
    graph = dense_features()
    built = build(replace(graph, features=graph.features * 200))
    assert "Divide all features by" in built.manifest.warnings[0]


def test_nearly_dependent_columns_are_refused() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((30, 4))
    features[:, 3] = features[:, 2] + 1e-6 * rng.standard_normal(30)
    with pytest.raises(RankError):
        build(graph_of([(0, 1)], features, rng.integers(0, 2, 30).tolist()))


def test_descent_that_stops_away_from_the_optimum_is_a_warning() -> None:
    built = build(dense_features(), ModelSpec(solver=SolverKind.SGD, learning_rate=0.1, epochs=5))
    assert any("away from the optimum" in warning for warning in built.manifest.warnings)
    assert built.manifest.training.iterations == 5
    assert built.manifest.training.identity_error <= 1e-14


def test_a_class_without_training_nodes_is_a_warning() -> None:
    graph = dense_features()
    built = build(replace(graph, train_mask=graph.train_mask & (graph.labels != 1)))
    assert built.manifest.warnings == ("No training node has the class class-1.",)


@pytest.mark.parametrize(("dataset", "warned"), [("people.npz", True), ("cora", False), ("synthetic:n=30", False)])
def test_row_numbers_as_ids_of_own_data_are_a_warning(dataset: str, warned: bool) -> None:
    graph = dense_features()
    graph = replace(graph, node_ids=NodeIds.of(map(str, range(graph.nodes))))
    manifest = build_model(graph, ModelSpec(), name="small", dataset=dataset, split="full").manifest
    assert any("Row numbers" in warning for warning in manifest.warnings) is warned


def on_the_device() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def on_the_cpu() -> None:
    torch.empty(10**15)


@pytest.mark.parametrize(("run_out", "device"), [(on_the_device, DEVICE), (on_the_cpu, "cpu")])
def test_running_out_of_memory_names_the_device(
    monkeypatch: pytest.MonkeyPatch, run_out: Callable[[], None], device: str
) -> None:
    def exhausted(*arguments: object, **options: object) -> None:
        run_out()

    for step in ("projector.training.fit.minimise", "projector.training.fitted.well_scaled"):
        monkeypatch.setattr(step, exhausted)
        with pytest.raises(DeviceError, match=f"{device} has too little memory") as refused:
            build(dense_features())
        remedies = {"cpu": "or a machine with more memory.", "cuda": "a larger device, or --device cpu."}
        assert refused.value.remedy == f"Use --combine last, {remedies[device]}"


def test_what_cannot_be_built_is_refused_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = dense_features()
    features = dense(graph.features).copy()
    features[1, 1] = np.nan
    with pytest.raises(GraphError, match="node-1"):
        build(replace(graph, features=features))
    with pytest.raises(TrainingError, match="hops"):
        build(graph, ModelSpec(hops=-1))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError):
        build(graph, device="cuda")
