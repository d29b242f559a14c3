"""Newton's method with conjugate gradients for the training objective.

F is lambda-strongly convex, so |grad F(W)|_F / lambda bounds the distance to the optimum, and the method is run until
that bound is a rounding error of W. Training from zero needs no preconditioner as a rule: plain conjugate gradients
were faster than factors of the curvature on Cora, Citeseer, Pubmed and Amazon Photo, and with the Gram matrix of H and
the classes' mean curvature Cora, Amazon Photo and the arXiv graph took 0.9 to 1.3 times as many products. Where a loss
treats classes apart and steps become long, `ClassCurvature` helps. Next to a known optimum a factor of the curvature
there pays; it is given as `precondition`.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from projector.errors import TrainingError
from projector.solvers.class_curvature import ClassCurvature
from projector.solvers.line_search import step_length
from projector.solvers.objective import Objective, Point

#: A relative gradient above this is not an optimum, whatever stopped the iteration.
LARGEST_FLOOR = 1e-8
MAX_ITERATIONS = 200
_MAX_CG_STEPS = 5_000
#: A step is long enough when F's slope along it has fallen to this share of what it was.
_REMAINING_SLOPE = 0.1
#: Relative error of a value of F: below it, decreases of F are noise.
_VALUE_ROUNDING = 1e-14
#: Newton steps in a row that may fail to halve the best relative gradient once F itself cannot be told to fall.
_PATIENCE = 3

Preconditioner = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where the iteration stopped, with relative gradient at most max(tolerance, LARGEST_FLOOR)."""

    point: Point
    iterations: int


class Newton:
    """A minimisation of F from `start` (p, C), a step at a time.

    It ends at the tolerance, or at the best point seen when rounding or the number of iterations allows no more.
    """

    def __init__(
        self, objective: Objective, start: Tensor, tolerance: float, precondition: Preconditioner | None = None
    ) -> None:
        """`precondition` applies a symmetric positive semidefinite approximation of the inverse Hessian to (p, C).

        Iterates stay in `start` plus its range.
        """
        self._objective = objective
        self._tolerance = tolerance
        self._precondition = precondition
        self._stalled = 0
        self._solving: _ConjugateGradients | None = None
        self._point = objective.at(start)
        #: The point of smallest relative gradient.
        self.best = self._point
        self.iterations = 0
        #: Products with the Hessian.
        self.products = 0
        #: Nothing interrupts it; one that is computed elsewhere may be.
        self.interrupted = False
        self.finished = self.converged

    @property
    def point(self) -> Point:
        """Where the iteration is."""
        return self._point

    @property
    def converged(self) -> bool:
        """Whether the best relative gradient is within the tolerance."""
        return self.best.relative_gradient <= self._tolerance

    def step(self, until: float = math.inf) -> None:
        """One Newton step, or as much of it as fits before `time.monotonic()` reaches `until`.

        At least one product is taken; the next call goes on where this one stopped. Nothing once `finished`.
        """
        if self.finished:
            return
        if self._solving is None:
            self._solving = _ConjugateGradients(self._objective, self._point, self._precondition)
        ended = self._solving.advance(until)
        self.products += self._solving.take_count()
        if ended:
            self._move(self._solving.direction)
            self._solving = None

    def _move(self, direction: Tensor) -> None:
        point = self._point
        decrease = -float((point.gradient * direction).sum())
        self.iterations += 1
        if not decrease > 0.0:
            self.finished = True
            return
        length = step_length(self._objective, point, direction, _REMAINING_SLOPE)
        following = self._objective.at(point.W + length * direction)
        at_floor = decrease <= _VALUE_ROUNDING * abs(point.value)
        halved = following.relative_gradient <= self.best.relative_gradient / 2
        self._stalled = self._stalled + 1 if at_floor and not halved else 0
        self._point = following
        if following.relative_gradient < self.best.relative_gradient:
            self.best = following
        self.finished = self.converged or self._stalled == _PATIENCE or self.iterations == MAX_ITERATIONS


class _ConjugateGradients:
    """An approximate solution of Hessian @ direction = -gradient at one point, from 0.

    Every iterate is a descent direction; the accuracy asked for grows as the gradient falls, which makes Newton's
    method superlinear (Dembo, Eisenstat and Steihaug, 1982).
    """

    def __init__(self, objective: Objective, point: Point, precondition: Preconditioner | None) -> None:
        self._hessian = objective.hessian(point)
        self._precondition = precondition
        self.direction = torch.zeros_like(point.W)
        self._remainder = -point.gradient
        self._goal = float(torch.linalg.norm(self._remainder)) * min(0.25, max(point.relative_gradient**0.5, 1e-6))
        self._search = self._remainder.clone() if precondition is None else precondition(self._remainder).clone()
        self._weight = float((self._remainder * self._search).sum())
        self._steps = self._counted = 0

    def advance(self, until: float) -> bool:
        """At least one step, and more until `time.monotonic()` reaches `until`; whether the direction is done."""
        while True:
            product = self._hessian(self._search)
            self._steps += 1
            curvature = float(torch.tensordot(self._search, product))
            if curvature <= 0.0:
                # Only rounding does this to a positive definite Hessian.
                return True
            length = self._weight / curvature
            self.direction.add_(self._search, alpha=length)
            self._remainder.sub_(product, alpha=length)
            remaining = float(torch.linalg.norm(self._remainder))
            if remaining <= self._goal or self._steps == _MAX_CG_STEPS:
                return True
            preconditioned, previous = self._remainder, self._weight
            if self._precondition is None:
                self._weight = remaining**2
            else:
                preconditioned = self._precondition(self._remainder)
                self._weight = float((self._remainder * preconditioned).sum())
            torch.add(preconditioned, self._search, alpha=self._weight / previous, out=self._search)
            if time.monotonic() >= until:
                return False

    def take_count(self) -> int:
        """Products since this was last asked."""
        taken, self._counted = self._steps - self._counted, self._steps
        return taken


def minimise(
    objective: Objective, start: Tensor, tolerance: float, on_iteration: Callable[[int, Point], None]
) -> Minimum:
    """Minimises F from `start` (p, C) until the relative gradient is at most `tolerance`.

    Stops at the best point seen when rounding allows no further progress. Raises TrainingError when that point's
    relative gradient exceeds `LARGEST_FLOOR`, or when the iterations do not suffice.
    """
    curvature = None if objective.loss.coupled else ClassCurvature(objective)
    newton = Newton(objective, start, tolerance, curvature)
    on_iteration(0, newton.point)
    while not newton.finished:
        before = newton.products
        newton.step()
        on_iteration(newton.iterations, newton.point)
        if curvature is not None and not newton.finished:
            curvature.adapt(newton.point, newton.products - before)
    if newton.best.relative_gradient <= max(tolerance, LARGEST_FLOOR):
        return Minimum(newton.best, newton.iterations)
    why = (
        f"Training did not converge in {MAX_ITERATIONS} Newton steps"
        if newton.iterations == MAX_ITERATIONS
        else f"Rounding stops training above {LARGEST_FLOOR:.0e}, where the weights would not be a known optimum"
    )
    raise TrainingError(
        f"{why}; the relative gradient is {newton.best.relative_gradient:.1e}, the tolerance {tolerance:.1e}.",
        "Raise --lambda, or scale the features to similar sizes.",
    )
