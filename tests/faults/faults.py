"""What goes wrong in a run: which server or process, how, and at which point of the service."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from service.domain.states import Cause
from service.failure_points import FailurePoint, points_of

#: Beside the named points: every change of a file or folder below the model, of which there are many in one step.
FILE_CHANGE = "file change"


class Action(StrEnum):
    """What happens at a point."""

    KILL_LETHE = "kill lethe"
    KILL_POSTGRES = "kill postgres"
    KILL_VALKEY = "kill valkey"
    EMPTY_VALKEY = "empty valkey"
    TRIM_STREAM = "trim stream"
    DUPLICATE_STREAM = "duplicate stream"
    STOP_LETHE = "stop lethe"
    FILL_DISK = "fill disk"


#: By which is drawn what is killed, and where in pairs; another tries others.
SEED = int(os.environ.get("LETHE_TEST_SEED", "0"))
#: What the sweeps kill.
KILLS = (Action.KILL_LETHE, Action.KILL_POSTGRES, Action.KILL_VALKEY)

START_POINTS = tuple(point for point in FailurePoint if point.startswith("start "))
#: Those that every batch passes, from the answer on.
STEP_POINTS = tuple(point for point in FailurePoint if point[0].isdigit() and point is not FailurePoint.INSTALLED)


@dataclass(frozen=True)
class Fault:
    """An action, when a point is reached for the `occurrence`th time since the fault before it happened.

    Of the points that every version passes, in the making of one of `cause`; any for None.
    """

    action: Action
    point: str
    occurrence: int = 1
    cause: Cause | None = None

    def __str__(self) -> str:
        of = "" if self.cause is None else f" of {self.cause}"
        return f"{self.action} at {self.point}{of}" + (f", {self.occurrence}" if self.occurrence > 1 else "")

    def is_met(self, point: str, cause: Cause | None) -> bool:
        """Whether a process has come to its point."""
        return self.point == point and self.cause in (None, cause)


def of_cause(cause: Cause) -> list[Fault]:
    """A kill of Lethe at every point of a cause."""
    return [Fault(Action.KILL_LETHE, point, cause=cause) for point in points_of(cause)]


def dumped(faults: Iterable[Fault]) -> str:
    """The faults as text."""
    return json.dumps([asdict(fault) for fault in faults])


def loaded(text: str) -> list[Fault]:
    """The faults in a text."""
    return [
        Fault(Action(one["action"]), one["point"], one["occurrence"], one["cause"] and Cause(one["cause"]))
        for one in json.loads(text)
    ]
