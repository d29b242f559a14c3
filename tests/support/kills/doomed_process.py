"""`lethe serve` with faults: its processes are killed and stopped, and it restarts once all have ended."""

import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from tests.support.kills import doomed
from tests.support.kills.faults import Action, Fault, Happened, dumped
from tests.support.preloaded import Preloaded
from tests.support.processes.lethe_process import Ended, LetheProcess


class Died(Exception):
    """A fault has killed the process."""


class DoomedLethe(LetheProcess):
    """A LETHE_HOME whose process meets `faults` one by one, across its restarts."""

    def __init__(
        self,
        preloaded: Preloaded,
        home: Path,
        faults: Sequence[Fault] = (),
        *,
        armed: bool = False,
        role: str | None = None,
        part: str = "",
        **settings: Any,
    ) -> None:
        """Unless `armed`, the first fault waits for the first request. `role` and `part`: see `LetheProcess`."""
        super().__init__(preloaded.python(doomed.__file__), home, role=role, part=part, **settings)
        # In a copied home, this would belong to another one.
        shutil.rmtree(self.share, ignore_errors=True)
        self._armed = armed
        self._arguments = self._command
        self._all_faults = list(faults)
        self._happened = Happened(home.with_name(f"{home.name}{part}.happened"))
        self._happened.path.touch()
        #: Faults that had happened when it was started.
        self._before = 0

    @property
    def happened(self) -> int:
        """Number of faults that have happened."""
        return self._happened.faults()

    @property
    def faults(self) -> list[Fault]:
        """The remaining faults."""
        return self._all_faults[self.happened :]

    def launch(self) -> IO[str]:
        assert self._process is None, "it runs already"
        self._stdout = []
        self._before = self.happened
        order = {
            "home": str(self.home),
            "model": str(self.model),
            "faults": dumped(self._all_faults),
            "armed": self._armed,
            "happened": str(self._happened.path),
            "command": self._arguments,
        }
        # The log continues across restarts.
        self._process = self._lethe([json.dumps(order)], self._environment, self.home.parent, self._log)
        return self._process.stdout

    @property
    def is_started(self) -> bool:
        """Whether it was started and has not been seen to end."""
        return self._process is not None

    def begin(self, *command: object) -> None:
        """Start another command of Lethe's in this home, with the same faults. Nothing else may be running there."""
        self._arguments = [str(part) for part in command]
        try:
            self.launch()
        finally:
            self._arguments = self._command

    def run(self, *command: object) -> Ended:
        """Run a command and return how it ended."""
        self.begin(*command)
        return self.ended()

    def revive(self) -> Self:
        """Restart it if the supervisor has ended; the supervisor restarts the others."""
        try:
            self.assert_runs()
        except Died:
            self.ended()
            return self.launch_until_ready()
        return self

    def launch_until_ready(self) -> Self:
        """Start it until it is ready; each earlier kill is a fault."""
        while (end := self.try_to_start()) is not None:
            assert self._was_ended(end.status) or _was_killed(end), f"status {end.status}:\n{end.stderr}"
        return self

    def look_later(self) -> None:
        """Wait between two looks at the same thing."""
        self._sleep(1.0)

    def give_up(self) -> None:
        """Kill all remaining processes unconditionally."""
        if self._process is not None:
            self.kill(with_servers=True)

    def assert_runs(self) -> None:
        """Raise Died if a fault ended the supervisor, and AssertionError if it ended by itself."""
        assert self._process is not None, "it was not started"
        status = self._process.poll()
        if status == -signal.SIGKILL or self._was_ended(status):
            raise Died
        assert status is None, f"lethe serve ended by itself with status {status}:\n{self.log()}"

    def _was_ended(self, status: int | None) -> bool:
        """Whether it stopped because a fault has asked it to."""
        since = self._all_faults[self._before : self.happened]
        return status == 0 and any(fault.action is Action.END_SUPERVISOR for fault in since)

    def assert_none_failed(self) -> None:
        """Raise AssertionError if one of its processes ended by itself and was restarted."""
        failed = [line for line in self.log().splitlines() if " ended with status " in line]
        assert not failed, f"{failed}\n{self.log()}"


def _was_killed(end: Ended) -> bool:
    """Whether it, or its first step, was killed before it was ready."""
    return end.status == -signal.SIGKILL or "The process 'prepare' was ended by SIGKILL" in end.stderr
