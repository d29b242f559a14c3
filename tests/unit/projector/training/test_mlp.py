"""The MLP extension's promises: it learns from public training nodes alone, and everything else works on Z."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.manifest import InjectedChannel
from projector.errors import GraphError, ProjectorError, TrainingError
from projector.forgetting.injection import inject_channel
from projector.graph.graph import Graph
from projector.network.spec import Combine, ModelSpec
from projector.training.mlp import Mlp, MlpRecord, extract, train_mlp
from tests.support.everyday import everyday
from tests.support.models.small_graphs import dense

SPEC = ModelSpec(mlp_width=16, combine=Combine.CONCAT)


@pytest.fixture
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projector.training.mlp._EPOCHS", 40)


#: For tests that do not depend on how well it has learnt.
FEW_EPOCHS = pytest.mark.usefixtures("few_epochs")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_dataset("synthetic:n=300,d=60,classes=3,seed=1", data_dirs=[])


def some_public(graph: Graph, count: int = 60) -> NDArray[np.bool_]:
    public = np.zeros(graph.nodes, dtype=np.bool_)
    public[np.flatnonzero(graph.train_mask)[:count]] = True
    return public


def ids(graph: Graph, mask: NDArray[np.bool_]) -> list[str]:
    return [graph.node_ids[row] for row in np.flatnonzero(mask)]


def trained(graph: Graph, public: NDArray[np.bool_], spec: ModelSpec = SPEC) -> Mlp:
    rows = np.flatnonzero(public & graph.train_mask)
    return train_mlp(graph.features, graph.labels, rows, graph.num_classes, spec)


def as_dense(graph: Graph, dtype: str) -> Graph:
    return replace(graph, features=dense(graph.features).astype(dtype))


@FEW_EPOCHS
@pytest.mark.parametrize("layout", everyday(["csr", "float32", "float64"], "csr", "float32"))
def test_the_outputs_are_what_numpy_makes_of_the_weights(graph: Graph, layout: str) -> None:
    given = graph if layout == "csr" else as_dense(graph, layout)
    mlp = trained(given, some_public(graph))
    X, W1, W2 = dense(graph.features), mlp.W1.numpy(), mlp.W2.numpy()
    assert (W1.shape, W2.shape) == ((60, 16), (16, 16))
    expected = np.maximum(np.maximum(X @ W1, 0) @ W2, 0)
    Z = mlp.outputs(given.features)
    assert Z.dtype == np.float64
    assert np.abs(Z - expected).max() <= 1e-12 * np.abs(expected).max()
    extracted = extract(given, SPEC, some_public(graph)).graph
    assert np.array_equal(extracted.features, Z)
    assert np.array_equal(extracted.labels, graph.labels)


@FEW_EPOCHS
def test_it_learns_from_public_training_nodes_and_nothing_else(graph: Graph) -> None:
    public = some_public(graph) | graph.test_mask
    learnt = public & graph.train_mask
    random = np.random.default_rng(0)
    features = dense(graph.features).astype(np.float32)
    features[~learnt] = random.standard_normal((int((~learnt).sum()), 60))
    others = replace(
        graph,
        adjacency=sp.csr_array((graph.nodes, graph.nodes)),
        features=features,
        labels=np.where(learnt, graph.labels, random.integers(0, 3, graph.nodes)),
    )
    mlp, same = trained(as_dense(graph, "float32"), public), trained(others, public)
    assert np.array_equal(mlp.W1.numpy(), same.W1.numpy())
    assert np.array_equal(mlp.W2.numpy(), same.W2.numpy())
    relabelled = graph.labels.copy()
    relabelled[learnt] = (relabelled[learnt] + 1) % 3
    other = trained(replace(as_dense(graph, "float32"), labels=relabelled), public)
    assert not np.array_equal(mlp.W1.numpy(), other.W1.numpy())


@FEW_EPOCHS
@pytest.mark.parametrize("layout", everyday(["csr", "dense"], "csr"))
def test_a_model_on_an_mlp_lies_in_the_span_of_its_outputs(graph: Graph, layout: str, tmp_path: Path) -> None:
    given = graph if layout == "csr" else as_dense(graph, "float32")
    public = some_public(graph)
    spec = replace(SPEC, label_hops=1)
    built = build_model(given, spec, name="m", dataset="m", split="full", public=ids(graph, public))
    Z = built.graph.features
    assert isinstance(Z, np.ndarray)
    assert np.array_equal(Z, extract(given, spec, public).graph.features)
    for W, beta in zip(built.weights, built.beta, strict=True):
        assert np.linalg.norm(W - Z.T @ beta) <= 1e-8 * np.linalg.norm(W)
    assert built.manifest.mlp == MlpRecord(width=16, public_nodes=60)
    assert built.manifest.features == 16
    assert built.manifest.rank == np.linalg.matrix_rank(Z, tol=1e-5 * np.sqrt(built.manifest.sigma_ref_squared))
    base = built.write(tmp_path / "m").load_base()
    assert np.array_equal(base.public, public)
    assert np.array_equal(base.graph.features, Z)


def test_units_that_are_never_active_are_columns_of_zeros(graph: Graph) -> None:
    spec = ModelSpec(mlp_width=200, seed=1)
    public = some_public(graph)
    built = build_model(graph, spec, name="m", dataset="m", split="full", public=ids(graph, public))
    Z = built.graph.features
    assert isinstance(Z, np.ndarray)
    silent = ~Z.any(axis=0)
    assert silent.any()
    assert built.manifest.rank <= 200 - silent.sum()
    assert not built.weights[:, silent].any()
    assert np.linalg.norm(built.weights[0] - Z.T @ built.beta[0]) <= 1e-8 * np.linalg.norm(built.weights[0])


@pytest.mark.parametrize("seed", everyday(range(3), 0))
def test_no_unit_is_active_for_a_handful_of_nodes_alone(graph: Graph, seed: int) -> None:
    spec = ModelSpec(mlp_width=200, seed=seed)
    # One of these nodes is 5 % of them: a unit that no public node activates is silent on all nodes.
    public = some_public(graph, 20)
    Z = trained(graph, public, spec).outputs(graph.features)
    silent = ~Z[public].any(axis=0)
    assert silent.any()
    assert not Z[:, silent].any()
    few = some_public(graph, 150)
    counts = (trained(graph, few, spec).outputs(graph.features)[few] > 0).sum(axis=0)
    assert 0 in counts
    assert 1 not in counts


@FEW_EPOCHS
@pytest.mark.parametrize("extra_class", everyday([False, True], False))
def test_injected_columns_pass_the_mlp_by(graph: Graph, extra_class: bool) -> None:
    injected = inject_channel(graph, ["7", "11"], extra_class=extra_class)
    public = some_public(graph)
    features = extract(injected, SPEC, public, [60]).graph.features
    assert features.shape == (300, 17)
    assert np.flatnonzero(features[:, 16]).tolist() == [7, 11]
    if not extra_class:
        assert np.array_equal(features[:, :16], extract(graph, SPEC, public).graph.features)
    channel = InjectedChannel(column=60, nodes=2)
    built = build_model(
        injected, SPEC, name="m", dataset="m", split="full", injected_channels=[channel], public=ids(graph, public)
    )
    assert built.manifest.injected_channels == (InjectedChannel(column=16, nodes=2),)
    sums = built.beta[:, [7, 11]].sum(axis=1)
    assert np.linalg.norm(built.weights[:, 16] - sums) <= 1e-8 * np.linalg.norm(sums)


# Refused before work starts.


def refused(graph: Graph, node_ids: list[str], spec: ModelSpec = SPEC) -> ProjectorError:
    with pytest.raises((GraphError, TrainingError)) as caught:
        build_model(graph, spec, name="m", dataset="m", split="full", public=node_ids, progress=_no_work)
    assert caught.value.remedy
    return caught.value


def _no_work(progress: object) -> None:
    raise AssertionError("work has started")


def test_an_mlp_without_public_nodes_is_refused(graph: Graph) -> None:
    error = refused(graph, [])
    assert isinstance(error, TrainingError)
    assert "none is" in error.detail


def test_ids_of_no_node_are_refused_by_name(graph: Graph) -> None:
    error = refused(graph, ["1", "nobody", "1", "nobody", "noone"])
    assert isinstance(error, GraphError)
    assert error.detail.startswith("2 of the ids declared public belong to no node: nobody, noone")


def test_public_nodes_without_a_label_are_refused_by_name(graph: Graph) -> None:
    labels = graph.labels.copy()
    labels[[5, 9]] = -1
    mask = np.isin(np.arange(300), [5, 9])
    unlabelled = replace(
        graph,
        labels=labels,
        train_mask=graph.train_mask & ~mask,
        val_mask=graph.val_mask & ~mask,
        test_mask=graph.test_mask & ~mask,
    )
    error = refused(unlabelled, [*ids(graph, graph.train_mask & ~mask)[:4], "9", "5"])
    assert isinstance(error, GraphError)
    assert error.detail == "2 of the public nodes have no label: 5, 9."


def test_features_beyond_all_bounds_are_refused_by_name(graph: Graph) -> None:
    huge = replace(graph, features=dense(graph.features) * 1.5e308)
    with pytest.raises(TrainingError, match="diverged"):
        extract(huge, SPEC, some_public(graph))


# Quality of the results.
