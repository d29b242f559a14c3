"""Graphs of any size are what their shape says, and what is measured on a GPU runs on the CPU."""

import numpy as np
import pytest
import torch

from benchmarks.performance.scale.gpu import PRODUCTS, graph_called, measured
from benchmarks.performance.scale.graph import Shape

SMALL = Shape(nodes=400, edges=4000, features=6, classes=3, training=100)


@pytest.mark.parametrize("block", [1 << 22, 1000])
def test_a_made_up_graph_has_the_shape_asked_for(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.performance.scale.graph._BLOCK", block)
    graph = graph_called(PRODUCTS, [], SMALL, torch.device("cpu"))
    assert (graph.nodes, graph.edges, graph.num_features, graph.num_classes) == (400, 4000, 6, 3)
    assert int(graph.train_mask.sum()) == 100
    ends = graph.adjacency.tocoo()
    assert (graph.labels[ends.row] == graph.labels[ends.col]).mean() > 0.6
    degrees = np.diff(graph.adjacency.indptr)
    assert degrees.max() > 4 * degrees.mean()


def test_a_graph_of_another_size_keeps_its_degree() -> None:
    assert Shape().of_nodes(244_903).edges == pytest.approx(6_185_914, abs=20)


def test_what_is_measured_on_a_gpu_runs_on_the_cpu() -> None:
    graph = graph_called(PRODUCTS, [], SMALL, torch.device("cpu"))
    row = measured(PRODUCTS, graph, torch.device("cpu"))
    assert (row.nodes, row.training_nodes, row.rows_of_weights) == (400, 100, 18)
    assert row.repair_steps
    assert row.repair_steps > 0
