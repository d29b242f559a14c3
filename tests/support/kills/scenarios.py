"""Points of batches, starts and repairs at which the sweeps inject faults."""

from collections.abc import Sequence

import pytest

from service.domain.states import Cause
from service.failure_points import FailurePoint
from tests.support.kills.faults import START_POINTS, STEP_POINTS, Action, Fault, of_cause, points_of


def scenario(*faults: Fault) -> Sequence[Fault]:
    """Return the faults, with an end of the unlearner before any fault at a start."""
    if faults[0].point in START_POINTS:
        return (Fault(Action.KILL_IT, FailurePoint.SWAPPED), *faults)
    if faults[-1].point in START_POINTS and not any(fault.ends_unlearner for fault in faults[:-1]):
        return (faults[0], Fault(Action.KILL_IT, FailurePoint.ERASED), *faults[1:])
    return faults


def _of_batch(point: FailurePoint) -> Fault:
    of_version = point in points_of(Cause.BATCH)
    return Fault(Action.KILL_IT, point, cause=Cause.BATCH if of_version else None)


#: Points of a batch after the answer, of a start, and of a repair.
POINTS = [
    *(Fault(Action.KILL_IT, point) for point in START_POINTS),
    *(_of_batch(point) for point in STEP_POINTS),
    *of_cause(Cause.REPAIR),
]


def titled(scenarios: Sequence[Sequence[Fault]]) -> list[object]:
    """Return the scenarios with their names."""
    return [pytest.param(faults, id=", ".join(map(str, faults))) for faults in scenarios]
