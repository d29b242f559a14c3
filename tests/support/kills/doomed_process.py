"""`lethe serve` with faults: its processes killed and stopped, and started again when nothing is left of it."""

import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from tests.support.kills import doomed
from tests.support.kills.faults import Fault, Happened, dumped
from tests.support.preloaded import Preloaded
from tests.support.processes.lethe_process import Ended, LetheProcess


class Died(Exception):
    """The process has been killed, as a fault said."""


class DoomedLethe(LetheProcess):
    """A LETHE_HOME whose process meets `faults`, one after the other, across its restarts."""

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
        """Unless `armed`, the first fault waits for the first request; `role` and `part` as of a `LetheProcess`."""
        super().__init__(preloaded.python(doomed.__file__), home, role=role, part=part, **settings)
        # Of a copied home, it would be that of another.
        shutil.rmtree(self.share, ignore_errors=True)
        self._armed = armed
        self._arguments = self._command
        self._all_faults = list(faults)
        self._happened = Happened(home.with_name(f"{home.name}{part}.happened"))
        self._happened.path.touch()

    @property
    def happened(self) -> int:
        """How many faults have happened."""
        return self._happened.faults()

    @property
    def faults(self) -> list[Fault]:
        """Those that have not."""
        return self._all_faults[self.happened :]

    def launch(self) -> IO[str]:
        assert self._process is None, "it runs already"
        self._stdout = []
        order = {
            "home": str(self.home),
            "model": str(self.model),
            "faults": dumped(self._all_faults),
            "armed": self._armed,
            "happened": str(self._happened.path),
            "command": self._arguments,
        }
        # The log goes on through restarts.
        self._process = self._lethe([json.dumps(order)], self._environment, self.home.parent, self._log)
        return self._process.stdout

    @property
    def is_started(self) -> bool:
        """Whether it was started, and not yet seen to have ended."""
        return self._process is not None

    def begin(self, *command: object) -> None:
        """Start another command of Lethe's, in this home, where nothing may run; it meets the same faults."""
        self._arguments = [str(part) for part in command]
        try:
            self.launch()
        finally:
            self._arguments = self._command

    def run(self, *command: object) -> Ended:
        """How that ends."""
        self.begin(*command)
        return self.ended()

    def revive(self) -> Self:
        """Start it again if nothing is left of it; what else was killed its supervisor starts."""
        try:
            self.assert_runs()
        except Died:
            self.ended()
            return self.launch_until_ready()
        return self

    def launch_until_ready(self) -> Self:
        """Start it until it is ready; each time it is killed before, a fault has happened."""
        while (end := self.try_to_start()) is not None:
            assert _was_killed(end), f"it ended with status {end.status}:\n{end.stderr}"
        return self

    def look_later(self) -> None:
        """What there is to do between two looks at the same thing."""
        self._sleep(1.0)

    def give_up(self) -> None:
        """Kill whatever still runs, asking nothing."""
        if self._process is not None:
            self.kill(with_servers=True)

    def assert_runs(self) -> None:
        """Died when the supervisor has been killed; AssertionError when it has ended by itself, which it never may."""
        assert self._process is not None, "it was not started"
        status = self._process.poll()
        if status == -signal.SIGKILL:
            raise Died
        assert status is None, f"lethe serve ended by itself with status {status}:\n{self.log()}"

    def assert_none_failed(self) -> None:
        """AssertionError when one of its processes has ended by itself, and was started again."""
        failed = [line for line in self.log().splitlines() if " ended with status " in line]
        assert not failed, f"{failed}\n{self.log()}"


def _was_killed(end: Ended) -> bool:
    """Whether it ended before it was ready because it, or what it does first, was killed."""
    return end.status == -signal.SIGKILL or "The process 'prepare' was ended by SIGKILL" in end.stderr
