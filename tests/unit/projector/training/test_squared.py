"""Features of the squared loss alone: a temperature, real-valued targets, training by one factorisation."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from projector import ModelSpec, fit, from_arrays
from projector.errors import GraphError, TrainingError
from projector.graph.graph import Graph
from projector.network.spec import Combine, LossKind
from projector.training.fit import train
from projector.training.temperature import LARGEST, SMALLEST, fitted_temperature
from tests.support.models.small_graphs import dense

SQUARED = ModelSpec(loss=LossKind.SQUARED, regularization=1e-3)
EDGES = np.array([[0, 1, 2], [1, 2, 3]])


@pytest.fixture(scope="module")
def small() -> Graph:
    return load_dataset("synthetic:n=120,d=30,classes=3,seed=2", data_dirs=[])


def likelihood(graph: Graph, logits: torch.Tensor, temperature: float) -> float:
    p = torch.softmax(logits / temperature, dim=1).numpy()[graph.val_mask]
    return float(np.log(p[np.arange(len(p)), graph.labels[graph.val_mask]]).mean())


def test_the_temperature_is_the_likeliest_of_the_validation_nodes(small: Graph) -> None:
    logits = train(SQUARED, small).logits
    found = fitted_temperature(small, logits)
    assert found is not None
    best = max(np.geomspace(SMALLEST, LARGEST, 4_001), key=lambda each: likelihood(small, logits, each))
    assert found == pytest.approx(best, rel=5e-3)
    nobody = replace(small, val_mask=np.zeros(small.nodes, dtype=np.bool_))
    assert fitted_temperature(nobody, logits) is None
    expected = torch.softmax(logits / found, dim=1).numpy()
    np.testing.assert_allclose(fit(small, SQUARED).predict(), expected, atol=1e-9)


def test_it_stays_what_it_was_when_validation_nodes_leave(small: Graph) -> None:
    model = fit(small, SQUARED)
    left, _ = model.forget(nodes=np.flatnonzero(small.val_mask)[:10])
    before, after = (each._held.live_graph.loss for each in (model, left))
    assert before is after


@pytest.mark.parametrize("combine", list(Combine))
def test_training_takes_a_factorisation_and_no_more_than_two_steps(small: Graph, combine: Combine) -> None:
    trained = train(replace(SQUARED, combine=combine), small)
    assert trained.iterations <= 3
    assert trained.relative_gradient <= 1e-10


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"loss": LossKind.SOFTMAX}, "the loss softmax does not accept"),
        ({"loss": LossKind.OVR}, "the loss ovr does not accept"),
        ({"label_hops": 1}, "need classes"),
        ({"diffusion": True}, "need classes"),
        ({"class_weight": "balanced"}, "need classes"),
    ],
)
def test_real_valued_targets_are_refused_by_name_where_classes_are_needed(changed: dict[str, Any], said: str) -> None:
    graph = from_arrays(EDGES, np.eye(4), np.array([0.5, 1.5, -2.0, 0.0]))
    with pytest.raises(TrainingError, match=said) as refused:
        fit(graph, replace(SQUARED, **changed))
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ([0.5, np.inf, 0.0, 1.0], "infinite"),
        (np.ones((4, 2, 1)), "of shape"),
        (np.ones(3), "of shape"),
        ([[1.0, np.nan], [0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], "missing target"),
    ],
)
def test_targets_that_are_none_are_refused(targets: Any, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        fit(from_arrays(EDGES, np.eye(4), targets), SQUARED)


def test_a_stored_regression_keeps_its_targets_and_says_how_well_it_predicts(small: Graph, tmp_path: Any) -> None:
    values = dense(small.features)[:, :2] * 3 + 1
    values[5] = np.nan
    labels = np.where(np.isnan(values[:, 0]), -1, 0)
    graph = replace(
        small, values=values, labels=labels, class_names=("a", "b"),
        train_mask=small.train_mask & (labels == 0), val_mask=small.val_mask & (labels == 0),
        test_mask=small.test_mask & (labels == 0),
    )  # fmt: skip
    built = build_model(graph, SQUARED, name="a", dataset="a", split="full")
    store = built.write(tmp_path / "model")
    assert store.manifest == built.manifest
    np.testing.assert_array_equal(store.load_base().graph.values, values)
    predicted = fit(graph, SQUARED).predict()
    figures = built.manifest.regression
    assert figures is not None
    for mask, error, share in (
        (graph.train_mask, figures.squared_error_train, figures.r_squared_train),
        (graph.test_mask, figures.squared_error_test, figures.r_squared_test),
    ):
        missed = values[mask] - predicted[mask]
        assert error == pytest.approx(np.mean(missed**2), rel=1e-6)
        assert share == pytest.approx(1 - np.sum(missed**2) / np.sum((values[mask] - values[mask].mean(0)) ** 2))
    assert built.manifest.accuracy.test is None
    assert built.manifest.temperature is None
