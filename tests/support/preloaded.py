"""Python programs that start quickly, each in a fork of one process that has imported their modules.

As a program, `preloaded.py MODULE…` imports the modules, and calls the function of each `MODULE:FUNCTION`. It then
follows standard input, a JSON object per line:

    {"start": {...}}    answered by the process id of what was started
    {"poll": pid}       answered by the exit status, as `subprocess` gives it, or null while it runs
    {"wait": pid}       the same, after its end
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO

ROOT = Path(__file__).resolve().parents[2]


class Process(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    pid: int
    #: Its standard output.
    stdout: TextIO

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, number: int) -> None: ...


#: Starts a program with arguments, an environment, a working folder and a file that collects its standard error.
Start = Callable[[Sequence[str], Mapping[str, str], Path, Path], Process]


def fresh(*command: str) -> Start:
    """Start `command` in the usual way."""
    return partial(_popen, command)


def _popen(
    command: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
) -> Any:
    with log.open("a") as stderr:
        return subprocess.Popen(
            [*command, *arguments], env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True
        )


class Preloaded:
    """A process that has imported some modules, for forking."""

    def __init__(self, *modules: str, path: Sequence[Path] = (ROOT,)) -> None:
        self._turn = threading.Lock()
        self._program = subprocess.Popen(
            [sys.executable, "-P", __file__, *modules],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def python(self, *command: str) -> Start:
        """Start what `python -P` would with `command`: `-m` and a module, or a file, and arguments."""
        return partial(self._fork, command)

    def ask(self, verb: str, about: Any) -> int | None:
        """Send one line of its protocol and return the answer."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        with self._turn:
            self._program.stdin.write(json.dumps({verb: about}) + "\n")
            self._program.stdin.flush()
            answer: int | None = json.loads(self._program.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process; the programs that it started continue."""
        self._program.communicate()

    def _fork(
        self, command: Sequence[str], arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path
    ) -> "Forked":
        with tempfile.TemporaryDirectory() as beside:
            # A named pipe: opening it waits for both ends.
            pipe = Path(beside, "stdout")
            os.mkfifo(pipe)
            order = {"environment": dict(environment), "folder": str(folder), "stdout": str(pipe), "stderr": str(log)}
            pid = self.ask("start", order | {"command": [*command, *arguments]})
            assert pid is not None
            return Forked(self, pid, pipe.open())


def service_preloaded() -> Preloaded:
    """Import the service once for all its processes."""
    processes = ("service.processes.api_process", "service.processes.unlearner_process", "service.unlearner.workers")
    modules = (*processes, "service.processes.prepare", "service.cli.main")
    return Preloaded(*modules, "tests.support.processes.forked_children:install", "psutil")


class Forked:
    """A `Process` started by another process."""

    def __init__(self, preloaded: Preloaded, pid: int, stdout: TextIO) -> None:
        self.pid = pid
        self.stdout = stdout
        self._preloaded = preloaded
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._preloaded.ask("poll", self.pid)
        return self._status

    def wait(self) -> int:
        if self._status is None:
            self._status = self._preloaded.ask("wait", self.pid)
        assert self._status is not None
        return self._status

    def send_signal(self, number: int) -> None:
        if self._status is None:
            os.kill(self.pid, number)


def _become(order: Mapping[str, Any]) -> None:
    """Become another program, in a freshly forked process."""
    own = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ.clear()
    os.environ.update(order["environment"])
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [path for path in named if path] + [path for path in sys.path if path not in own]
    os.chdir(order["folder"])
    standard = [
        (os.devnull, os.O_RDONLY),
        (order["stdout"], os.O_WRONLY),
        (order["stderr"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ]
    for number, (path, flags) in enumerate(standard):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    match order["command"]:
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [file, *arguments]:
            sys.argv = [file, *arguments]
            runpy.run_path(file, run_name="__main__")


def leave(main: Callable[[], None]) -> NoReturn:
    """Run a program in a fork and exit with its status, skipping the teardown of imports, which costs more."""
    status = 0
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # private, and what an interpreter does at its end
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def ended(pid: int, options: int) -> int | None:
    found, status = os.waitpid(pid, options)
    return os.waitstatus_to_exitcode(status) if found else None


def _obey() -> None:
    """Follow standard input until it ends."""
    for line in sys.stdin:
        [(verb, about)] = json.loads(line).items()
        if verb == "start":
            answer: int | None = os.fork()
            if answer == 0:
                leave(partial(_become, about))
        else:
            answer = ended(about, os.WNOHANG if verb == "poll" else 0)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    # Existing objects stay shared with every fork.
    gc.collect()
    gc.freeze()
    _obey()
