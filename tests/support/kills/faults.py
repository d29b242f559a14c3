"""The faults of a run: the server or process, the action, and the point in the service."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from service.domain.states import Cause
from service.failure_points import FailurePoint

#: Beside the named points: every change of a file or folder below the model, or below an import's folder beside it. One
#: step makes many of them.
FILE_CHANGE = "file change"

_OF_BATCHES = frozenset(
    {FailurePoint.APPLYING, FailurePoint.APPLIED, FailurePoint.KEYS_DESTROYED, FailurePoint.ACKNOWLEDGED}
)


def points_of(cause: Cause) -> tuple[FailurePoint, ...]:
    """Return the points that every version of a cause passes, in order."""
    points = [point for point in FailurePoint if point[0].isdigit() and int(point.split()[0]) >= 4]
    if cause is not Cause.BATCH:
        points = [point for point in points if point not in _OF_BATCHES]
    if cause is not Cause.IMPORT:
        points.remove(FailurePoint.INSTALLED)
    return tuple(points)


class Action(StrEnum):
    """The action at a point."""

    # Actions on processes of Lethe; "it" is the one that has reached the point. The supervisor restarts killed
    # processes, and all end with it.
    KILL_IT = "kill it"
    KILL_SUPERVISOR = "kill supervisor"
    KILL_UNLEARNER = "kill unlearner"
    KILL_API = "kill api"
    # Stopped until the test continues it; PAUSE stops it for longer than a lease lasts.
    STOP_IT = "stop it"
    PAUSE_IT = "pause it"
    PAUSE_SUPERVISOR = "pause supervisor"
    PAUSE_UNLEARNER = "pause unlearner"
    PAUSE_API = "pause api"

    # Stopped as an operator would, by SIGTERM; Postgres by SIGINT, which does not wait for its clients.
    END_IT = "end it"
    END_SUPERVISOR = "end supervisor"
    END_UNLEARNER = "end unlearner"
    END_API = "end api"
    END_POSTGRES = "end postgres"
    END_VALKEY = "end valkey"

    # A process that computes with the unlearner.
    KILL_WORKER = "kill worker"
    PAUSE_WORKER = "pause worker"

    KILL_POSTGRES = "kill postgres"
    KILL_VALKEY = "kill valkey"
    EMPTY_VALKEY = "empty valkey"
    TRIM_STREAM = "trim stream"
    DUPLICATE_STREAM = "duplicate stream"
    FILL_DISK = "fill disk"


#: Seed for drawing the faults and, in pairs, their points; other seeds try others.
SEED = int(os.environ.get("LETHE_TEST_SEED", "0"))
#: The sweeps draw from these actions: processes are killed, most often the one at the point, or stopped for a while.
INTERRUPTIONS = (
    *[Action.KILL_IT] * 4,
    *(one for one in Action if one.startswith(("kill ", "pause ")) and not one.endswith("worker")),
)

START_POINTS = tuple(point for point in FailurePoint if point.startswith("start "))
#: Points that every batch passes after the answer.
STEP_POINTS = tuple(point for point in FailurePoint if point[0].isdigit() and point is not FailurePoint.INSTALLED)
#: Points of an answering process; the unlearner reaches all others.
ANSWERING_POINTS = (FailurePoint.ACCEPTING, FailurePoint.KEYS_RESERVED, FailurePoint.ACCEPTED, FailurePoint.CANCELLED)


@dataclass(frozen=True)
class Fault:
    """An action when a point is reached for the `occurrence`th time since the fault before it.

    For file changes and points that every version passes, only while making a version of `cause`; None matches any.
    """

    action: Action
    point: str
    occurrence: int = 1
    cause: Cause | None = None

    def __str__(self) -> str:
        of = "" if self.cause is None else f" of {self.cause}"
        return f"{self.action} at {self.point}{of}" + (f", {self.occurrence}" if self.occurrence > 1 else "")

    @property
    def ends_unlearner(self) -> bool:
        """Whether the unlearner restarts after it."""
        its_own = self.action in (Action.KILL_IT, Action.END_IT) and self.point not in ANSWERING_POINTS
        return its_own or (self.action.endswith(("supervisor", "unlearner")) and not self.action.startswith("pause"))

    def is_met(self, point: str, cause: Cause | None) -> bool:
        """Whether a process has reached its point."""
        return self.point == point and self.cause in (None, cause)


def of_cause(cause: Cause, action: Action = Action.KILL_IT) -> list[Fault]:
    """Return an action, by default a kill, at every point of a cause."""
    return [Fault(action, point, cause=cause) for point in points_of(cause)]


def dumped(faults: Iterable[Fault]) -> str:
    """Serialise the faults."""
    return json.dumps([asdict(fault) for fault in faults])


def loaded(text: str) -> list[Fault]:
    """Parse faults from text."""
    return [
        Fault(Action(one["action"]), one["point"], one["occurrence"], one["cause"] and Cause(one["cause"]))
        for one in json.loads(text)
    ]


class Happened:
    """The faults that have happened, in a file that all processes of a run share.

    It has a line for each fault. Between them are lines for each early pass of the next fault's point.
    """

    _BEGUN, _PASSED = "begun", "passed"

    def __init__(self, path: Path) -> None:
        self.path = path

    def faults(self) -> int:
        """Count the faults that have happened."""
        return sum(line not in (self._BEGUN, self._PASSED) for line in self.path.read_text().splitlines())

    @contextmanager
    def turn(self) -> Iterator[list[str]]:
        """Yield the lines under a lock; this process alone may append to them in the block."""
        with self.path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            lines = file.read().splitlines()
            known = len(lines)
            yield lines
            file.write("".join(f"{line}\n" for line in lines[known:]))

    def next(self, faults: list[Fault], point: str, cause: Cause | None, *, begins: bool) -> Fault | None:
        """Return and record the fault that happens now, if any, when a process reaches a point.

        None happens before `begins` was true once.
        """
        with self.turn() as lines:
            if begins and self._BEGUN not in lines:
                lines.append(self._BEGUN)
            past = [number for number, line in enumerate(lines) if line not in (self._BEGUN, self._PASSED)]
            if self._BEGUN not in lines or len(past) == len(faults):
                return None
            fault = faults[len(past)]
            if not fault.is_met(point, cause):
                return None
            seen = lines[past[-1] if past else 0 :].count(self._PASSED) + 1
            lines.append(str(fault) if seen == fault.occurrence else self._PASSED)
            return fault if seen == fault.occurrence else None


#: Points of the intakes and of the unlearner.
KEY_POINTS = (*ANSWERING_POINTS, FailurePoint.KEYS_EMPTIED)
#: Points of the webhook sender.
WEBHOOK_POINTS = (FailurePoint.WEBHOOK_CLAIMED, FailurePoint.WEBHOOK_ANSWERED)
