"""Outcome and progress of a repair; importable without torch for code that only reports them."""

from dataclasses import dataclass
from enum import StrEnum

#: Default relative bound up to which weights count as retrained.
TOLERANCE = 1e-8
#: Largest tolerance allowed. Weights farther away never count as retrained.
LARGEST_TOLERANCE = 1e-6
#: Smallest tolerance allowed: below it, rounding alone keeps ill-conditioned models from reaching it. [A feature 100
#: times the others, lambda 2e-3: the certificate reaches 3e-10 at best.]
SMALLEST_TOLERANCE = 1e-9


class RepairStatus(StrEnum):
    """Whether a repair brought the weights to the optimum of the remaining graph."""

    NONE = "none"
    PENDING = "pending"
    CONVERGED = "converged"
    NOT_CONVERGED = "not_converged"


@dataclass(frozen=True)
class RepairProgress:
    """The progress of a repair."""

    iterations: int
    products: int
    #: For the best weights so far; None if W = 0 has no relative bound.
    bound_relative: float | None
