"""Descent on minibatches: its weights, its dual variable, and its use of memory and disk."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.errors import DeviceError, TrainingError
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.inputs import inputs_of
from projector.network.losses import loss_of
from projector.network.propagation import Propagator
from projector.network.representation import Representation
from projector.network.spec import Combine, LossKind, ModelSpec, SolverKind
from projector.solvers.descent import Descent, MomentumSteps, PegasosSteps, descend
from projector.solvers.objective import Objective, Point
from projector.training.fit import train
from tests.support.everyday import every_pair
from tests.support.models.small_graphs import (
    dense_features,
    dense_representation,
    sparse_features,
)

SGD = ModelSpec(solver=SolverKind.SGD, learning_rate=0.05, batch_size=7, epochs=40)
PEGASOS = replace(SGD, loss=LossKind.PLAIN_HINGE, regularization=0.05)


def objective_of(graph: Graph, spec: ModelSpec) -> Objective:
    propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops)
    labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
    inputs = inputs_of(spec, FeatureMatrix(graph.features.astype(np.float64)), labels, propagator)
    representation = Representation(inputs, np.flatnonzero(graph.train_mask).astype(np.int64))
    y = torch.from_numpy(graph.labels[graph.train_mask])
    return Objective(representation, loss_of(spec.loss), y, spec.regularization)


def ignore(epoch: int, point: Point) -> None:
    """Observe nothing."""


def descended(graph: Graph, spec: ModelSpec, on_epoch: Callable[[int, Point], None] = ignore) -> Descent:
    objective = objective_of(graph, spec)
    start = torch.zeros((objective.representation.columns, graph.num_classes), dtype=torch.float64)
    return descend(objective, spec, start, on_epoch)


def batches(count: int, spec: ModelSpec) -> list[np.ndarray]:
    """Return the rows of every batch of a training run."""
    generator = torch.Generator().manual_seed(spec.seed)
    order = [torch.randperm(count, generator=generator).numpy() for _ in range(spec.epochs)]
    return [rows[start : start + spec.batch_size] for rows in order for start in range(0, count, spec.batch_size)]


# Weights and their dual variable


@every_pair(
    make=[dense_features, sparse_features],
    loss=list(LossKind),
    spec=[SGD, replace(SGD, combine=Combine.CONCAT, label_hops=2)],
    batch_size=[0, 7, 1],
)
def test_the_dual_variable_of_every_loss_gives_its_weights(
    make: Callable[[], Graph], loss: LossKind, spec: ModelSpec, batch_size: int
) -> None:
    # One row at a time makes the squared loss diverge at the rate of the others.
    rate = 0.005 if batch_size == 1 else spec.learning_rate
    graph, spec = make(), replace(spec, loss=loss, batch_size=batch_size, learning_rate=rate)
    descent = descended(graph, spec)
    W, H = descent.point.W.numpy(), dense_representation(graph, spec)
    assert np.linalg.norm(W) > 0
    assert np.linalg.norm(W - H.T @ descent.dual.numpy()) <= 1e-12 * np.linalg.norm(W)


@pytest.mark.parametrize("loss", [LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE])
def test_minibatches_with_momentum_are_those_of_torchs_optimiser(loss: LossKind) -> None:
    graph, spec = dense_features(), replace(SGD, loss=loss, momentum=0.8, regularization=0.01, label_hops=1)
    H, y = torch.from_numpy(dense_representation(graph, spec)), torch.from_numpy(graph.labels[graph.train_mask])
    W = torch.zeros((H.shape[1], 3), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([W], lr=spec.learning_rate, momentum=0.8, weight_decay=0.01)
    for rows in batches(len(H), spec):
        residual = loss_of(loss).residual((H[rows] @ W).detach(), y[rows])
        W.grad = H[rows].T @ residual / len(rows)
        optimiser.step()
    assert torch.allclose(descended(graph, spec).point.W, W.detach(), rtol=1e-10, atol=1e-13)


def test_the_plain_hinge_takes_the_steps_of_pegasos() -> None:
    graph, spec = dense_features(), PEGASOS
    H, y = dense_representation(graph, spec), graph.labels[graph.train_mask]
    signs = np.where(y[:, None] == np.arange(3), 1.0, -1.0)
    W = np.zeros((H.shape[1], 3))
    for t, rows in enumerate(batches(len(H), spec), start=1):
        violated = signs[rows] * (H[rows] @ W) < 1
        step = 1 / (spec.regularization * t)
        W = (1 - 1 / t) * W + step / len(rows) * H[rows].T @ (violated * signs[rows])
    assert np.allclose(descended(graph, spec).point.W.numpy(), W, rtol=1e-9, atol=1e-11)


@settings(deadline=None, max_examples=50)
@given(
    steps=st.integers(1, 30),
    rate=st.floats(1e-3, 2.0),
    momentum=st.floats(0.0, 0.99),
    regularization=st.floats(1e-6, 0.5),
    rule=st.sampled_from([MomentumSteps, PegasosSteps]),
)
def test_weights_are_the_shares_of_their_steps(
    steps: int, rate: float, momentum: float, regularization: float, rule: type[MomentumSteps | PegasosSteps]
) -> None:
    spec = ModelSpec(learning_rate=rate, momentum=momentum, regularization=regularization)
    gradients = torch.randn((steps, 3, 2), dtype=torch.float64, generator=torch.Generator().manual_seed(steps))
    run = rule(torch.zeros((3, 2), dtype=torch.float64), spec)
    for gradient in gradients:
        run.take(gradient)
    shares = torch.from_numpy(run.shares(steps))
    size = torch.tensordot(shares.abs(), gradients.abs(), dims=1)
    assert bool(((run.W - torch.tensordot(shares, gradients, dims=1)).abs() <= 1e-13 * size).all())


# Refusals


@pytest.mark.parametrize("loss", list(LossKind))
def test_no_weight_decay_is_refused_for_every_loss(loss: LossKind) -> None:
    with pytest.raises(TrainingError, match="regularization") as refused:
        train(replace(SGD, loss=loss, regularization=0.0), dense_features())
    assert "unique optimum" in refused.value.remedy


@pytest.mark.parametrize("regularization", [1e-300, 1e200])
def test_a_lambda_that_overflows_what_is_computed_with_it_is_refused(regularization: float) -> None:
    with pytest.raises(TrainingError, match="regularization") as refused:
        train(ModelSpec(regularization=regularization), dense_features())
    assert "1e-30 to 1e+30" in refused.value.remedy


# Divergence


def steep() -> Graph:
    graph = dense_features()
    return replace(graph, features=np.asarray(graph.features) * 1e4)


@pytest.mark.parametrize("batch_size", [0, 7])
@pytest.mark.parametrize("loss", [LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE])
def test_divergence_names_a_learning_rate_at_which_training_descends(loss: LossKind, batch_size: int) -> None:
    spec = replace(SGD, loss=loss, learning_rate=10.0, batch_size=batch_size)
    with pytest.raises(TrainingError, match="diverged in epoch") as refused:
        descended(steep(), spec)
    rate = float(refused.value.remedy.split("rate of ")[1].split(" or lower")[0])
    values: list[float] = []
    descended(steep(), replace(spec, learning_rate=rate), lambda epoch, point: values.append(point.value))
    assert values[-1] < values[0]


def test_features_so_large_that_pegasos_leaves_the_numbers_are_refused() -> None:
    graph = dense_features()
    graph = replace(graph, features=np.asarray(graph.features) * 1e160)
    with pytest.raises(TrainingError, match="range of numbers") as refused:
        descended(graph, PEGASOS)
    assert "--lambda" in refused.value.remedy


# Memory and disk


@pytest.fixture
def rows_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for rows in files, which even small ones use."""
    monkeypatch.setattr("projector.device.SELDOM_BYTES", 1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def is_mapped(folder: Path) -> bool:
    return str(folder) in Path("/proc/self/maps").read_text()


def test_large_rows_of_minibatches_are_in_a_file_without_a_name_and_give_the_same_weights(rows_in_a_file: Path) -> None:
    mapped = []

    def look(epoch: int, point: Point) -> None:
        mapped.append(is_mapped(rows_in_a_file))
        assert not list(rows_in_a_file.iterdir())

    found = descended(dense_features(), SGD, look)
    assert any(mapped)
    assert not is_mapped(rows_in_a_file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("projector.device.SELDOM_BYTES", 1 << 30)
        assert torch.equal(descended(dense_features(), SGD).point.W, found.point.W)


def test_minibatches_without_a_folder_to_write_to_are_refused(rows_in_a_file: Path) -> None:
    rows_in_a_file.rmdir()
    with pytest.raises(DeviceError, match="temporary file"):
        descended(dense_features(), SGD)
