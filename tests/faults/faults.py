"""What goes wrong in a run: which server or process, how, and at which point of the service."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum

from service.failure_points import FailurePoint

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


#: What the sweeps kill.
KILLS = (Action.KILL_LETHE, Action.KILL_POSTGRES, Action.KILL_VALKEY)

START_POINTS = tuple(point for point in FailurePoint if point.startswith("start "))
REPAIR_POINTS = tuple(point for point in FailurePoint if point.startswith("repair "))
IMPORT_POINTS = tuple(point for point in FailurePoint if point.startswith("import "))
RECOVERY_POINTS = tuple(point for point in FailurePoint if point.startswith("recovery "))
#: Those that every batch passes.
STEP_POINTS = tuple(point for point in FailurePoint if point[0].isdigit())


@dataclass(frozen=True)
class Fault:
    """An action, when a point is reached for the `occurrence`th time since the fault before it happened."""

    action: Action
    point: str
    occurrence: int = 1

    def __str__(self) -> str:
        return f"{self.action} at {self.point}" + (f", {self.occurrence}" if self.occurrence > 1 else "")


def dumped(faults: Iterable[Fault]) -> str:
    """The faults as text."""
    return json.dumps([asdict(fault) for fault in faults])


def loaded(text: str) -> list[Fault]:
    """The faults in a text."""
    return [Fault(Action(one["action"]), one["point"], one["occurrence"]) for one in json.loads(text)]
