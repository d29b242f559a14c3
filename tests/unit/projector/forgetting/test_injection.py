"""Columns that only chosen nodes carry, and synthetic nodes that carry them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.datasets.synthetic import DEFAULT_SYNTHETIC
from projector.errors import GraphError
from projector.forgetting.injection import INJECTED_CLASS, add_canaries, inject_channel
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Graph, validate
from projector.network.spec import ModelSpec
from tests.support.models.small_graphs import dense, dense_features, float32_features, sparse_features


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


@pytest.mark.parametrize("make", [dense_features, float32_features, sparse_features])
@pytest.mark.parametrize("nodes", [1, 4])
def test_canaries_are_training_nodes_with_a_column_of_their_cohort_and_nothing_else(
    make: Callable[[], Graph], nodes: int
) -> None:
    graph = replace(make(), val_mask=np.zeros(make().nodes, dtype=np.bool_))
    n, d, count = graph.nodes, graph.num_features, 3 * nodes
    larger, canaries = add_canaries(graph, 3, nodes=nodes, seed=0, tag="t")
    validate(larger)
    assert larger.node_ids == (*graph.node_ids, *canaries.ids)
    features = dense(larger.features)
    assert np.array_equal(features[:n, :d], dense(graph.features))
    assert not features[:n, d:].any()
    assert not features[n:, :d].any()
    for cohort in (1, 2, 3):
        carriers = [larger.node_ids[row] for row in np.flatnonzero(features[:, canaries.column(cohort)])]
        assert carriers == list(canaries.cohort_ids(cohort))
    assert (larger.features.dtype, type(larger.features)) == (graph.features.dtype, type(graph.features))
    assert larger.train_mask[n:].all()
    assert not (larger.val_mask | larger.test_mask)[n:].any()
    for mask in ("train_mask", "val_mask", "test_mask", "labels"):
        assert np.array_equal(getattr(larger, mask)[:n], getattr(graph, mask))
    by_cohort = larger.labels[n:].reshape(3, nodes)
    assert (by_cohort == by_cohort[:, :1]).all()
    assert larger.class_names == graph.class_names
    # Every canary is linked to the rest of its cohort, and to one training node that no other canary is linked to.
    adjacency = larger.adjacency.toarray()
    assert np.array_equal(adjacency[:n, :n], graph.adjacency.toarray())
    assert np.array_equal(adjacency[n:, n:], np.kron(np.eye(3), np.ones((nodes, nodes))) - np.eye(count))
    neighbours = adjacency[n:, :n]
    assert (neighbours.sum(axis=1) == 1).all()
    assert neighbours.sum(axis=0).max() == 1
    assert graph.train_mask[neighbours.any(axis=0)].all()


def test_the_classes_keep_their_shares() -> None:
    graph = load_dataset(DEFAULT_SYNTHETIC, data_dirs=[])
    training = np.flatnonzero(graph.train_mask)
    rare = np.zeros(graph.nodes, dtype=np.int64)
    rare[training[: training.size // 10]] = 1
    larger, _ = add_canaries(replace(graph, labels=rare), training.size // 2, nodes=1, seed=0, tag="t")
    assert larger.labels[graph.nodes :].mean() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_canaries_leave_the_scale_and_the_condition_of_the_features_as_they_are(scale: float) -> None:
    graph = dense_features()
    graph = replace(graph, features=graph.features * scale)
    larger, canaries = add_canaries(graph, 2, nodes=3, seed=0, tag="t")
    spec = ModelSpec(regularization=1e-4 * scale**2)
    without, with_ = (
        build_model(each, spec, name="m", dataset="m", split="full", canaries=own).manifest
        for each, own in ((graph, None), (larger, canaries))
    )
    assert with_.column_scale is None
    assert with_.condition_number < 2 * without.condition_number
    assert with_.rank == without.rank + 2


def test_a_dataset_with_an_id_of_a_canary_is_refused() -> None:
    graph = dense_features()
    graph = replace(graph, node_ids=NodeIds.of(["lethe-canary-x-1-1", *graph.node_ids[1:]]))
    with pytest.raises(GraphError, match="lethe-canary-x-1-1") as refusal:
        add_canaries(graph, 1, nodes=2, seed=0, tag="t")
    assert "reserved for canaries" in refusal.value.remedy
    with pytest.raises(GraphError, match="lethe-canary-x-1-1"):
        build_model(graph, ModelSpec(), name="m", dataset="m", split="full")


def test_more_canaries_than_training_nodes_are_refused() -> None:
    training = int(dense_features().train_mask.sum())
    with pytest.raises(GraphError, match=f"{training + 1} cohorts of 1 canaries are more than the {training} training"):
        add_canaries(dense_features(), training + 1, nodes=1, seed=0, tag="t")
