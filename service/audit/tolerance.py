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
        return "it tells of weights as retrained and states no bound on their distance, or none that was to be reached"
    if not 0.0 < tolerance <= LARGEST_TOLERANCE:
        return f"its tolerance is {tolerance:g}; none above {LARGEST_TOLERANCE:g} counts as retrained"
    if not bound <= tolerance:
        return f"it tells of weights as retrained whose bound, {bound:g}, is above the tolerance, {tolerance:g}"
    return None
