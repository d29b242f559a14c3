"""Class weights in the loss, against independent weighted fits, through deletions that keep them as counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from projector import ModelSpec, ProjectorError, fit, from_arrays
from projector.certified.mechanism import radius
from projector.errors import TrainingError
from projector.graph.graph import Graph
from projector.network.losses import loss_of
from projector.network.spec import ClassWeight, LossKind, SolverKind
from projector.training.fit import with_class_weights
from tests.support.mathematics.living_models import balanced
from tests.support.mathematics.references import dense_representation, least_squares
from tests.support.mathematics.retraining import Matrix, Problem
from tests.support.models.small_graphs import dense

LAMBDA = 1e-2


@pytest.fixture(scope="module")
def uneven() -> Graph:
    """Three classes, of which one has an eighth of the training nodes."""
    graph = load_dataset("synthetic:n=150,d=12,classes=3,seed=4", data_dirs=[])
    rng = np.random.default_rng(0)
    return replace(graph, train_mask=graph.train_mask & ((graph.labels != 1) | (rng.random(graph.nodes) < 0.3)))


def weighted_fit(H: Matrix, labels: Matrix, weights: Matrix, loss: LossKind) -> Matrix:
    """Return the minimum by scikit-learn, numpy, or the tests' own Newton method."""
    from sklearn.linear_model import LogisticRegression

    strength = 1.0 / (LAMBDA * len(H))
    machine = LogisticRegression(C=strength, fit_intercept=False, solver="newton-cholesky", tol=1e-14, max_iter=1_000)
    if loss is LossKind.SOFTMAX:
        return np.asarray(machine.fit(H, labels, sample_weight=weights[labels]).coef_.T)
    if loss is LossKind.OVR:
        fits = [machine.fit(H, labels == label, sample_weight=weights[labels]).coef_[0] for label in range(3)]
        return np.column_stack(fits)
    if loss is LossKind.SQUARED:
        root = np.sqrt(weights[labels])[:, None]
        return least_squares(root * H, root * np.eye(3)[labels], LAMBDA)
    return Problem(H, labels, 3, loss, LAMBDA, weights=weights[labels]).minimum(1e-12)


@pytest.mark.parametrize("hops", [0, 2])
@pytest.mark.parametrize("loss", [LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE, LossKind.SQUARED])
def test_balanced_classes_are_those_of_an_independent_weighted_fit_before_and_after_a_deletion(
    uneven: Graph, loss: LossKind, hops: int
) -> None:
    spec = ModelSpec(loss=loss, hops=hops, regularization=LAMBDA, class_weight=ClassWeight.BALANCED)
    model, live, training = fit(uneven, spec), np.ones(uneven.nodes, dtype=bool), uneven.train_mask
    weights = balanced(uneven.labels[training], 3)
    assert weights[1] > 2.0
    A = uneven.adjacency.toarray()
    for gone in ([], np.flatnonzero(training & (uneven.labels == 1))[:4].tolist(), [2, 5]):
        if gone:
            model, report = model.forget(nodes=gone)
            assert report.bound_after is not None
            assert report.bound_after.retrained
            live[gone] = False
        H = dense_representation(spec, dense(uneven.features), A, live)[training & live]
        best = weighted_fit(H, uneven.labels[training & live], weights, loss)
        assert model.certificate is not None
        assert np.linalg.norm(model.weights[0] - best) <= model.certificate.bound + 1e-7 * np.linalg.norm(best)
        plain = fit(uneven, replace(spec, class_weight=ClassWeight.NONE))
        assert np.linalg.norm(plain.weights[0] - best) > 1e-2 * np.linalg.norm(best)


def test_weights_are_recorded_and_named_as_a_frozen_part(uneven: Graph) -> None:
    built = build_model(
        uneven, ModelSpec(class_weight=ClassWeight.BALANCED), name="m", dataset="synthetic", split="full"
    )
    counted = balanced(uneven.labels[uneven.train_mask], 3)
    assert built.manifest.spec.class_weights == pytest.approx(tuple(counted), rel=1e-15)
    assert any("weights of the classes" in part for part in built.manifest.frozen_parts)


def test_weights_that_were_counted_are_not_counted_again(uneven: Graph) -> None:
    given = ModelSpec(class_weights=(0.5, 3.0, 1.0))
    frozen = replace(given, class_weight=ClassWeight.BALANCED)
    assert np.array_equal(fit(uneven, frozen).weights, fit(uneven, given).weights)
    assert with_class_weights(frozen, uneven) == frozen


def test_a_class_without_training_nodes_has_weight_one_and_a_corrected_label_another_weight(uneven: Graph) -> None:
    graph = replace(uneven, train_mask=uneven.train_mask & (uneven.labels != 1))
    spec = ModelSpec(loss=LossKind.SQUARED, hops=0, regularization=LAMBDA, class_weight=ClassWeight.BALANCED)
    node = int(np.flatnonzero(graph.train_mask)[0])
    model, report = fit(graph, spec).update(set_labels={node: 1})
    assert report.bound_after is not None
    assert report.bound_after.retrained
    labels = graph.labels.copy()
    labels[node] = 1
    weights = balanced(graph.labels[graph.train_mask], 3)
    assert weights[1] == 1.0
    rows = graph.train_mask
    best = weighted_fit(dense(graph.features)[rows].astype(float), labels[rows], weights, LossKind.SQUARED)
    assert np.linalg.norm(model.weights[0] - best) <= 1e-8 * np.linalg.norm(best)


def test_the_radius_of_weighted_losses_is_that_of_the_heaviest_class() -> None:
    plain, heavy = loss_of(LossKind.SOFTMAX), loss_of(LossKind.SOFTMAX, class_weights=(0.5, 4.0, 1.0))
    assert radius(heavy, 3, 1e-4) == pytest.approx(2.0 * radius(plain, 3, 1e-4), rel=1e-12)


def test_the_plain_hinge_trains_with_weights_and_real_targets_refuse_them(uneven: Graph) -> None:
    spec = ModelSpec(loss=LossKind.PLAIN_HINGE, solver=SolverKind.SGD, epochs=3, class_weight=ClassWeight.BALANCED)
    model, _ = fit(uneven, spec).forget(nodes=[1], repair=False)
    assert np.isfinite(model.predict()).all()
    X = dense(uneven.features)
    real = from_arrays(np.empty((2, 0), dtype=np.int64), X, X[:, 0].astype(float))
    with pytest.raises(TrainingError, match="class weights"):
        fit(real, ModelSpec(loss=LossKind.SQUARED, hops=0, class_weight=ClassWeight.BALANCED))
    for wrong in ({"class_weight": "heavy"}, {"class_weights": (0.0, 1.0, 1.0)}, {"class_weights": (1.0, 2.0)}):
        with pytest.raises(ProjectorError):
            fit(uneven, ModelSpec(**wrong))


def test_a_weighted_loss_has_the_derivatives_of_its_value() -> None:
    rng = np.random.default_rng(1)
    z, y = torch.from_numpy(rng.normal(size=(9, 3))), torch.arange(9) % 3
    direction = torch.from_numpy(rng.normal(size=(9, 3)))
    for kind in (LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE, LossKind.SQUARED):
        loss, step = loss_of(kind, class_weights=(0.2, 3.0, 1.0)), 1e-6
        slope = (loss.value(z + step * direction, y) - loss.value(z - step * direction, y)) / (2 * step)
        assert float((loss.residual(z, y) * direction).sum()) == pytest.approx(slope, rel=1e-7)
        assert float(loss.curvature(z, y).max()) <= loss.largest_curvature
