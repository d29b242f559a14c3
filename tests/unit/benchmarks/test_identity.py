"""Deletions that change no weight are counted by the rule of deletion."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.paper.forgetting.identity import directions_lost, nodes_losing_a_direction
from projector.forgetting.gram import downdate, factorise
from projector.graph.features import FeatureMatrix
from tests.support.models.structures import STRUCTURES, Rows

pytestmark = pytest.mark.ci


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
