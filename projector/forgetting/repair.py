"""Repair: from projected weights to those that retraining on the remaining graph would give.

The objective F^u of the remaining graph has one minimum W_u, whatever the iteration starts from, so this is the paper's
fine-tuning (Theorem 1) taken to convergence. Close to the minimum a factor of the Hessian is all but its inverse: one
from before the batch serves as preconditioner while the batch is computed, and leaves the memory with what it was made
from. Where it is missing, or too far off, it is made anew from the remaining data; where it would cost more than it
saves, conjugate gradients go without.

A factor from before the batch brings lost directions back, so it acts on the strong directions of what remains alone,
Pi B^-1 Pi, and along the others, where the remaining rows hardly curve F^u, its Hessian is lambda I: (I - Pi) / lambda.
W itself is not projected, since survivors may support a direction too faintly for Pi. At the end W is what the
remaining rows' coefficients say, B + M T, and the certificate is taken of that W.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.forgetting.batch import ModelState
from projector.forgetting.certificate import Certificate, certify
from projector.forgetting.coefficients import span_coefficients
from projector.forgetting.gram import Gram
from projector.forgetting.projection import SpanState
from projector.forgetting.status import TOLERANCE, RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.network.blocks import by_block, side_by_side
from projector.solvers.hessian import HessianFactor, factor_steps, why_no_factor
from projector.solvers.newton import Newton
from projector.solvers.objective import Objective, Point
from projector.solvers.quasi_newton import QuasiNewton

#: The relative gradient to reach, as a share of the tolerance; the rounding term of the bound takes the rest.
_SHARE_OF_GRADIENT = 0.5
#: Steps with one factor after which it is made anew at the point reached: about what making it costs. [Amazon Photo at
#: lambda 1e-6: 64 nodes take 260 steps with a factor that is far off, and making it anew costs as much as 150.]
_STEPS_PER_FACTOR = 100
#: Factors made in one repair before conjugate gradients go on without one. The smoothed hinge has no curvature but near
#: its bend, so that a factor can be far off next to where it was made. [3 of 10,000 small models.]
_MOST_FACTORS = 8
#: A difference between W and B + M T, relative to W, that is left as it is.
_ROUNDING = 1e-12


class Minimisation(Protocol):
    """A minimisation of F under way, as `Newton` is one."""

    #: The point of smallest relative gradient.
    best: Point
    iterations: int
    #: Products with the Hessian.
    products: int
    #: Whether there is nothing left to do, or nothing more that it can do.
    finished: bool
    #: Whether it cannot go on, and another can from `best`.
    interrupted: bool

    @property
    def converged(self) -> bool:
        """Whether the best relative gradient is within the tolerance."""
        ...

    def step(self, until: float, /) -> None:
        """As much as fits before `time.monotonic()` reaches `until`; at least one product."""


#: Begins the minimisation of an objective from a point, to a relative gradient.
Minimiser: TypeAlias = Callable[[Objective, Point, float], Minimisation]


def newton(objective: Objective, start: Point, tolerance: float) -> Newton:
    """Newton's method with conjugate gradients, in this process."""
    return Newton(objective, start.W, tolerance)


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Span coefficients at an optimum, as `Store.write_beta` takes them."""

    #: (blocks, n, C) float64.
    beta: NDArray[np.float64]
    #: (label_hops, n, C) float64.
    label_beta: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RepairOutcome:
    """What came of a repair."""

    status: RepairStatus
    #: Of the projected weights on the remaining graph; None for a loss that no certificate exists for.
    before: Certificate | None
    #: Of the weights that are committed; `before` where nothing was repaired.
    after: Certificate | None
    #: The relative bound up to which `after` counted as converged; None when no repair has ended.
    tolerance: float | None = None
    #: Steps, and products with H and H^T pairwise; None when no repair ran.
    iterations: int | None = None
    products: int | None = None
    #: Rebuilt coefficients; None where those from before hold.
    coefficients: Coefficients | None = None
    #: |W_repaired - W_projected|_F / |W_projected|_F.
    weight_change: float = 0.0
    #: Why the repair went by conjugate gradients without a factor of the Hessian; None if it had one, or did not run.
    without_factor: str | None = None


@dataclass(frozen=True)
class RepairProgress:
    """How far a repair has come."""

    iterations: int
    products: int
    #: Of the best weights so far; None where there is none, W = 0.
    bound_relative: float | None


class Repair:
    """One repair; `advance` goes on with it, `repaired` gives the state it has reached."""

    def __init__(
        self,
        state: ModelState,
        objective: Objective,
        factor: HessianFactor | None,
        rows: TrainingRows,
        *,
        minimiser: Minimiser = newton,
        free: int | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        """`objective` and `rows` are those of the live graph of `state`; `factor` may be from before the last batch.

        Conjugate gradients without a factor are left to `minimiser`. `free` are the bytes that a factor may take; None
        where that is not known. `tolerance` is the relative bound to reach.
        """
        self._state = state
        self._objective = objective
        self._factor = factor
        self._rows = rows
        self._minimiser = minimiser
        self._free = free
        self._tolerance = tolerance
        #: The relative gradient to reach.
        self._goal = _SHARE_OF_GRADIENT * tolerance
        #: Whether the factor was made from the remaining data alone.
        self._fresh = False
        self._factors = 0
        self._without_factor: str | None = None
        self._steps_before = 0
        self._products_before = 0
        start = objective.at(stacked(state))
        #: The certificate of the weights that the repair started from.
        self.before = certify(objective, start)
        self._start = start
        self._best = start
        #: At most one of the two is under way; neither before the way to go on was chosen.
        self._building: Iterator[HessianFactor | None] | None = None
        self._descent: Minimisation | QuasiNewton | None = None
        self.finished = start.relative_gradient <= self._goal
        #: How far the repair had come when `advance` last returned; replaced, never changed.
        self.progress = RepairProgress(0, 0, self.before.relative)

    @property
    def factor(self) -> HessianFactor | None:
        """The factor, if it was made from the remaining data alone."""
        return self._factor if self._fresh else None

    def advance(self, until: float = math.inf) -> bool:
        """Goes on until it is finished or `time.monotonic()` reaches `until`; returns whether it is finished."""
        while not self.finished and time.monotonic() < until:
            if self._building is not None:
                self._build(self._building)
            elif self._descent is not None:
                self._descend(self._descent, until)
            else:
                self._choose()
        steps, products = self._counts()
        self.progress = RepairProgress(steps, products, certify(self._objective, self._best).relative)
        return self.finished

    def forget_earlier(self) -> None:
        """Drops what was made from more than the remaining data, or is not needed any more once it is finished."""
        earlier = self._factor is not None and not self._fresh
        if earlier or self.finished:
            self._stop_descent()
        if earlier:
            self._factor = None

    def repaired(self) -> tuple[ModelState, RepairOutcome]:
        """The state with the best weights found, their coefficients rebuilt, and what came of the repair."""
        objective, state = self._objective, self._state
        best = self._best
        if objective.representation.rows == 0:
            # F^u is (lambda/2) |W|^2.
            best = objective.at(torch.zeros_like(best.W))
        state, coefficients = at_optimum(state, objective, best)
        W = stacked(state)
        if not torch.equal(W, best.W):
            best = objective.at(W)
        after = certify(objective, best)
        steps, products = self._counts()
        moved, size = float(torch.linalg.norm(best.W - self._start.W)), float(torch.linalg.norm(self._start.W))
        outcome = RepairOutcome(
            status=RepairStatus.CONVERGED if after.within(self._tolerance) else RepairStatus.NOT_CONVERGED,
            before=self.before,
            after=after,
            tolerance=self._tolerance,
            iterations=steps,
            products=products,
            coefficients=coefficients,
            weight_change=moved / size if size > 0.0 else moved,
            without_factor=self._without_factor,
        )
        return state, outcome

    def _choose(self) -> None:
        """How to go on from the best point: with the factor there is, with one made anew, or with none."""
        objective = self._objective
        if self._factor is not None:
            self._descent = QuasiNewton(objective, self._best, self._goal, self._preconditioned)
            return
        if self._without_factor is None:
            self._without_factor = why_no_factor(
                objective.representation, self._state.classes, objective.loss.coupled, self._free
            )
        if self._without_factor is None:
            self._factors += 1
            self._building = factor_steps(objective, self._best, self._rows)
        else:
            self._descent = self._minimiser(objective, self._best, self._goal)

    def _build(self, steps: Iterator[HessianFactor | None]) -> None:
        """One step towards a factor; one that cannot be made is done without."""
        try:
            factor = next(steps)
        except (ArithmeticError, MemoryError, RuntimeError) as error:
            # Out of memory is a RuntimeError on some devices.
            self._building = None
            self._without_factor = f"it could not be made: {error}"
            return
        if factor is not None:
            self._building, self._factor, self._fresh = None, factor, True

    def _descend(self, descent: Minimisation | QuasiNewton, until: float) -> None:
        if isinstance(descent, QuasiNewton):
            descent.step()
        else:
            descent.step(until)
        if descent.best.relative_gradient < self._best.relative_gradient:
            self._best = descent.best
        if descent.converged or (descent.finished and not isinstance(descent, QuasiNewton)):
            self.finished = True
        elif not isinstance(descent, QuasiNewton):
            if descent.interrupted:
                self._stop_descent()
        elif descent.finished or descent.iterations >= _STEPS_PER_FACTOR:
            # The factor is too far off; the next one is made where this one has led.
            self._stop_descent()
            self._factor, self._fresh = None, False
            if self._factors == _MOST_FACTORS:
                self._without_factor = f"{_MOST_FACTORS} of them did not lead to the goal"

    def _stop_descent(self) -> None:
        self._steps_before, self._products_before = self._counts()
        self._descent = None

    def _counts(self) -> tuple[int, int]:
        """Steps so far, and products with H and H^T, counted in pairs: gradients and products with the Hessian."""
        steps = 0 if self._descent is None else self._descent.iterations
        inner = 0 if self._descent is None or isinstance(self._descent, QuasiNewton) else self._descent.products
        products = steps + inner
        return self._steps_before + steps, self._products_before + products

    def _preconditioned(self, gradient: Tensor) -> Tensor:
        if self._factor is None:
            raise RuntimeError("a descent without a factor asks for its preconditioner")
        if all(_full_rank(span.gram) for span in self._state.spans):
            return self._factor.solve(gradient)
        strong = self._strong(gradient)
        along = self._strong(self._factor.solve(strong))
        return along.add_(gradient - strong, alpha=1.0 / self._objective.regularization)

    def _strong(self, W: Tensor) -> Tensor:
        """Pi applied to each block of stacked weights or a gradient (p, C)."""
        classes = W.shape[1]
        parts = []
        for span, part in zip(self._state.spans, self._objective.representation.split(W), strict=True):
            columns = side_by_side(part)
            if not _full_rank(span.gram):
                columns = _projected(span.gram, columns)
            parts.append(by_block(columns, classes).reshape(-1, classes))
        return torch.cat(parts)


def _full_rank(gram: Gram) -> bool:
    """Whether every direction is strong, so that Pi = I."""
    return gram.rank == gram.M.shape[0]


def _projected(gram: Gram, W: Tensor) -> Tensor:
    """Pi W for W (k, c), Pi = I - (I - M+ M)(I - M M+): symmetric, the identity on the strong directions, 0 on others.

    M+ M W errs within the span by about eps cond(M) |W|, or by what M+ is off; what is taken off twice lies outside.
    [20 of 30 directions, condition number 7,600: M+ M alone turns a relative bound of 1e-10 into 3e-8.]
    """
    outside = W - gram.M @ (gram.M_pinv @ W)
    outside = outside - gram.M_pinv @ (gram.M @ outside)
    return W - outside


def stacked(state: ModelState) -> Tensor:
    """The weights of all blocks of all inputs one above the other, (p, C)."""
    return torch.cat([by_block(span.W, state.classes).reshape(-1, state.classes) for span in state.spans])


def at_optimum(state: ModelState, objective: Objective, point: Point) -> tuple[ModelState, Coefficients]:
    """`state` with the weights at `point` and with coefficients rebuilt from their dual variable.

    At a minimum W = H^T U with U = -residual / (lambda n_train), so B = X^T beta for beta = R^T S^T U; T makes up for
    the rest of the gradient where that lies along strong directions, and W gives it up along the others.
    """
    representation = objective.representation
    betas = [side_by_side(beta) for beta in span_coefficients(representation, objective.dual(point))]
    spans = []
    for number, (span, each) in enumerate(zip(state.spans, representation.inputs, strict=True)):
        W = side_by_side(representation.split(point.W)[number])
        betas[number] = betas[number] * torch.from_numpy(span.in_span).to(W.device)[:, None]
        B = each.transposed_matmul(betas[number])
        spans.append(_explained(replace(span, W=W, B=B)))
    features, *labels = [by_block(beta, state.classes).cpu().numpy() for beta in betas]
    label_beta = labels[0] if labels else np.zeros((0, representation.nodes, state.classes))
    repaired = replace(state, features=spans[0], labels=spans[1] if labels else None)
    return repaired, Coefficients(features, label_beta)


def _explained(span: SpanState) -> SpanState:
    """`span` with T from M+ (W - B), and with W = B + M T where they differ by more than rounding."""
    M, M_pinv = span.gram.M, span.gram.M_pinv
    T = M_pinv @ (span.W - span.B)
    if _full_rank(span.gram):
        return replace(span, T=T)
    outside = span.W - span.B - M @ T
    if float(torch.linalg.norm(outside)) <= _ROUNDING * float(torch.linalg.norm(span.W)):
        return replace(span, T=T)
    T += M_pinv @ outside
    return replace(span, W=span.B + M @ T, T=T)
