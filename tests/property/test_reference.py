"""Solvers and forgetting against scikit-learn: solver x loss x structure x dtype x layout x singular.

Weights are compared with those of another program on a dense representation. That program's own error is bounded by its
gradient, in extended precision; the certificate of the code under test is added.
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.certificate import certifiable, certify
from projector.forgetting.optimum import stacked
from projector.forgetting.status import LARGEST_TOLERANCE, SMALLEST_TOLERANCE, TOLERANCE, RepairStatus
from projector.graph.graph import Features
from projector.network.spec import Combine, LossKind, ModelSpec, PropagationKind
from projector.solvers import single_precision as singles
from projector.solvers.class_curvature import ClassCurvature
from projector.solvers.descent import descend
from projector.solvers.newton import Newton, minimise
from projector.solvers.objective import Objective
from projector.solvers.preconditioners import block_steps
from tests.support.everyday import covering, everyday, products
from tests.support.mathematics.property_models import SmallModel
from tests.support.mathematics.references import dense_representation, reference
from tests.support.mathematics.retraining import Matrix, Problem
from tests.support.models.structures import (
    STRUCTURES,
    Rows,
    all_equal,
    columns_of_different_scale,
    duplicated_rows,
    identical_one_hot,
    rank_deficient,
    single_node,
    wide,
    with_zero_rows,
)

#: Maximum error of a valid reference, relative to its weights.
CLOSE = 1e-6
#: Rounding of sums in double precision, relative to their size.
ROUNDING = 1e-12
#: Weights (p, C) and their dual variable U (n_train, C).
Solved: TypeAlias = tuple[Tensor, Tensor]
Solver: TypeAlias = "Callable[[World], Solved]"


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    solver: Solver
    loss: LossKind
    structure: Callable[[np.random.Generator], Rows]
    dtype: type[np.floating]
    layout: str
    #: Whether the first column appears twice, so that lambda alone makes the Hessian regular.
    singular: bool

    def __str__(self) -> str:
        parts = [self.solver.__name__, self.loss.value, self.structure.__name__, self.dtype.__name__, self.layout]
        return "-".join([*parts, "singular"] if self.singular else parts)


@dataclass(frozen=True, eq=False)
class World:
    """A graph whose features are known in the precision of the reference's check."""

    model: SmallModel
    X: Matrix
    adjacency: Matrix
    labels: NDArray[np.int64]
    training: NDArray[np.bool_]
    #: The order in which the nodes are forgotten.
    order: NDArray[np.int64]
    #: Offset of a start beside the optimum, (p, C).
    noise: Matrix

    @property
    def problem(self) -> Problem:
        """Return the objective over the live training nodes, on the live graph."""
        rows = self.training & self.model.live
        H = dense_representation(self.model.spec, self.X, self.adjacency, self.model.live)[rows]
        spec = self.model.spec
        return Problem(H, self.labels[rows], self.model.classes, spec.loss, spec.regularization)

    def start(self) -> Tensor:
        return torch.zeros(self.noise.shape, dtype=torch.float64)


def world_of(cell: Cell) -> World:
    """Return the features of the cell's structure on a random graph of two to four classes."""
    rng = np.random.default_rng(STRUCTURES.index(cell.structure))
    X = cell.structure(rng)
    if cell.singular:
        X = np.c_[X, X[:, 0]]
    n, classes = len(X), int(rng.integers(2, 5))
    labels, training = rng.integers(0, classes, n), rng.random(n) < 0.7
    training[0] = True
    upper = np.triu(rng.random((n, n)) < 3.0 / n, 1)
    adjacency = (upper | upper.T).astype(np.float64)
    spec = ModelSpec(
        loss=cell.loss,
        combine=list(Combine)[int(rng.integers(2))],
        propagation=list(PropagationKind)[int(rng.integers(2))],
        self_loops=float(rng.integers(2)),
        # Descent must make progress in a few hundred epochs.
        regularization=0.1 if cell.solver in (descent, sgd) else 10.0 ** rng.uniform(-4, -2),
    )
    stored = X.astype(cell.dtype)
    features: Features = stored if cell.layout == "dense" else sp.csr_array(stored)
    return World(
        model=SmallModel(features, adjacency, labels, training, spec, classes),
        X=stored.astype(np.longdouble),
        adjacency=adjacency,
        labels=labels,
        training=training,
        order=rng.permutation(n),
        noise=rng.standard_normal((X.shape[1] * len(spec.block_hops), classes)),
    )


def newton(world: World) -> Solved:
    objective = world.model.objective()
    point = minimise(objective, world.start(), world.model.spec.tolerance, lambda iteration, point: None).point
    return point.W, objective.dual(point)


def newton_by_class(world: World) -> Solved:
    """Solve with the factors of each class at every step, however cheap products are."""
    objective = world.model.objective()
    curvature = ClassCurvature(objective)
    solver = Newton(objective, objective.at(world.start()), world.model.spec.tolerance, curvature)
    while not solver.finished:
        solver.step()
        curvature.adapt(solver.point, sys.maxsize)
    return solver.best.W, objective.dual(solver.best)


def single_precision(world: World) -> Solved:
    """Solve from 1 % beside the optimum as in a repair: with the Hessian's blocks and single-precision products."""
    objective, optimum = world.model.rows.objective(world.model.spec.regularization), reference(world.problem)
    noise = world.noise * (0.01 * np.linalg.norm(optimum) / np.linalg.norm(world.noise))
    start = objective.at(torch.from_numpy(optimum + noise))
    *_, blocks = block_steps(objective, start, world.model.rows)
    assert blocks is not None
    solver = Newton(objective, start, TOLERANCE / 2, blocks.solve, singles.single_precision(objective))
    while not solver.finished:
        solver.step()
    return solver.best.W, objective.dual(solver.best)


def descent(world: World) -> Solved:
    """Descend with all rows at a time."""
    return _descended(world, batch_size=0, share=0.5)


def sgd(world: World) -> Solved:
    """Descend with minibatches, at a rate that their noise allows."""
    return _descended(world, batch_size=8, share=0.02)


def _descended(world: World, batch_size: int, share: float) -> Solved:
    """Run 200 epochs at a `share` of the longest rate that the curvature of all rows allows."""
    objective = world.model.objective()
    largest = float(np.linalg.norm(world.problem.H.astype(np.float64), 2)) ** 2 / objective.weighted_rows
    rate = share / (objective.loss.largest_curvature * largest + world.model.spec.regularization)
    spec = replace(world.model.spec, learning_rate=rate, batch_size=batch_size, epochs=200)
    found = descend(objective, spec, world.start(), lambda epoch, point: None)
    return found.point.W, found.dual


#: Structures of every run; the sweeps take all.
EVERYDAY = [rank_deficient, duplicated_rows, with_zero_rows, columns_of_different_scale, single_node]

CHOICES: Mapping[str, Sequence[object]] = {
    "solver": [newton, newton_by_class, single_precision, descent, sgd],
    "loss": list(LossKind),
    "structure": STRUCTURES,
    "dtype": [np.float32, np.float64],
    "layout": ["dense", "csr"],
    "singular": [False, True],
}


def allowed(choice: Mapping[str, object]) -> bool:
    """Whether a choice is valid: only descent takes the plain hinge, and class curvature needs losses with separate
    classes.
    """
    solver, loss = choice["solver"], choice["loss"]
    if loss is LossKind.PLAIN_HINGE:
        return solver in (descent, sgd)
    return not (solver is newton_by_class and loss is LossKind.SOFTMAX)


def repairable(choice: Mapping[str, object]) -> bool:
    """Whether a repair exists: the plain hinge has no certificate, and so none."""
    return allowed(choice) and choice["loss"] is not LossKind.PLAIN_HINGE


def descended_alone(choice: Mapping[str, object]) -> bool:
    """Whether a choice is valid and has no repair."""
    return allowed(choice) and choice["loss"] is LossKind.PLAIN_HINGE


def few(valid: Callable[[Mapping[str, object]], bool]) -> list[dict[str, object]]:
    """Return a few choices that cover every valid pair, of the structures of every run."""
    return covering({**CHOICES, "structure": EVERYDAY}, valid)


def cells(choices: Iterable[Mapping[str, Any]]) -> list[Cell]:
    return [Cell(**choice) for choice in choices]


@dataclass(frozen=True)
class Compared:
    """Distances between weights, in Frobenius norms."""

    #: From the code's weights to the reference's; at most `bound` + `slack`.
    distance: float
    #: The code's own certificate.
    bound: float
    #: The bound from the reference's gradient.
    slack: float
    #: |W| of the reference.
    size: float


@dataclass(frozen=True, eq=False)
class Target:
    """The reference for weights of a world in its current state."""

    problem: Problem
    objective: Objective
    #: The reference's weights, (p, C).
    expected: Matrix

    @classmethod
    def of(cls, world: World) -> "Target":
        problem = world.problem
        return cls(problem, world.model.objective(), reference(problem))

    def compared(self, W: Tensor) -> Compared:
        """Check the certificate of W against the reference's weights, and against the formula's gradient."""
        found = Compared(
            distance=float(np.linalg.norm(W.numpy() - self.expected)),
            bound=certify(self.objective, self.objective.at(W)).bound,
            slack=self.problem.distance_bound(self.expected.astype(self.problem.H.dtype)),
            size=float(np.linalg.norm(self.expected)),
        )
        assert found.slack <= CLOSE * found.size
        assert found.distance <= found.bound + found.slack
        assert self.problem.distance_bound(W.numpy().astype(self.problem.H.dtype)) <= found.bound
        return found

    def compared_by_duality(self, W: Tensor, dual: Tensor) -> Compared:
        """Check the plain hinge in the same way: |W - W*|^2 <= 2 (F(W) - D) / lambda, with D the value of the dual at
        U.
        """
        problem = self.problem
        n, strength = len(problem.H), problem.regularization
        a = strength * n * problem.signs * dual.numpy()
        assert a.min() >= -ROUNDING
        # The last minibatch of an epoch may be smaller, so its rows may weigh more than others.
        a = a / max(float(a.max()), 1.0)
        spanned = problem.H.T @ (problem.signs * a) / (strength * n)
        lowest = float(a.sum()) / n - strength / 2 * float((spanned**2).sum())

        def radius(V: Matrix) -> float:
            slack = np.clip(1.0 - problem.signs * (problem.H @ V), 0.0, None)
            value = float(slack.sum()) / n + strength / 2 * float((V**2).sum())
            return float(np.sqrt(2 * max(value - lowest, ROUNDING) / strength))

        found = Compared(
            distance=float(np.linalg.norm(W.numpy() - self.expected)),
            bound=radius(W.numpy()),
            slack=radius(self.expected),
            size=float(np.linalg.norm(self.expected)),
        )
        assert found.distance <= found.bound + found.slack
        # The reference must have the smaller objective to be one.
        assert found.slack <= found.bound
        return found

    def identity_error(self, W: Tensor, dual: Tensor) -> float:
        """Return |W - H^T U|, with the explicit H."""
        return float(np.linalg.norm(W.numpy() - self.problem.H.T @ dual.numpy()))


def check_solver(cell: Cell, world: World, solved: Solved) -> Compared:
    """Check that a solver's weights are the reference's within their certificate, and that W = H^T U."""
    W, dual = solved
    target, plain = Target.of(world), cell.loss is LossKind.PLAIN_HINGE
    assert certifiable(target.objective.loss, world.model.spec.regularization) is not plain
    found = target.compared_by_duality(W, dual) if plain else target.compared(W)
    if cell.solver in (descent, sgd):
        assert target.identity_error(W, dual) <= ROUNDING * found.size
        # Nearer than its start, at zero; Pegasos' steps come near whatever the curvature.
        assert found.distance <= (0.3 if plain else 0.95) * found.size
    else:
        assert target.identity_error(W, dual) <= found.bound
        assert found.bound <= TOLERANCE * found.size
    return found


def check_forgetting(
    world: World, solved: Solved, batches: Sequence[NDArray[np.int64]], tolerance: float = TOLERANCE
) -> list[Compared]:
    """After each batch, the repaired weights are the reference's on the remaining graph."""
    model = world.model
    model.begin(*solved)
    found = []
    for nodes in batches:
        model.project(nodes)
        target = Target.of(world)
        target.compared(stacked(model.state))
        outcome = model.repair(tolerance=tolerance)
        W = stacked(model.state)
        found.append(target.compared(W))
        assert outcome.after is not None
        assert outcome.after.within(tolerance)
        assert (outcome.status, outcome.tolerance) == (RepairStatus.CONVERGED, tolerance)
        # The certificate's own share refers to the weights that it was computed for.
        assert found[-1].bound <= tolerance * (1.0 + tolerance) * found[-1].size
        assert target.identity_error(W, target.objective.dual(target.objective.at(W))) <= found[-1].bound
    return found


def two_batches(world: World) -> list[NDArray[np.int64]]:
    """Return one node, then a quarter of the others; for a single node, one batch."""
    return [nodes for nodes in np.split(world.order[: 1 + len(world.order) // 4], [1]) if nodes.size]


def check(cell: Cell) -> None:
    """Check what a solver finds, and where forgetting ends that begins there."""
    world = world_of(cell)
    solved = cell.solver(world)
    check_solver(cell, world, solved)
    if cell.loss is not LossKind.PLAIN_HINGE:
        check_forgetting(world, solved, two_batches(world))


@pytest.mark.parametrize("cell", cells(few(repairable) + few(descended_alone)), ids=str)
def test_a_solver_and_forgetting_end_at_the_weights_of_the_reference(cell: Cell) -> None:
    check(cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells(filter(allowed, products(CHOICES))), ids=str)
def test_every_solver_and_all_forgetting_end_at_the_weights_of_the_reference(cell: Cell) -> None:
    check(cell)


@pytest.mark.parametrize(
    ("structure", "tolerance"),
    everyday(
        list(itertools.product(STRUCTURES, (SMALLEST_TOLERANCE, LARGEST_TOLERANCE))),
        (wide, SMALLEST_TOLERANCE),
        (all_equal, SMALLEST_TOLERANCE),
        (all_equal, LARGEST_TOLERANCE),
        (identical_one_hot, LARGEST_TOLERANCE),
        (single_node, SMALLEST_TOLERANCE),
        (single_node, LARGEST_TOLERANCE),
    ),
)
def test_forgetting_ends_as_near_as_it_is_asked_to(
    structure: Callable[[np.random.Generator], Rows], tolerance: float
) -> None:
    losses = (LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE, LossKind.SQUARED)
    for loss, singular in itertools.product(losses, (False, True)):
        world = world_of(Cell(newton, loss, structure, np.float64, "dense", singular))
        check_forgetting(world, newton(world), two_batches(world), tolerance)
