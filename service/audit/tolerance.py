"""Whether an event that tells of a repair to retraining states a bound that bears it out. No I/O."""

from collections.abc import Mapping
from typing import Any

from projector.forgetting.status import LARGEST_TOLERANCE, RepairStatus
from service.audit.commitments import FIGURES_COMMITMENT


def overstated(details: Mapping[str, Any]) -> str | None:
    """What is wrong with the bound of weights that the `details` of an event say are those of retraining.

    None where it is right, or they say no such thing: they commit to their figures, or tell of no such weights. Raises
    TypeError for what are no numbers.
    """
    if details.get("repair") != RepairStatus.CONVERGED or (
        FIGURES_COMMITMENT in details and "distance_bound_after_relative" not in details
    ):
        return None
    bound, tolerance = details.get("distance_bound_after_relative"), details.get("repair_tolerance")
    if bound is None or tolerance is None:
        return "it claims retraining but states no bound on the distance, or no tolerance"
    if not 0.0 < tolerance <= LARGEST_TOLERANCE:
        return f"its tolerance is {tolerance:g}; tolerances above {LARGEST_TOLERANCE:g} do not count as retrained"
    if not bound <= tolerance:
        return f"it claims retraining, but its bound {bound:g} is above the tolerance {tolerance:g}"
    return None
