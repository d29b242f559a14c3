"""What came of a repair, and how far one is; imported without torch by whoever only tells of it."""

from dataclasses import dataclass
from enum import StrEnum

#: The relative bound up to which weights count as those of retraining, where nobody says another.
TOLERANCE = 1e-8
#: The largest that may be said: weights farther away do not count as those of retraining, whoever says so.
LARGEST_TOLERANCE = 1e-6
#: The smallest: below it rounding alone keeps ill-conditioned models from it. [A feature 100 times the others, lambda
#: 2e-3: the certificate says 3e-10 at best.]
SMALLEST_TOLERANCE = 1e-9


class RepairStatus(StrEnum):
    """Whether the weights were brought to the optimum of the remaining graph."""

    NONE = "none"
    PENDING = "pending"
    CONVERGED = "converged"
    NOT_CONVERGED = "not_converged"


@dataclass(frozen=True)
class RepairProgress:
    """How far a repair has come."""

    iterations: int
    products: int
    #: Of the best weights so far; None where there is none, W = 0.
    bound_relative: float | None
