"""`lethe serve` with faults: started by a program that has it loaded already, killed, and started again."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import doomed
from faults import Fault, dumped
from lethe_process import ROOT, Ended, LetheProcess


class Died(Exception):
    """The process has been killed, as a fault said."""


class Launcher:
    """The program `doomed.py`; one for all tests."""

    def __init__(self) -> None:
        paths = [str(ROOT), str(Path(doomed.__file__).parent)]
        self._turn = threading.Lock()
        self._program = subprocess.Popen(
            [sys.executable, doomed.__file__],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, verb: str, about: Any) -> int | None:
        """One line of its protocol, answered."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        with self._turn:
            self._program.stdin.write(json.dumps({verb: about}) + "\n")
            self._program.stdin.flush()
            answer: int | None = json.loads(self._program.stdout.readline())
        return answer

    def close(self) -> None:
        """End the program."""
        self._program.communicate()


class _Forked:
    """What `LetheProcess` uses of a `subprocess.Popen`."""

    def __init__(self, launcher: Launcher, order: dict[str, Any]) -> None:
        self._launcher = launcher
        pid = launcher.ask("start", order)
        assert pid is not None
        self.pid: int = pid
        # A pipe with a name: open once both ends are.
        self.stdout = Path(order["stdout"]).open()  # noqa: SIM115 - closed by `LetheProcess.ended`
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._launcher.ask("poll", self.pid)
        return self._status

    def wait(self) -> int:
        if self._status is None:
            self._status = self._launcher.ask("wait", self.pid)
        assert self._status is not None
        return self._status

    def send_signal(self, number: int) -> None:
        if self._status is None:
            os.kill(self.pid, number)


class DoomedLethe(LetheProcess):
    """A LETHE_HOME whose process meets `faults`, one after the other, across its restarts."""

    def __init__(
        self, launcher: Launcher, home: Path, faults: Sequence[Fault] = (), *, armed: bool = False, **settings: object
    ) -> None:
        """Unless `armed`, the first fault waits for the first request."""
        super().__init__(home, **settings)
        self._armed = armed
        self._arguments = ["serve"]
        self._launcher = launcher
        self._all_faults = list(faults)
        self._beside = {name: home.with_name(f"{home.name}.{name}") for name in ("stdout", "happened")}
        os.mkfifo(self._beside["stdout"])
        for file in (self._beside["happened"], self._log):
            file.touch()

    @property
    def happened(self) -> int:
        """How many faults have happened."""
        return len(self._beside["happened"].read_text().splitlines())

    @property
    def faults(self) -> list[Fault]:
        """Those that have not."""
        return self._all_faults[self.happened :]

    def launch(self) -> Any:
        assert self._process is None, "it runs already"
        self._stdout = []
        order = {
            "environment": self._environment,
            "folder": str(self.home.parent),
            "home": str(self.home),
            "model": str(self.model),
            "log": str(self._log),
            "faults": dumped(self.faults),
            "armed": self._armed,
            "command": self._arguments,
        } | {name: str(path) for name, path in self._beside.items()}
        self._process = _Forked(self._launcher, order)  # type: ignore[assignment]
        return self._process.stdout

    def run(self, *command: object) -> Ended:
        """How another command of Lethe's ends, in this home, where nothing may run; it meets the same faults."""
        self._arguments = [str(part) for part in command]
        try:
            self.launch()
        finally:
            self._arguments = ["serve"]
        return self.ended()

    def revive(self) -> Self:
        """Start it again if it has been killed."""
        try:
            self.assert_runs()
        except Died:
            self.ended()
            return self.launch_until_ready()
        return self

    def launch_until_ready(self) -> Self:
        """Start it until it is ready; each time it is killed before, a fault has happened."""
        while (end := self.try_to_start()) is not None:
            assert end.status == -signal.SIGKILL, f"it ended with status {end.status}:\n{end.stderr}"
        return self

    def look_later(self) -> None:
        """What there is to do between two looks at the same thing."""
        self._sleep(1.0)

    def give_up(self) -> None:
        """Kill whatever still runs, asking nothing."""
        if self._process is not None:
            self.kill(with_servers=True)

    def assert_runs(self) -> None:
        """Died when it has been killed; AssertionError when it has ended by itself, which it never may."""
        assert self._process is not None, "it was not started"
        status = self._process.poll()
        if status == -signal.SIGKILL:
            raise Died
        assert status is None, f"lethe serve ended by itself with status {status}:\n{self.log()}"
