"""The disk is full from some step on: nothing is lost, readiness and `doctor` name the cause, and it recovers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2
import psutil
import pytest

from service.domain.states import Cause
from service.failure_points import FailurePoint
from tests.support.clients.command_line import CommandLine
from tests.support.kills.deletions import Run, Runs
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.kills.faults import Action, Fault
from tests.support.processes.lethe_process import authorization

#: After these points the next write is: a version, CURRENT, the span coefficients or the intent of the erasure, its
#: slots, the destroyed key.
_POINTS = (
    FailurePoint.COMPUTED,
    FailurePoint.COMMITTED,
    FailurePoint.APPLIED,
    FailurePoint.COEFFICIENTS_WRITTEN,
    FailurePoint.COMPLETED,
)


@dataclass
class Relief:
    """Frees the disk once Lethe has reported that it is full."""

    lethe: DoomedLethe
    doctor: CommandLine
    #: Messages of /readyz and of `doctor`.
    said: list[str] = field(default_factory=list)
    failure: BaseException | None = None

    @contextmanager
    def at_hand(self) -> Iterator[None]:
        """Run in the background of this block."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,))
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _watch(self, done: threading.Event) -> None:
        try:
            while not self.lethe.happened and not done.wait(0.02):
                pass
            while not self.said and not done.is_set():
                with httpx2.Client(base_url=self.lethe.url, headers=authorization(), timeout=120.0) as http:
                    checks = http.get("/readyz").json()["checks"]
                    # Predictions do not need the disk.
                    assert http.get("/predict/nobody").status_code == 404
                self.said += [
                    one["detail"] for one in checks if not one["ok"] and "disk cannot be used" in one["detail"]
                ]
            output = ""
            # Between two tries it may be loading the model.
            while self.said and "disk cannot be used" not in output and not done.is_set():
                ran = self.doctor("doctor", "--home", self.lethe.home)
                output = " ".join((ran.stdout + ran.stderr).split())
            self.said += [output]
        except BaseException as failure:  # noqa: BLE001 - raised again in the test's own thread
            self.failure = failure
        finally:
            unlearner = psutil.Process(self.lethe.pid_of("unlearner"))
            unlearner.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "policy"),
    [
        *((point, policy) for point in _POINTS for policy in ("never", "always")),
        *((point, "deferred") for point in (FailurePoint.COMPUTED, FailurePoint.SWAPPED)),
    ],
)
def test_a_disk_that_is_full_from_a_step_on_holds_it_up_and_loses_nothing(
    runs: Runs, capsys: pytest.CaptureFixture[str], point: FailurePoint, policy: str
) -> None:
    said: list[str] = []

    @contextmanager
    def relieved(run: Run) -> Iterator[None]:
        relief = Relief(run.lethe, CommandLine(capsys))
        with relief.at_hand():
            yield
        said.extend(relief.said)

    deferred = policy == "deferred"
    settings = {"repair": "always", "repair_budget": 0.0} if deferred else {"repair": policy}
    fault = Fault(Action.FILL_DISK, point, cause=Cause.REPAIR if deferred else Cause.BATCH)
    # Predictions continue throughout, with the lease.
    runs.check([fault], around=relieved, lease_ttl_s=60.0, **settings)
    assert len(said) > 1, "nobody said that the disk is full"
    assert "File too large" in said[0]
    assert "unlearner" in said[-1]
    assert "disk cannot be used" in said[-1]
