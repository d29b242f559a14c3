"""Descent on minibatches: its weights, its dual variable, and what it takes of memory and disk."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.disk.scratch import scratch_rows
from projector.errors import DeviceError, TrainingError
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.inputs import inputs_of
from projector.network.losses import loss_of
from projector.network.propagation import Propagator
from projector.network.representation import Representation
from projector.network.spec import Combine, LossKind, ModelSpec, SolverKind
from projector.solvers.descent import Descent, MomentumSteps, PegasosSteps, Steps, descend
from projector.solvers.objective import Objective, Point
from projector.training.fit import train
from tests.support.everyday import everyday
from tests.support.models.small_graphs import (
    dense_features,
    dense_representation,
    graph_of,
    side_by_side,
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
    """Nobody watches."""


def descended(
    graph: Graph, spec: ModelSpec, on_epoch: Callable[[int, Point], None] = ignore, scratch: Path | None = None
) -> Descent:
    objective = objective_of(graph, spec)
    start = torch.zeros((objective.representation.columns, graph.num_classes), dtype=torch.float64)
    return descend(objective, spec, start, on_epoch, partial(scratch_rows, folder=scratch))


def batches(count: int, spec: ModelSpec) -> list[np.ndarray]:
    """The rows of every batch of a training run."""
    generator = torch.Generator().manual_seed(spec.seed)
    order = [torch.randperm(count, generator=generator).numpy() for _ in range(spec.epochs)]
    return [rows[start : start + spec.batch_size] for rows in order for start in range(0, count, spec.batch_size)]


# Weights and their dual variable


@pytest.mark.parametrize("batch_size", everyday([0, 7, 1], 0, 7))
@pytest.mark.parametrize("spec", [SGD, replace(SGD, combine=Combine.CONCAT, label_hops=2)])
@pytest.mark.parametrize("loss", list(LossKind))
@pytest.mark.parametrize("make", [dense_features, sparse_features])
def test_the_dual_variable_of_every_loss_gives_its_weights(
    make: Callable[[], Graph], loss: LossKind, spec: ModelSpec, batch_size: int
) -> None:
    graph, spec = make(), replace(spec, loss=loss, batch_size=batch_size)
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


def test_pegasos_comes_as_close_to_the_optimum_as_its_dual_variable_proves() -> None:
    """The shares of steps in which margins were violated are feasible for the dual problem, whose value is a bound."""
    graph = dense_features()
    spec = replace(PEGASOS, batch_size=0, epochs=1500)
    H, y = dense_representation(graph, spec), graph.labels[graph.train_mask]
    signs = np.where(y[:, None] == np.arange(3), 1.0, -1.0)
    descent = descended(graph, spec)
    W, U = descent.point.W.numpy(), descent.dual.numpy()
    shares = signs * U * spec.regularization * len(H)
    assert shares.min() >= -1e-9
    assert shares.max() <= 1 + 1e-9
    lower = shares.mean(axis=0).sum() - spec.regularization / 2 * (W * W).sum()
    upper = np.maximum(0, 1 - signs * (H @ W)).mean(axis=0).sum() + spec.regularization / 2 * (W * W).sum()
    assert descent.point.value == pytest.approx(upper, rel=1e-12)
    assert -1e-9 <= upper - lower <= 1e-2 * upper


def test_pegasos_knows_neither_learning_rate_nor_momentum() -> None:
    first = descended(dense_features(), PEGASOS)
    other = descended(dense_features(), replace(PEGASOS, learning_rate=7.0, momentum=0.1))
    assert torch.equal(first.point.W, other.point.W)


@settings(deadline=None, max_examples=50)
@given(
    steps=st.integers(1, 30),
    rate=st.floats(1e-3, 2.0),
    momentum=st.floats(0.0, 0.99),
    regularization=st.floats(1e-6, 0.5),
    rule=st.sampled_from([MomentumSteps, PegasosSteps]),
)
def test_weights_are_the_shares_of_their_steps(
    steps: int, rate: float, momentum: float, regularization: float, rule: Callable[[torch.Tensor, ModelSpec], Steps]
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


def test_newton_on_the_plain_hinge_is_refused_before_it_starts() -> None:
    with pytest.raises(TrainingError, match="kinks") as refused:
        train(ModelSpec(loss=LossKind.PLAIN_HINGE), dense_features())
    assert "--solver sgd" in refused.value.remedy
    assert "--loss hinge" in refused.value.remedy


@pytest.mark.parametrize("loss", list(LossKind))
def test_no_weight_decay_is_refused_for_every_loss(loss: LossKind) -> None:
    with pytest.raises(TrainingError, match="regularization") as refused:
        train(replace(SGD, loss=loss, regularization=0.0), dense_features())
    assert "unique optimum" in refused.value.remedy


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


def peak_since_reset() -> int:
    """The most memory this process had since the last reset, in bytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def test_minibatches_take_memory_for_a_batch_and_not_for_the_representation(tmp_path: Path) -> None:
    n, d = 6_000, 3_000
    rng = np.random.default_rng(0)
    features = sp.random_array((n, d), density=0.002, rng=rng, format="csr")
    graph = graph_of([(0, 1)], np.zeros((n, 1)), rng.integers(0, 2, n).tolist())
    objective = objective_of(replace(graph, features=features), replace(SGD, combine=Combine.CONCAT))
    whole = objective.representation.rows * objective.representation.columns * 8
    start = torch.zeros((objective.representation.columns, 2), dtype=torch.float64)
    objective.at(start)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_since_reset()
    descend(objective, replace(SGD, batch_size=64, epochs=1), start, ignore, partial(scratch_rows, folder=tmp_path))
    assert peak_since_reset() - before <= whole / 2


class Interrupted(Exception):
    """What stops training from outside."""


def test_nothing_stays_on_disk_when_training_is_interrupted(tmp_path: Path) -> None:
    seen: list[list[Path]] = []

    def interrupt(epoch: int, point: Point) -> None:
        seen.append(list(tmp_path.iterdir()))
        if epoch == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        descended(dense_features(), SGD, interrupt, tmp_path)
    assert seen == [[], [], []]


def test_the_whole_batch_needs_no_disk(tmp_path: Path) -> None:
    descended(dense_features(), replace(SGD, batch_size=0, epochs=2), scratch=tmp_path / "missing")


def test_minibatches_without_a_folder_to_write_to_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="temporary file"):
        descended(dense_features(), SGD, scratch=tmp_path / "missing")


def test_training_keeps_its_rows_where_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="missing"):
        train(SGD, dense_features(), row_store=partial(scratch_rows, folder=tmp_path / "missing"))
    on_disk = train(SGD, dense_features(), row_store=partial(scratch_rows, folder=tmp_path))
    assert side_by_side(on_disk.weights.numpy()).any()
    assert torch.equal(on_disk.weights, train(SGD, dense_features()).weights)
