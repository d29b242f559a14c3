"""Repair: take projected weights to those of retraining on the remaining graph.

The objective F^u of the remaining graph has one minimum W_u, regardless of the starting point. So this is the paper's
fine-tuning (Theorem 1) taken to convergence: by Newton's method, with a preconditioner if it pays off. A preconditioner
from before the batch serves as well as a new one while it may stay (`Preconditioner`). If none exists, or it is too
inaccurate, a new one is built from the remaining data.

An old preconditioner would bring lost directions back. So it acts only on the strong directions of the remaining data,
as Pi B^-1 Pi. Along the others the remaining rows hardly curve F^u, and its Hessian is taken as lambda I, with inverse
(I - Pi) / lambda. W itself is not projected, since survivors may support a direction too faintly for Pi. The final W
equals the remaining rows' coefficients, B + M T, and the certificate covers that W.
"""

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from projector.forgetting.batch import ModelState
from projector.forgetting.certificate import Certificate, certify, drifted_too_far
from projector.forgetting.gram import Gram, off_strong
from projector.forgetting.optimum import at_optimum, stacked
from projector.forgetting.preconditioner import Preconditioner
from projector.forgetting.status import TOLERANCE, RepairProgress, RepairStatus
from projector.forgetting.training_rows import TrainingRows
from projector.network.blocks import by_block, side_by_side
from projector.solvers.newton import Newton
from projector.solvers.normal_equations import NormalObjective
from projector.solvers.objective import Objective, Point
from projector.solvers.preconditioners import fits, preconditioner_steps, solution
from projector.solvers.single_precision import SinglePrecision, single_precision

#: Target for the relative gradient, as a share of the tolerance. The bound's rounding term takes the rest.
_SHARE_OF_GRADIENT = 0.5
#: Products with a preconditioner built elsewhere after which a new one is built at the current point.
_PRODUCTS_PER_PRECONDITIONER = 100
#: Preconditioners built or reused in one repair before conjugate gradients continue without one. The smoothed hinge is
#: curved only near its bend, so a preconditioner can be far off close to where it was built.
_MOST_PRECONDITIONERS = 8


@dataclass(frozen=True, eq=False)
class RepairOutcome:
    """The result of a repair."""

    status: RepairStatus
    #: Certificate of the projected weights on the remaining graph; None if the loss has no certificate.
    before: Certificate | None
    #: Certificate of the committed weights; equals `before` if nothing was repaired.
    after: Certificate | None
    #: Relative bound to reach; None if no repair has finished.
    tolerance: float | None = None
    #: Steps, and products with H and H^T counted as pairs; None when no repair ran.
    iterations: int | None = None
    products: int | None = None
    #: Rebuilt coefficients (blocks, n, C) float64 of each input, on the device; None if the earlier ones still hold.
    coefficients: tuple[Tensor, ...] | None = None
    #: |W_repaired - W_projected|_F / |W_projected|_F.
    weight_change: float = 0.0
    #: Why the repair used conjugate gradients alone; None if it had a preconditioner, or did not run.
    without_preconditioner: str | None = None


class RepairRun:
    """One repair: `advance` continues it, `repaired` returns its current state."""

    def __init__(
        self,
        state: ModelState,
        objective: Objective,
        rows: TrainingRows,
        preconditioner: Preconditioner | None = None,
        *,
        free: int | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        """Prepare a repair of `state` on its live graph, with that graph's `objective` and `rows`.

        `preconditioner` may predate the last batch. `free` is the memory in bytes that H and a preconditioner may use;
        None if unknown. `tolerance` is the relative bound to reach.
        """
        self._tolerance = tolerance
        self._goal = _SHARE_OF_GRADIENT * tolerance
        self._state = state
        self._objective = objective
        self._rows = rows
        self._free = None if free is None else free + rows.held_bytes
        self._preconditioner = preconditioner
        self._in_single: SinglePrecision | None = None
        #: The normal equations behind the preconditioner's factor; None for losses without them.
        self._of_factor: NormalObjective | None = None
        self._without_preconditioner: str | None = None
        #: Weights better than the last committed ones; None if there are none.
        self._found: Point | None = None
        #: The last result of `repaired`, and the newest certified point.
        self._given: Point | None = None
        self._certified: tuple[Point, Certificate] | None = None
        self.finished = False
        self._work: Generator[Literal[False]] = self._steps()
        self._until = math.inf
        self._iterations = self._products = 0
        #: Progress when `advance` last returned; replaced, never mutated.
        self.progress = RepairProgress(0, 0, None)

    @cached_property
    def _start(self) -> Point:
        """The last committed weights on the remaining graph; evaluated only after H exists, if it will be computed."""
        return self._objective.at(stacked(self._state))

    @property
    def _best(self) -> Point:
        return self._found or self._start

    @cached_property
    def before(self) -> Certificate:
        """The certificate of the last committed weights."""
        return self._certificate(self._start)

    @property
    def converged(self) -> bool:
        """Return whether the best weights have reached the goal."""
        return self._best.relative_gradient <= self._goal

    @property
    def improved(self) -> bool:
        """Return whether better weights than the last committed ones were found."""
        return self._found is not None

    def usable(self) -> Preconditioner | None:
        """Return the current preconditioner; drop it first if it has expired."""
        if self._preconditioner is not None and self._preconditioner.expired:
            self._preconditioner = None
        return self._preconditioner

    def advance(self, until: float = math.inf) -> bool:
        """Continue until finished or until `time.monotonic()` reaches `until`. Return whether it is finished."""
        self._until = until
        self.usable()
        while not self.finished and time.monotonic() < until:
            self.finished = next(self._work, True)
        relative = self._certificate(self._best).relative
        self.progress = RepairProgress(self._iterations, self._products, relative)
        return self.finished

    def repaired(self) -> tuple[ModelState, RepairOutcome]:
        """Return the state with the best weights found and rebuilt coefficients, and the outcome of the repair."""
        objective, best = self._objective, self._best
        state, coefficients = at_optimum(self._state, objective, best)
        W = stacked(state)
        if not torch.equal(W, best.W):
            best = objective.at(W)
        after = self._certificate(best)
        self._given = best
        moved, size = float(torch.linalg.norm(best.W - self._start.W)), float(torch.linalg.norm(self._start.W))
        status = RepairStatus.PENDING
        if self.finished:
            status = RepairStatus.CONVERGED if after.within(self._tolerance) else RepairStatus.NOT_CONVERGED
        outcome = RepairOutcome(
            status=status,
            before=self.before,
            after=after,
            tolerance=self._tolerance if self.finished else None,
            iterations=self._iterations,
            products=self._products,
            coefficients=coefficients,
            weight_change=moved / size if size > 0.0 else moved,
            without_preconditioner=self._without_preconditioner,
        )
        return state, outcome

    def committed(self) -> Preconditioner | None:
        """Take the last result of `repaired` as committed, count from there, and return the preconditioner.

        A finished repair also releases its own preconditioners.
        """
        if self._given is not None:
            self._start, self._found, self._given = self._given, None, None
            self.before = self._certificate(self._start)
            self._iterations = self._products = 0
        preconditioner = self.usable()
        if self.finished:
            self.close()
        return preconditioner

    def close(self) -> None:
        """Release everything computed from rows that may have been deleted since. The repair cannot continue.

        A running repair refers to itself, so without this call it would stay until the next garbage collection.
        """
        self._work.close()
        self._preconditioner = self._in_single = self._of_factor = None

    def _certificate(self, point: Point) -> Certificate:
        if self._certified is None or self._certified[0] is not point:
            self._certified = point, certify(self._objective, point)
        return self._certified[1]

    def _steps(self) -> Generator[Literal[False]]:
        """Run the repair in short steps."""
        if self._rows.keeps_dense and not self._is_scarce:
            yield from self._compute()
            self._objective = self._settled()
        elif self._rows.keeps_kernel and self._rows.why_no_preconditioner(self._best.W.shape[1], self._free) is None:
            self._objective = self._rows.objective(self._objective.regularization)
        if self.converged or self._is_zero():
            return
        if self._preconditioner is not None and not fits(self._preconditioner.inverse, self._objective):
            self._preconditioner = None
        if self.usable() is None:
            classes = self._best.W.shape[1]
            self._without_preconditioner = self._rows.why_no_preconditioner(classes, self._free)
        for _ in range(_MOST_PRECONDITIONERS):
            if self._without_preconditioner is None and self.usable() is None:
                yield from self._make()
            if self._without_preconditioner is None:
                yield from self._with_preconditioner()
            if self.converged:
                return
        self._without_preconditioner = (
            self._without_preconditioner or f"{_MOST_PRECONDITIONERS} of them did not lead to the goal"
        )
        descent = Newton(self._objective, self._best, self._goal, single=self._single())
        while not descent.finished:
            self._descend(descent)
            yield False

    def _settled(self) -> Objective:
        """Return the objective with H, by normal equations unless their drift endangers the tolerance of the bound."""
        regularization, size = self._objective.regularization, float(torch.linalg.norm(stacked(self._state)))
        objective = self._rows.objective(regularization)
        if isinstance(objective, NormalObjective) and drifted_too_far(objective, size, self._tolerance):
            self._rows.form_anew()
            objective = self._rows.objective(regularization)
        if not isinstance(objective, NormalObjective):
            return objective
        self._of_factor = objective
        by_rows = drifted_too_far(objective, size, self._tolerance)
        return self._rows.objective_by_rows(regularization) if by_rows else objective

    def _with_preconditioner(self) -> Iterator[Literal[False]]:
        """Run Newton's method while the current preconditioner may stay and helps."""
        descent = Newton(self._objective, self._best, self._goal, self._preconditioned, self._single())
        while not descent.finished and self.usable() is not None:
            steps = descent.iterations
            self._descend(descent)
            yield False
            if descent.products >= _PRODUCTS_PER_PRECONDITIONER and descent.iterations > steps:
                # It is too inaccurate: build the next one here.
                self._preconditioner = None
        if descent.finished and not descent.converged:
            self._preconditioner = None

    def _is_zero(self) -> bool:
        """Return whether the minimum is W = 0, and record it if so.

        That happens if no training node remains, if none has a feature in its row of H, or if the training nodes of
        every class have the same rows. Then
        no relative gradient except 0 is small. F^u is strongly convex, so a minimum at 0 needs a slope along W of at
        least lambda |W|^2. The first test allows for rounding in this gradient and leaves half of lambda |W|^2 for that
        of the gradient at 0, which is evaluated only if the test passes.
        """
        start, regularization = self._start, self._objective.regularization
        slope, size = float((start.gradient * start.W).sum()), float(torch.linalg.norm(start.W))
        rounding = regularization * self.before.bound - float(torch.linalg.norm(start.gradient))
        if slope + rounding * size < regularization / 2 * size**2:
            return False
        zero = self._objective.at(torch.zeros_like(start.W))
        if self._certificate(zero).relative != 0.0:
            return False
        self._found = zero
        return True

    @property
    def _is_scarce(self) -> bool:
        """Return whether memory is too scarce for H in both precisions."""
        needed = 12 * self._objective.representation.rows * self._objective.representation.columns
        return self._free is not None and needed > self._free

    def _compute(self) -> Iterator[Literal[False]]:
        """Compute the unknown parts of H."""
        for _ in self._rows.steps():
            yield False

    def _make(self) -> Iterator[Literal[False]]:
        """Build a preconditioner at the best point. Continue without one if that fails."""
        yield from self._compute()
        try:
            objective = self._of_factor or self._objective
            for inverse in preconditioner_steps(objective, self._best, self._rows, self._rows.factorises):
                if inverse is not None:
                    self._preconditioner = Preconditioner(inverse)
                yield False
        except (ArithmeticError, MemoryError, RuntimeError) as error:
            # Some devices report out of memory as a RuntimeError.
            self._without_preconditioner = f"it could not be made: {error}"

    def _single(self) -> SinglePrecision | None:
        """Return H in single precision, built once."""
        if self._in_single is None:
            self._in_single = single_precision(self._objective)
        return self._in_single

    def _descend(self, descent: Newton) -> None:
        iterations, products = descent.iterations, descent.products
        held = math.inf if self._preconditioner is None else self._preconditioner.until
        descent.step(min(self._until, held))
        self._iterations += descent.iterations - iterations
        # Counts gradients and Hessian products alike.
        self._products += descent.iterations - iterations + descent.products - products
        if descent.best.relative_gradient < self._best.relative_gradient:
            self._found = descent.best

    def _preconditioned(self, gradient: Tensor) -> Tensor:
        if self._preconditioner is None:
            raise RuntimeError("a descent without a preconditioner asks for it")
        solve = solution(self._preconditioner.inverse, self._objective)
        if all(span.gram.is_full for span in self._state.spans):
            return solve(gradient)
        strong = self._strong(gradient)
        along = self._strong(solve(strong))
        return along.add_(gradient - strong, alpha=1.0 / self._objective.regularization)

    def _strong(self, W: Tensor) -> Tensor:
        """Return Pi applied to each block of stacked weights or a gradient (p, C)."""
        classes = W.shape[1]
        parts = []
        for span, part in zip(self._state.spans, self._objective.representation.split(W), strict=True):
            columns = side_by_side(part)
            if not span.gram.is_full:
                columns = _projected(span.gram, columns)
            parts.append(by_block(columns, classes).reshape(-1, classes))
        return torch.cat(parts)


def _projected(gram: Gram, W: Tensor) -> Tensor:
    """Return Pi W for W (k, c), with the symmetric Pi = I - (I - M+ M)(I - M M+).

    Pi is the identity on strong directions and 0 on the others. M+ M W errs within the span by about eps cond(M) |W|,
    or by the error of M+. What is subtracted twice lies outside. [20 of 30 directions, condition number 7,600: M+ M
    alone turns a relative bound of 1e-10 into 3e-8.]
    """
    return W - off_strong(gram, W)
