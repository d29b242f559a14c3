"""The benchmark of unchanged weights counts by the rule of the service and compares with a real retraining."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.paper.unchanged_weights import (
    delete_and_retrain,
    directions_lost,
    nodes_losing_a_direction,
    remaining,
    report,
    spread,
)
from model_store.build import build_model
from model_store.datasets.load import load_dataset
from projector.forgetting.gram import downdate, factorise
from projector.graph.features import FeatureMatrix
from projector.graph.graph import validate
from projector.network.spec import ModelSpec
from tests.support.models.stored import SMALL
from tests.support.models.structures import STRUCTURES, Rows


@pytest.mark.parametrize("structure", STRUCTURES)
def test_nodes_are_counted_by_the_rule_that_deletes_them(structure: Callable[[np.random.Generator], Rows]) -> None:
    rows = structure(np.random.default_rng(7))
    features, every = FeatureMatrix(rows), np.ones(len(rows), dtype=np.bool_)
    gram = factorise(features, every)
    expected = []
    for node in range(len(rows)):
        surviving = every.copy()
        surviving[node] = False
        if downdate(gram, features.dense_rows(np.array([node])), features, surviving).lost_directions.shape[1]:
            expected.append(node)
    assert nodes_losing_a_direction(features, gram).tolist() == expected


def test_without_a_lost_direction_the_weights_stay_and_are_not_those_of_retraining() -> None:
    graph = load_dataset(SMALL, data_dirs=[])
    features = FeatureMatrix(graph.features)
    gram = factorise(features, np.ones(graph.nodes, dtype=np.bool_))
    built = build_model(graph, ModelSpec(), name="small", dataset="small", split="full")
    ordinary = np.setdiff1d(np.flatnonzero(graph.train_mask), nodes_losing_a_direction(features, gram))[:1]
    draw = delete_and_retrain(built, features, gram, ordinary)
    assert draw.directions_removed == 0
    assert draw.weight_change == 0.0
    assert draw.distance_to_retraining > 1e-6
    nothing = delete_and_retrain(built, features, gram, ordinary[:0])
    assert nothing.distance_to_retraining <= 1e-9
    assert "| 1% | 2 | 0 | 0.0% (0.0% to 0.0%) |" in report(graph, 3, {0.01: [draw, draw]})
    assert spread([0.1, 0.3, 0.2]) == "20.0% (10.0% to 30.0%)"


def test_what_remains_is_a_graph_to_train_on() -> None:
    graph = load_dataset(SMALL, data_dirs=[])
    surviving = np.random.default_rng(0).random(graph.nodes) < 0.7
    rest = remaining(graph, surviving)
    validate(rest)
    assert rest.node_ids == tuple(name for name, stays in zip(graph.node_ids, surviving, strict=True) if stays)
    assert rest.edges == int(graph.adjacency[surviving][:, surviving].nnz) // 2


@pytest.mark.parametrize("structure", STRUCTURES)
def test_directions_are_lost_by_the_rule_that_deletes_nodes(structure: Callable[[np.random.Generator], Rows]) -> None:
    random = np.random.default_rng(3)
    rows = structure(random)
    features, every = FeatureMatrix(rows), np.ones(len(rows), dtype=np.bool_)
    gram = factorise(features, every)
    for size in range(1, len(rows)):
        deleted = np.sort(random.choice(len(rows), size, replace=False))
        surviving = every.copy()
        surviving[deleted] = False
        lost = downdate(gram, features.dense_rows(deleted), features, surviving).lost_directions.shape[1]
        assert directions_lost(features, gram, deleted) == lost
