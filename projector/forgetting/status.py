"""What came of a repair, in one word; imported without torch by whoever only tells of it."""

from enum import StrEnum


class RepairStatus(StrEnum):
    """Whether the weights were brought to the optimum of the remaining graph."""

    NONE = "none"
    PENDING = "pending"
    CONVERGED = "converged"
    NOT_CONVERGED = "not_converged"
