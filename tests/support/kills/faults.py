"""What goes wrong in a run: which server or process, how, and at which point of the service."""

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

#: Beside the named points: every change of a file or folder below the model, or below what an import has beside it, of
#: which there are many in one step.
FILE_CHANGE = "file change"

_OF_BATCHES = frozenset(
    {FailurePoint.APPLYING, FailurePoint.APPLIED, FailurePoint.KEYS_DESTROYED, FailurePoint.ACKNOWLEDGED}
)


def points_of(cause: Cause) -> tuple[FailurePoint, ...]:
    """Those that every version of a cause passes while it is made, in their order."""
    points = [point for point in FailurePoint if point[0].isdigit() and int(point.split()[0]) >= 4]
    if cause is not Cause.BATCH:
        points = [point for point in points if point not in _OF_BATCHES]
    if cause is not Cause.IMPORT:
        points.remove(FailurePoint.INSTALLED)
    return tuple(points)


class Action(StrEnum):
    """What happens at a point."""

    # Of the processes of Lethe; "it" is the one that has come to the point. The supervisor starts again what was
    # killed, and all end with it.
    KILL_IT = "kill it"
    KILL_SUPERVISOR = "kill supervisor"
    KILL_UNLEARNER = "kill unlearner"
    KILL_API = "kill api"
    # Stopped until the test continues it; or, with PAUSE, for longer than a lease lasts.
    STOP_IT = "stop it"
    PAUSE_IT = "pause it"
    PAUSE_SUPERVISOR = "pause supervisor"
    PAUSE_UNLEARNER = "pause unlearner"
    PAUSE_API = "pause api"

    # Of one that computes with the unlearner.
    KILL_WORKER = "kill worker"
    PAUSE_WORKER = "pause worker"

    KILL_POSTGRES = "kill postgres"
    KILL_VALKEY = "kill valkey"
    EMPTY_VALKEY = "empty valkey"
    TRIM_STREAM = "trim stream"
    DUPLICATE_STREAM = "duplicate stream"
    FILL_DISK = "fill disk"


#: By which is drawn what is killed, and where in pairs; another tries others.
SEED = int(os.environ.get("LETHE_TEST_SEED", "0"))
#: From which the sweeps draw what happens at a point: processes are killed, most often the one that has come to it, or
#: stopped for a while.
INTERRUPTIONS = (
    *[Action.KILL_IT] * 4,
    *(one for one in Action if one.startswith(("kill ", "pause ")) and not one.endswith("worker")),
)

START_POINTS = tuple(point for point in FailurePoint if point.startswith("start "))
#: Those that every batch passes, from the answer on.
STEP_POINTS = tuple(point for point in FailurePoint if point[0].isdigit() and point is not FailurePoint.INSTALLED)
#: Those that a process comes to which answers; to all others, the unlearner.
ANSWERING_POINTS = (FailurePoint.ACCEPTING, FailurePoint.KEYS_RESERVED, FailurePoint.ACCEPTED, FailurePoint.CANCELLED)


@dataclass(frozen=True)
class Fault:
    """An action, when a point is reached for the `occurrence`th time since the fault before it happened.

    Of the points that every version passes and of changes of files, in the making of one of `cause`; any for None.
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
        """Whether the unlearner is started again after it."""
        its_own = self.action is Action.KILL_IT and self.point not in ANSWERING_POINTS
        return its_own or self.action in (Action.KILL_SUPERVISOR, Action.KILL_UNLEARNER)

    def is_met(self, point: str, cause: Cause | None) -> bool:
        """Whether a process has come to its point."""
        return self.point == point and self.cause in (None, cause)


def of_cause(cause: Cause, action: Action = Action.KILL_IT) -> list[Fault]:
    """A kill, or another action, at every point of a cause."""
    return [Fault(action, point, cause=cause) for point in points_of(cause)]


def dumped(faults: Iterable[Fault]) -> str:
    """The faults as text."""
    return json.dumps([asdict(fault) for fault in faults])


def loaded(text: str) -> list[Fault]:
    """The faults in a text."""
    return [
        Fault(Action(one["action"]), one["point"], one["occurrence"], one["cause"] and Cause(one["cause"]))
        for one in json.loads(text)
    ]


class Happened:
    """What has happened of a list of faults, in a file that all processes of a run share.

    A line for each fault, and between them one for each time that the point of the next was reached before its time.
    """

    _BEGUN, _PASSED = "begun", "passed"

    def __init__(self, path: Path) -> None:
        self.path = path

    def faults(self) -> int:
        """How many have happened."""
        return sum(line not in (self._BEGUN, self._PASSED) for line in self.path.read_text().splitlines())

    @contextmanager
    def turn(self) -> Iterator[list[str]]:
        """The lines, to be added to in this block by this process alone."""
        with self.path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            lines = file.read().splitlines()
            known = len(lines)
            yield lines
            file.write("".join(f"{line}\n" for line in lines[known:]))

    def next(self, faults: list[Fault], point: str, cause: Cause | None, *, begins: bool) -> Fault | None:
        """A process has come to a point: the fault that happens now, written down.

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


#: What the intakes, and what the unlearner comes to.
INTAKE_POINTS = (FailurePoint.ACCEPTING, FailurePoint.KEYS_RESERVED, FailurePoint.ACCEPTED, FailurePoint.CANCELLED)
KEY_POINTS = (*INTAKE_POINTS, FailurePoint.KEYS_EMPTIED)
#: What who sends webhooks comes to.
WEBHOOK_POINTS = (FailurePoint.WEBHOOK_CLAIMED, FailurePoint.WEBHOOK_ANSWERED)
