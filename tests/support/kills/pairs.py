"""Two unlearners of one model: the first is stopped while making a version of some cause, and the second takes over.

Both share one home, except for recoveries.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import httpx2
import psutil

from service.cli.console import ExitStatus
from service.domain.states import Cause
from tests.support.kills.another_model import another_model
from tests.support.kills.deletions import Outcome, People, outcome_of
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.processes.lethe_process import copied

#: Longest wait for any condition (seconds): more than the 60 s after which Postgres ends the transaction of a process
#: that was stopped with a statement half sent.
_PATIENCE_S = 120.0
#: What an unlearner logs once it has finished what an earlier one left.
_SERVING = "unlearner.serving"


@dataclass(frozen=True)
class Pair:
    """Both, not started: `first` is stopped in its first batch, and `second` takes over."""

    #: Settings of both, beside those of every pair.
    settings: ClassVar[Mapping[str, object]] = {}

    people: People
    first: DoomedLethe
    second: DoomedLethe
    database_url: str

    def begin(self) -> list[str]:
        """Start the work in which the first is stopped. Returns its requests."""
        return self.ask(self.first.launch_until_ready(), range(1))

    def stop_first(self) -> list[str]:
        """Wait until the first is stopped in that work. Returns its requests."""
        asked = self.begin()
        self.until(self._is_stopped)
        return asked

    @property
    def answering(self) -> DoomedLethe:
        """The process that receives requests."""
        return self.first

    def take_over(self) -> None:
        """Start the second."""
        self.second.launch_until_ready()

    def go_on(self) -> None:
        """Continue the first until it notices its lost lease; meanwhile predictions are from the second's version."""
        before, versions = self.first.log().count("lease.lost"), [self.predicted()]
        os.kill(self.pid, signal.SIGCONT)

        def has_understood() -> bool:
            versions.append(self.predicted())
            return self.first.log().count("lease.lost") > before

        self.until(has_understood)
        versions.append(self.predicted())
        assert len({*versions}) == 1
        self.first.assert_runs()

    def predicted(self) -> int:
        """Return the version that predicts a live node."""
        live = next(node for node in self.people.graph.node_ids if node not in self.people.deleted)
        with self.answering.client() as client:
            return client.predict(live).model_version

    def give_back(self) -> None:
        """Stop the second; the first takes over again."""
        before = self.first.log().count(_SERVING)
        assert self.second.stop().status == 0
        # It is ready earlier, while it still writes what it finds missing in the store.
        self.until(lambda: self.first.log().count(_SERVING) > before)
        with self.first.http() as http:
            self.until(lambda: _is_ready(http))

    @property
    def pid(self) -> int:
        """Process id of the stopped process."""
        return self.first.pid_of("unlearner")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.first.log() + self.second.log()
            for lethe in (self.first, self.second):
                if lethe.is_started:
                    lethe.assert_runs()
            time.sleep(0.02)

    def ask(self, lethe: DoomedLethe, numbers: range) -> list[str]:
        """Request the deletions of these numbers."""
        with lethe.client() as client:
            return [self.people.wanted[number].send(client, number).id for number in numbers]

    def complete(self, lethe: DoomedLethe, requests: list[str]) -> None:
        """Wait until the requests are completed, and repaired."""
        with lethe.client() as client:
            for request in requests:
                client.wait(request, timeout_s=_PATIENCE_S)
            self.until(lambda: all(client.deletion(request).repair != "pending" for request in requests))

    def outcome(self, lethe: DoomedLethe) -> Outcome:
        """Return the final model."""
        with lethe.client() as client:
            return outcome_of(self.people, lethe.model, client)

    def _is_stopped(self) -> bool:
        # It is missing while a killed process restarts.
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return False


class InRepair(Pair):
    """The first is stopped in the repair that its first batch has left to idle time."""

    settings: ClassVar = {"repair": "always", "repair_budget": 0.0}


class InImport(Pair):
    """The first is stopped in an import, after it has completed a request."""

    def begin(self) -> list[str]:
        asked = self.ask(self.first.launch_until_ready(), range(1))
        self.complete(self.first, asked)
        another = another_model(self.people, self.first.home.with_name("another"))
        # The command waits for the result, and the import continues without it.
        self.second.begin("model", "import", another, "--exclude-deleted")
        self.until(self._is_stopped)
        self.second.kill()
        return asked


class InRecovery(Pair):
    """The first is `lethe recover`, after the store has lost part of the deletions; so is the second.

    The second runs in its own home, which takes the model over.
    """

    @property
    def answering(self) -> DoomedLethe:
        return self.second

    def begin(self) -> list[str]:
        first, kept, asked = self.first, self.first.home.with_name("kept"), []
        for numbers in (range(2), range(2, 4)):
            asked += self.ask(first.launch_until_ready(), numbers)
            self.complete(first, asked)
            assert first.stop().status == 0
            if not kept.exists():
                copied(first.model, kept)
        shutil.rmtree(first.model)
        kept.rename(first.model)
        first.begin("recover")
        return asked

    def take_over(self) -> None:
        ended = with_keys_of(self.first, self.second).run("recover", "--take-over")
        assert ended.status == 0, ended.stderr
        self.second.launch_until_ready()

    def go_on(self) -> None:
        """Continue the first until it ends: it reports that it lost the lease, unless everything was done."""
        os.kill(self.pid, signal.SIGCONT)
        ended = self.first.ended()
        # If stopped in a transaction, it finds that Postgres has ended it.
        messages: dict[int | None, str] = {
            ExitStatus.FAILED: "The database belongs to another LETHE_HOME",
            ExitStatus.UNREACHABLE: "The database stopped answering during a commit",
        }
        assert ended.status == 0 or messages[ended.status] in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr, ended.stderr

    def give_back(self) -> None:
        assert self.second.stop().status == 0
        ended = with_keys_of(self.second, self.first).run("recover", "--take-over")
        assert ended.status == 0, ended.stderr
        self.first.launch_until_ready()

    @property
    def pid(self) -> int:
        return self.first.pid


OF_CAUSE: Mapping[Cause, type[Pair]] = {
    Cause.BATCH: Pair,
    Cause.REPAIR: InRepair,
    Cause.IMPORT: InImport,
    Cause.RECOVERY: InRecovery,
}


def with_keys_of(one: DoomedLethe, other: DoomedLethe) -> DoomedLethe:
    """Return the other, with a copy of the keys of one."""
    subprocess.run(["cp", "-a", one.home / "keys", other.home], check=True)
    return other


def _is_ready(http: httpx2.Client) -> bool:
    """Whether it reports ready; also False without an answer."""
    with contextlib.suppress(httpx2.TransportError):
        return http.get("/readyz").status_code == 200
    return False
