"""Newton's method at the bends of the smoothed hinge and near the optimum, and the objects that it leaves."""

import gc
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from projector.graph.features import FeatureMatrix
from projector.network.inputs import inputs_of
from projector.network.losses import Loss, Regression, loss_of
from projector.network.propagation import Propagator
from projector.network.representation import DenseRepresentation, Representation
from projector.network.spec import Combine, LossKind, ModelSpec
from projector.solvers.newton import MAX_ITERATIONS, Newton, minimise
from projector.solvers.objective import Objective, Point
from projector.solvers.single_precision import SingleHessian, SinglePrecision
from tests.support.mathematics.property_models import SmallModel
from tests.support.mathematics.retraining import Problem


@pytest.mark.parametrize(
    ("H", "labels", "regularization"),
    [
        ([[-500, 100], [-5, 2], [-5, 1]], [1, 1, 0], 1e-3),
        ([[-300, 200, 400], [2, 4, -1], [-2, -3, -4], [3, 2, 1]], [0, 0, 1, 0], 1e-2),
        ([[-2000, 2000, 4000], [4, -4, -5], [3, -2, -4]], [0, 1, 0], 1.0),
    ],
)
def test_a_row_far_larger_than_the_others_does_not_keep_it_from_the_optimum(
    H: list[list[float]], labels: list[int], regularization: float
) -> None:
    """Steps solved to a quarter of the gradient oscillated across that row's kink."""
    rows, y = np.array(H, dtype=np.float64), np.array(labels)
    # Nodes without edges: their rows of H are their features.
    spec = ModelSpec(hops=1, combine=Combine.LAST, loss=LossKind.HINGE, regularization=regularization)
    model = SmallModel(rows, np.zeros((len(y), len(y))), y, np.ones(len(y), dtype=np.bool_), spec, classes=2)
    objective = model.objective()
    solver = Newton(objective, objective.at(torch.zeros((rows.shape[1], 2), dtype=torch.float64)), 5e-9)
    while not solver.finished:
        solver.step()
    best, error = Problem(rows.astype(np.longdouble), y, 2, LossKind.HINGE, regularization).precise_minimum()
    assert error <= 1e-12 * np.linalg.norm(best)
    assert np.linalg.norm(solver.best.W.numpy() - best) <= 5e-9 * np.linalg.norm(best)
    assert solver.converged


@pytest.mark.parametrize("loss", [LossKind.SOFTMAX, LossKind.OVR])
def test_a_step_that_can_reach_the_tolerance_does(loss: LossKind) -> None:
    """Where the relative gradient is 4e-5, F is so nearly quadratic that one step ends at 5e-9."""
    rng = np.random.default_rng(0)
    rows, y = rng.standard_normal((60, 8)), rng.integers(0, 3, 60)
    rows[20:40], rows[:, 7] = rows[:20], rows[:, 6]
    rows[40:44] = 0.0
    spec = ModelSpec(hops=1, combine=Combine.LAST, loss=loss, regularization=1e-2)
    model = SmallModel(rows, np.zeros((60, 60)), y, np.ones(60, dtype=np.bool_), spec, classes=3)
    objective = model.objective()
    optimum = minimise(objective, torch.zeros((8, 3), dtype=torch.float64), 1e-13, lambda *_: None).point
    best, _ = Problem(rows.astype(np.longdouble), y, 3, loss, spec.regularization).precise_minimum()
    for seed in range(20):
        aside = torch.randn((8, 3), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        start = objective.at(optimum.W + 1e-6 * aside)
        start = objective.at(optimum.W + 4e-11 / start.relative_gradient * aside)
        assert start.relative_gradient == pytest.approx(4e-5, rel=1e-2)
        solver = Newton(objective, start, 5e-9)
        while not solver.finished:
            solver.step()
        assert solver.converged
        assert solver.iterations == 1
        assert np.linalg.norm(solver.best.W.numpy() - best) <= 5e-9 * np.linalg.norm(best)


def test_after_single_precision_it_continues_as_one_that_starts_there_in_double_precision() -> None:
    """How slow steps became at the rounding of single precision says nothing about those that follow."""
    rng = np.random.default_rng(0)
    H, labels = 100 * rng.standard_normal((300, 40)), torch.from_numpy(rng.integers(0, 3, 300))
    objective = dense_objective(H, loss_of(LossKind.SOFTMAX), labels, 1e-2)
    starts = []

    class Recording(SinglePrecision):
        def hessian(self, point: Point) -> SingleHessian:
            starts.append(point)
            return super().hessian(point)

    zero = objective.at(torch.zeros((40, 3), dtype=torch.float64))
    solver = Newton(objective, zero, 0.0, single=Recording(objective, objective.H()))
    start = solver.point
    while not starts or starts[-1] is start:
        products, start = solver.products, solver.point
        solver.step()
    fresh = Newton(objective, start, 0.0)
    while not fresh.finished:
        fresh.step()
        assert torch.equal(solver.point.W, fresh.point.W)
        assert solver.products - products == fresh.products
        assert solver.finished == fresh.finished
        solver.step()


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
def test_it_ends_at_the_rounding_of_f_whatever_the_size_of_f(scale: float) -> None:
    """Targets times a power of two multiply weights and F, and change none of their digits."""
    rng = np.random.default_rng(0)
    H, targets = rng.standard_normal((60, 8)), torch.from_numpy(rng.standard_normal((60, 2)))

    def ended(targets: torch.Tensor) -> Newton:
        objective = dense_objective(H, Regression(), targets, 1e-2)
        solver = Newton(objective, objective.at(torch.zeros((8, 2), dtype=torch.float64)), 0.0)
        while not solver.finished:
            solver.step()
        return solver

    expected, scaled = ended(targets), ended(targets * scale)
    assert expected.iterations < MAX_ITERATIONS
    assert scaled.iterations == expected.iterations
    assert torch.equal(scaled.best.W, expected.best.W * scale)


def dense_objective(H: np.ndarray, loss: Loss, labels: torch.Tensor, regularization: float) -> Objective:
    """Return the objective of nodes without edges: their rows of H are their features."""
    spec, n = ModelSpec(hops=1, combine=Combine.LAST), len(H)
    propagator = Propagator.build(sp.csr_array((n, n)), spec.propagation, spec.self_loops)
    inputs = inputs_of(spec, FeatureMatrix(H), sp.csr_array((n, 3)), propagator)
    return Objective(DenseRepresentation(inputs, np.arange(n)), loss, labels, regularization)


def test_training_leaves_nothing_of_the_graph_behind_for_the_garbage_collector() -> None:
    """A root finder's cycle kept H, including data deleted since, until the next garbage collection."""
    X = np.random.default_rng(0).normal(size=(30, 4))
    # Classes that a plane divides: whole steps stop short, and the search continues.
    features, labels = FeatureMatrix(X), (X[:, 0] > 0).astype(np.int64)
    spec = ModelSpec(loss=LossKind.OVR)
    propagator = Propagator.build(sp.csr_array((30, 30)), spec.propagation, spec.self_loops)
    inputs = inputs_of(spec, features, sp.csr_array((30, 2)), propagator)
    objective = Objective(Representation(inputs, np.arange(30)), loss_of(spec.loss), torch.from_numpy(labels), 1e-6)
    held = weakref.ref(features)
    gc.disable()
    try:
        assert minimise(objective, torch.zeros((4, 2), dtype=torch.float64), 1e-8, lambda *_: None).iterations > 3
        del features, inputs, objective
        assert held() is None
    finally:
        gc.enable()
