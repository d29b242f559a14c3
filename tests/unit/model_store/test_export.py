"""Exported weights predict what the service would, and what would undo a promise or need more is refused."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from model_store.export import export_weights
from projector import ModelSpec, fit, load_exported
from projector.errors import GraphError
from projector.exported import ExportedModel
from projector.graph.graph import Graph
from projector.network.spec import ClassWeight, Combine, LossKind, PropagationKind
from projector.training.pretrained import WeightsError
from service.domain.states import RepairPolicy
from tests.support.models.small_graphs import dense, with_weights
from tests.support.models.stored import SMALL, StoredModel, built, real_graph

SPECS = [
    ModelSpec(),
    ModelSpec(hops=0, loss=LossKind.SQUARED, class_weight=ClassWeight.BALANCED),
    ModelSpec(combine=Combine.CONCAT, propagation=PropagationKind.ROW, loss=LossKind.OVR, self_loops=0.5),
]


@pytest.fixture(scope="module")
def graph() -> Graph:
    """A graph whose columns differ so much in size that training scales them."""
    small = real_graph(SMALL)
    X = dense(small.features)[:, :40]
    X[:, 0] *= 1e6
    return replace(small, features=X)


def export(model: StoredModel, path: Path) -> Path:
    with path.open("wb") as file:
        assert export_weights(model.store, file) == model.ref.version
    return path


@pytest.mark.parametrize("spec", SPECS, ids=["softmax", "embeddings", "concat"])
def test_an_exported_version_predicts_what_the_service_does(tmp_path: Path, graph: Graph, spec: ModelSpec) -> None:
    if spec.combine is Combine.CONCAT:
        graph = replace(graph, adjacency=with_weights(graph.adjacency), weighted=True)
    model = StoredModel(tmp_path / "model", built(graph, spec, cohorts=2), RepairPolicy.ALWAYS)
    assert model.store.manifest.column_scale is not None
    model.delete([3, 14])
    model.delete(list(range(graph.nodes, model.store.nodes)))
    exported = load_exported(export(model, tmp_path / "w.npz"))
    assert (exported.name, exported.version, exported.class_names) == ("test", 2, graph.class_names)
    live = model.resident.committed.state.live[: graph.nodes]
    committed = model.resident.committed
    expected = committed.live_graph.probabilities(committed.state)[: graph.nodes][live]
    left = graph.adjacency[live][:, live]
    np.testing.assert_allclose(exported.predict(dense(graph.features)[live], left), expected, atol=1e-9)
    pairs = sp.coo_array(left)
    given = exported.predict(dense(graph.features)[live], np.stack(pairs.coords), edge_weight=pairs.data)
    np.testing.assert_allclose(given, expected, atol=1e-9)
    with pytest.raises(GraphError, match="39 columns"):
        exported.predict(dense(graph.features)[:, 1:], graph.adjacency)


def test_an_export_of_a_library_model_is_the_same_weights(tmp_path: Path, graph: Graph) -> None:
    model = StoredModel(tmp_path / "model", built(graph), RepairPolicy.ALWAYS)
    exported = load_exported(export(model, tmp_path / "w.npz"))
    np.testing.assert_array_equal(exported.weights, fit(graph).weights)


@pytest.mark.parametrize(
    ("spec", "why"),
    [(ModelSpec(label_hops=1), "reuses the labels"), (ModelSpec(diffusion=True), "adaptive diffusion")],
)
def test_a_model_that_needs_more_than_weights_is_refused(
    tmp_path: Path, graph: Graph, spec: ModelSpec, why: str
) -> None:
    model = StoredModel(tmp_path / "model", built(graph, spec))
    with pytest.raises(WeightsError, match=why):
        export_weights(model.store, io.BytesIO())


def test_another_file_is_refused_and_not_unpickled(tmp_path: Path) -> None:
    for name, W in {"a.npz": np.zeros(3), "b.npz": np.array([object()])}.items():
        np.savez(tmp_path / name, W=W, settings="{}")
        with pytest.raises(WeightsError, match="exported model"):
            load_exported(tmp_path / name)
    with pytest.raises(WeightsError, match="cannot be read"):
        load_exported(tmp_path / "none.npz")


def test_a_damaged_export_is_refused(tmp_path: Path) -> None:
    good, path = io.BytesIO(), tmp_path / "w.npz"
    spec = ModelSpec(loss=LossKind.SQUARED)
    ExportedModel(np.ones((1, 5, 2)), spec, ("a", "b"), False, 2.0, "m", 3).write(good)
    whole = good.getvalue()
    path.write_bytes(whole)
    assert load_exported(path).temperature == 2.0
    for damaged in (b"", whole[:60], whole[:-30], whole[:70] + b"\xff" * 20 + whole[90:]):
        path.write_bytes(damaged)
        with pytest.raises(WeightsError, match="not an exported model"):
            load_exported(path)
    with np.load(io.BytesIO(whole)) as arrays:
        W, settings = arrays["W"], json.loads(str(arrays["settings"]))
    wrong: list[dict[str, Any]] = [{"temperature": given} for given in ("hot", -1.0, np.nan)]
    for changed in (*wrong, {"spec": settings["spec"] | {"hops": -1}}):
        np.savez(path, W=W, settings=json.dumps(settings | changed))
        with pytest.raises(WeightsError, match="not an exported model"):
            load_exported(path)
