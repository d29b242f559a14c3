"""Newton's method with conjugate gradients for the training objective.

F is lambda-strongly convex, so |grad F(W)|_F / lambda bounds the distance to the optimum. The method runs until that
bound is a rounding error of W. Gradients are always in double precision. A step's equations are solved in single
precision if H is available in it; the next gradient contains what that leaves. Such steps may once increase the
gradient, which falls later (in the energy norm each gains a factor of about eps sqrt(kappa)). If they keep doing so,
the equations are solved in double precision from then on.

The squared loss is trained by one factorisation. Its Hessian is constant, so its inverse leads to the optimum in one
step, and a second step removes what rounding left.

`precondition` takes a preconditioner. Without one conjugate gradients are fastest if products are quick: on Cora,
Citeseer and Pubmed when training from zero.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from projector.errors import TrainingError
from projector.network.losses import LinearMap
from projector.solvers.class_curvature import ClassCurvature, class_curvature
from projector.solvers.kernel import KernelObjective, kernel_of, takes_kernel
from projector.solvers.line_search import step_length
from projector.solvers.normal_equations import normal_factor, takes_normal_equations
from projector.solvers.objective import LARGEST_FLOOR, Objective, Point
from projector.solvers.preconditioners import AdaptiveBlocks
from projector.solvers.single_precision import SinglePrecision, single_precision

MAX_ITERATIONS = 200
_MAX_CG_STEPS = 5_000
#: Smallest share of the gradient to solve to, in double and in single precision.
_PRECISE, _SINGLE = 1e-6, 1e-4
#: Share of the tolerance that the last step may leave of its equations. Rounding and the shape of F add the rest.
_LEFT_AT_END = 0.5
#: Steps in single precision that may leave more than half of their equations.
_MISSES = 1
#: A step is long enough once F's slope along it has fallen to this share.
_REMAINING_SLOPE = 0.1
#: Relative error of a value of F; smaller decreases are noise.
_VALUE_ROUNDING = 1e-14
#: Consecutive Newton steps that may fail to halve the best relative gradient once decreases of F are noise.
_PATIENCE = 3

Preconditioner = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Minimum:
    """The final point, with relative gradient at most max(tolerance, LARGEST_FLOOR)."""

    point: Point
    iterations: int


class Newton:
    """A minimisation of F from `start`, one step at a time.

    It ends at the tolerance, or at the best point seen once rounding or the iteration limit allows no more.
    """

    def __init__(
        self,
        objective: Objective,
        start: Point,
        tolerance: float,
        precondition: Preconditioner | None = None,
        single: SinglePrecision | None = None,
    ) -> None:
        """`precondition` applies a symmetric positive semidefinite approximation of the inverse Hessian to (p, C).

        Iterates stay in `start` plus its range. With `single` the steps are solved in single precision.
        """
        self._objective = objective
        self._tolerance = tolerance
        self._precondition = precondition
        self._single = single
        self._misses = 0
        #: Consecutive steps that did not halve the best relative gradient, and those of them at rounding.
        self._slow = 0
        self._stalled = 0
        self._solving: _ConjugateGradients | None = None
        self._point = start
        #: The point with the smallest relative gradient.
        self.best = self._point
        self.iterations = 0
        #: Number of products with the Hessian.
        self.products = 0
        #: This one runs to its end; a minimisation elsewhere may be interrupted.
        self.interrupted = False
        self.finished = self.converged

    @property
    def point(self) -> Point:
        """The current point."""
        return self._point

    @property
    def converged(self) -> bool:
        """Whether the best relative gradient is within the tolerance."""
        return self.best.relative_gradient <= self._tolerance

    def step(self, until: float = math.inf) -> None:
        """Take one Newton step, or as much of it as fits before `time.monotonic()` reaches `until`.

        Takes at least one product; the next call continues. Does nothing once `finished`.
        """
        if self.finished:
            return
        if self._solving is None:
            product = (self._single or self._objective).hessian(self._point)
            precision = torch.float64 if self._single is None else torch.float32
            goal = _share(self._point.relative_gradient, self._tolerance, precision, self._slow)
            self._solving = _ConjugateGradients(product, self._point, self._precondition, precision, goal)
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
            self._end()
            return
        following = self._searched(direction, decrease)
        at_floor = decrease <= _VALUE_ROUNDING * abs(point.value)
        halved = following.relative_gradient <= self.best.relative_gradient / 2
        self._slow = 0 if halved else self._slow + 1
        self._stalled = self._stalled + 1 if at_floor and not halved else 0
        if self._single is not None and not halved:
            self._judge(direction)
        self._point = following
        if following.relative_gradient < self.best.relative_gradient:
            self.best = following
        if self.converged or self.iterations == MAX_ITERATIONS:
            self.finished = True
        elif self._stalled == _PATIENCE:
            self._end()

    def _searched(self, direction: Tensor, decrease: float) -> Point:
        """Return the point one whole step away, or at the length where the slope along `direction` falls enough."""
        whole = self._objective.at(self._point.W + direction)
        slope = abs(float((whole.gradient * direction).sum()))
        # For a quadratic F, the slope after a whole step is rounding.
        if self._objective.loss.quadratic or slope <= _REMAINING_SLOPE * decrease:
            return whole
        length = step_length(self._objective, self._point, direction, _REMAINING_SLOPE)
        return whole if length == 1.0 else self._objective.at(self._point.W + length * direction)

    def _judge(self, direction: Tensor) -> None:
        """Give up single precision if it, rather than F's shape, spoiled a step."""
        left = self._objective.hessian(self._point)(direction).add_(self._point.gradient)
        self._misses += float(torch.linalg.norm(left)) > 0.5 * float(torch.linalg.norm(self._point.gradient))
        if self._misses > _MISSES:
            self._single = None

    def _end(self) -> None:
        """Stop at the rounding of double precision, or leave single precision at its rounding."""
        self.finished = self._single is None
        self._single, self._slow, self._stalled = None, 0, 0
        if not self.finished:
            self._point = self.best


def _share(relative_gradient: float, tolerance: float, precision: torch.dtype, slow: int) -> float:
    """Return the share of the gradient that a step may leave, after `slow` steps that did not halve the gradient.

    It falls with the gradient, which makes Newton's method superlinear (Dembo, Eisenstat and Steihaug, 1982). It
    reaches half of the tolerance if one step can: its precision must allow that, and so must F, which differs from
    its quadratic model by a share of about the relative gradient. [arXiv: a quarter of that.]

    It also falls with `slow`, because of the smoothed hinge: a loosely solved step follows only a row far larger than
    the others. It ends just beyond that row's kink, where the next step is blind to the row. Exact steps with exact
    searches do end, shown for the squared hinge (Keerthi and DeCoste, 2005).
    """
    smallest = _PRECISE if precision == torch.float64 else _SINGLE
    reaching = _LEFT_AT_END * tolerance / relative_gradient
    share = reaching if reaching >= max(relative_gradient, smallest) else math.sqrt(relative_gradient)
    return max(min(0.25, share) / 2.0**slow, smallest)


class _ConjugateGradients:
    """An approximate solution of Hessian @ direction = -gradient at one point, starting from 0.

    Every iterate is a descent direction.
    """

    def __init__(
        self,
        hessian: LinearMap,
        point: Point,
        precondition: Preconditioner | None,
        precision: torch.dtype,
        goal: float,
    ) -> None:
        """`hessian` is that of F at `point`, in `precision`; `goal` is the share of the gradient that may remain."""
        self._hessian = hessian
        self._precondition = precondition
        #: Scale of the equations, so that no square leaves the range of single precision.
        self._scale = float(torch.linalg.norm(point.gradient))
        self._remainder = (point.gradient / -self._scale).to(precision)
        self._solved = torch.zeros_like(self._remainder)
        self._goal = goal
        self._search = self._preconditioned().clone()
        self._weight = float((self._remainder * self._search).sum())
        self._steps = self._counted = 0

    @property
    def direction(self) -> Tensor:
        """The step (p, C) float64 from the equations solved so far."""
        return self._solved.to(torch.float64) * self._scale

    def advance(self, until: float) -> bool:
        """Take at least one step, more until `time.monotonic()` reaches `until`. Return whether it is done."""
        while True:
            product = self._hessian(self._search)
            self._steps += 1
            curvature = float(torch.tensordot(self._search, product))
            if not curvature > 0.0:
                # Only rounding can make a positive definite Hessian do this.
                return True
            length = self._weight / curvature
            self._solved.add_(self._search, alpha=length)
            self._remainder.sub_(product, alpha=length)
            remaining = float(torch.linalg.norm(self._remainder))
            if remaining <= self._goal or self._steps == _MAX_CG_STEPS:
                return True
            preconditioned, previous = self._preconditioned(), self._weight
            self._weight = float((self._remainder * preconditioned).sum())
            if not self._weight > 0.0:
                # The remainder is below the smallest representable numbers.
                return True
            torch.add(preconditioned, self._search, alpha=self._weight / previous, out=self._search)
            if time.monotonic() >= until:
                return False

    def _preconditioned(self) -> Tensor:
        if self._precondition is None:
            return self._remainder
        return self._precondition(self._remainder.to(torch.float64)).to(self._remainder.dtype)

    def take_count(self) -> int:
        """Return the number of products since the last call."""
        taken, self._counted = self._steps - self._counted, self._steps
        return taken


def inverse_hessian(objective: Objective) -> Preconditioner | None:
    """Return the squared loss's inverse Hessian, from the smaller of H^T H and H H^T; None if that is too large."""
    representation = objective.representation
    shape = representation.rows, representation.columns
    try:
        if takes_normal_equations(*shape):
            return normal_factor(objective).solve
        if takes_kernel(*shape) and objective.workers.count == 1:
            parts = objective.representation, objective.loss, objective.labels, objective.regularization
            by_kernel = KernelObjective(*parts, kernel_of(representation), np.arange(representation.rows))
            return partial(by_kernel.solve, by_kernel.factor())
    except ArithmeticError:
        # Rounding left the matrix without a factor: use conjugate gradients without it.
        return None
    return None


def minimise(
    objective: Objective, start: Tensor, tolerance: float, on_iteration: Callable[[int, Point], None]
) -> Minimum:
    """Minimise F from `start` (p, C) until the relative gradient is at most `tolerance`.

    Stops at the best point seen when rounding allows no further progress. Raises TrainingError if that point's relative
    gradient exceeds `LARGEST_FLOOR`, or if the iterations do not suffice.
    """
    single = single_precision(objective)
    curvature: Preconditioner | ClassCurvature | AdaptiveBlocks | None = None
    if objective.loss.quadratic and (inverse := inverse_hessian(objective)) is not None:
        curvature, single = inverse, None
    elif not objective.loss.coupled:
        curvature = class_curvature(objective)
    elif single is not None:
        curvature = AdaptiveBlocks(objective)
    newton = Newton(objective, objective.at(start), tolerance, curvature, single)
    on_iteration(0, newton.point)
    while not newton.finished:
        before = newton.products
        newton.step()
        on_iteration(newton.iterations, newton.point)
        if isinstance(curvature, ClassCurvature | AdaptiveBlocks) and not newton.finished:
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
        f"Raise --lambda, or divide all features by {feature_divisor(newton.best.relative_gradient)} or more.",
    )


def feature_divisor(relative: float) -> int:
    """Return the power of two for dividing all features to bring the rounding error to a tenth of `LARGEST_FLOOR`.

    `relative` is the present rounding error, as a relative distance to the optimum. It grows with the square of the
    features' size.
    """
    return 1 << max(1, math.ceil(math.log2(10 * relative / LARGEST_FLOOR) / 2))
