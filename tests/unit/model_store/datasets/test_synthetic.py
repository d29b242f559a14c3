"""Synthetic graphs: their parameters and their structure."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.datasets.load import load_dataset
from model_store.datasets.synthetic import DEFAULT_SYNTHETIC
from projector.errors import GraphError
from tests.support.models.small_graphs import dense


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
