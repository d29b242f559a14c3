"""What is measured of several workers is what they compute, and bytes are what the formulas say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.performance.scale import workers_formulas as formulas
from benchmarks.performance.scale.gpu import PRODUCTS, graph_called, spec_of
from benchmarks.performance.scale.graph import Shape
from benchmarks.performance.scale.mapped_graph import store, stored
from benchmarks.performance.scale.workers import agree, measured, report
from projector.network.sizes import Sizes
from tests.support.models.small_graphs import dense, sparse_features

SMALL = Shape(nodes=600, edges=6000, features=6, classes=3, training=300)


def test_a_stored_graph_is_that_graph(tmp_path: Path) -> None:
    for number, graph in enumerate((sparse_features(), graph_called(PRODUCTS, [], SMALL, torch.device("cpu")))):
        (folder := tmp_path / str(number)).mkdir()
        store(graph, folder)
        again = stored(folder)
        assert (again.adjacency != graph.adjacency).nnz == 0
        np.testing.assert_array_equal(dense(again.features), dense(graph.features))
        for name in ("labels", "train_mask", "val_mask", "test_mask"):
            np.testing.assert_array_equal(getattr(again, name), getattr(graph, name))


def test_two_workers_send_what_the_formulas_say(tmp_path: Path) -> None:
    graph = graph_called(PRODUCTS, [], SMALL, torch.device("cpu"))
    store(graph, tmp_path)
    row = measured("a small graph", graph, tmp_path, 2)
    assert {formulas.GRADIENT, formulas.PRODUCT, formulas.PREDICTIONS} <= row.expected.keys()
    assert 0 < row.steps["training"][1] <= row.steps["training"][2]
    assert len(row.training) == len(row.after) == 2
    assert "| a small graph | 2 |" in report([row, replace(row, workers=1)])
    with pytest.raises(ArithmeticError, match="gradient: 2 workers sent"):
        agree(row.steps, {formulas.GRADIENT: 1e9}, 2)


def test_what_is_sent_grows_with_workers_and_what_is_held_falls() -> None:
    sizes = Sizes.of(graph_called(PRODUCTS, [], replace(SMALL, classes=8), torch.device("cpu")))
    sent = [formulas.traffic(spec_of(PRODUCTS), sizes, count) for count in (1, 2, 4)]
    held = [formulas.held(spec_of(PRODUCTS), sizes, count, preconditioned=True) for count in (1, 2, 4)]
    assert all(value == 0 for value in sent[0].values())
    assert all(0 < two < sent[2][step] for step, two in sent[1].items())
    assert held[0] > held[1] > held[2]
