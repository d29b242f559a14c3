"""The program `doomed.py ORDER`: `lethe serve`, or another command, with faults at its failure points.

Faults happen in order, in whichever process reaches their points. Each is armed once the one before has happened, and
is recorded first. The supervisor's children are forks of it and inherit all this.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import redis

from service import failure_points
from service.cli.main import main
from service.domain.states import Cause
from service.failure_points import FailurePoint
from service.processes.private_servers import running_servers
from service.requests.delivery import Sweeper
from service.webhooks.sending import Webhooks
from tests.support.kills.faults import FILE_CHANGE, Action, Fault, Happened, loaded
from tests.support.processes.forked_children import kill_supervisor

#: Delay before a lost request is published again; the service's own 15 s are not under test.
_SWEEP_S = 1.0
#: Delay before retrying a webhook whose process was killed, instead of 60 s.
_CLAIM_S = 2.0
#: Duration of a pause in seconds: longer than a reader's lease, and in most runs than the unlearner's.
PAUSE_S = 3
_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir"})


class Observer:
    """Triggers faults in the processes of one Lethe, all forks of the one that creates this."""

    def __init__(self, faults: list[Fault], home: Path, model: Path, happened: Path, *, armed: bool) -> None:
        self._faults = faults
        #: Unless `armed`, the first fault waits for the first request: a start with nothing to resume is not part of a
        #: step.
        self._armed = armed
        self._home = home
        # The model, and the folders of an import beside it.
        self._models = (str(model), str(model.with_name(f".{model.name}.")))
        #: Cause of the version that this process makes, or made last.
        self._cause: Cause | None = None
        self._happened = Happened(happened)
        # The event loop and the unlearner's thread both reach points.
        self._turn = threading.RLock()

    def install(self) -> None:
        """Observe every point that this process or its forks reach from now on."""
        failure_points.reached = self.reached
        if any(fault.point == FILE_CHANGE for fault in self._faults):
            sys.addaudithook(self._audit)

    def reached(self, point: str, cause: Cause | None = None) -> None:
        """Called by the service."""
        with self._turn:
            self._cause = cause or self._cause
            begins = self._armed or point == FailurePoint.ACCEPTING
            fault = self._happened.next(self._faults, point, cause, begins=begins)
            if fault is not None:
                self._carry_out(fault.action)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called by Python before a file is opened, renamed or removed."""
        writes = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if (writes or event in _CHANGES) and str(arguments[0]).startswith(self._models):
            self.reached(FILE_CHANGE, self._cause)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Action.KILL_SUPERVISOR:
                kill_supervisor()
            case Action.KILL_IT | Action.KILL_UNLEARNER | Action.KILL_API | Action.KILL_WORKER:
                send(self._meant(action), signal.SIGKILL)
            case Action.END_IT | Action.END_SUPERVISOR | Action.END_UNLEARNER | Action.END_API:
                send(self._meant(action), signal.SIGTERM)
            case (
                Action.PAUSE_IT
                | Action.PAUSE_SUPERVISOR
                | Action.PAUSE_UNLEARNER
                | Action.PAUSE_API
                | Action.PAUSE_WORKER
            ):
                pause(self._meant(action))
            case Action.STOP_IT:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Action.FILL_DISK:
                # From here on every write fails, wherever the file lies, until the limit is lifted from outside.
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            case Action.KILL_POSTGRES:
                kill_postgres(self._home)
            case Action.END_POSTGRES:
                end_postgres(self._home)
            case _:
                with_valkey(self._home, action)

    def _meant(self, action: Action) -> int | None:
        """Return the process id that an action targets; None during its restart."""
        match action.split()[-1]:
            case "it":
                return os.getpid()
            case "supervisor":
                return os.getppid()
            case name:
                # The last of several.
                found = [pid for one, pid in sorted(siblings(self._home).items()) if one.startswith(name)]
                return found[-1] if found else None


def siblings(home: Path) -> dict[str, int]:
    """Return the running processes of this Lethe by name, as seen from one of them."""
    named: dict[str, int] = json.loads((home / "run" / "server.json").read_text())["pids"]
    found = {child.pid for child in psutil.Process(os.getppid()).children()}
    return {name: pid for name, pid in named.items() if pid in found}


def send(pid: int | None, number: int) -> None:
    """Send a signal, unless the process has ended."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def pause(pid: int | None) -> None:
    """Stop a process, and continue it after `PAUSE_S`."""
    if pid is None:
        return
    program = 'sleep "$0"; kill -CONT "$1"'
    subprocess.Popen(["sh", "-c", program, str(PAUSE_S), str(pid)], stdout=subprocess.DEVNULL, start_new_session=True)
    send(pid, signal.SIGSTOP)


def kill_postgres(home: Path) -> None:
    """Send SIGKILL to the server and all its processes; does nothing during its restart."""
    try:
        server = psutil.Process(int((home / "postgres" / "postmaster.pid").read_text().split("\n")[0]))
        for process in (server, *server.children(recursive=True)):
            process.kill()
    except (FileNotFoundError, psutil.NoSuchProcess):
        return


def end_postgres(home: Path) -> None:
    """Ask the server to end its sessions and stop; does nothing during its restart."""
    with contextlib.suppress(FileNotFoundError):
        send(int((home / "postgres" / "postmaster.pid").read_text().split("\n")[0]), signal.SIGINT)


def with_valkey(home: Path, action: Action) -> None:
    """Kill Valkey, or change its data behind the service's back; does nothing during its restart."""
    servers = running_servers(home)
    assert servers is not None
    assert servers.redis_url is not None
    with redis.Redis.from_url(servers.redis_url) as client:
        try:
            if action in (Action.KILL_VALKEY, Action.END_VALKEY):
                number = signal.SIGKILL if action is Action.KILL_VALKEY else signal.SIGTERM
                os.kill(int(client.info("server")["process_id"]), number)
                return
            if action is Action.EMPTY_VALKEY:
                client.flushall()
                return
            for stream in client.scan_iter("lethe:*:deletions"):
                if action is Action.TRIM_STREAM:
                    client.xtrim(stream, maxlen=0, approximate=False)
                    continue
                entries = client.xrange(stream)
                for _, fields in [*reversed(entries), *entries]:
                    client.xadd(stream, fields)
                if entries:
                    client.xdel(stream, *[entry for entry, _ in entries[::2]])
        except redis.ConnectionError:
            return


def serve(order: Mapping[str, Any]) -> None:
    """Run `lethe serve`, or the command of the order, with faults."""
    assert Sweeper.__init__.__kwdefaults__ is not None
    Sweeper.__init__.__kwdefaults__.update(older_than_s=_SWEEP_S, interval_s=_SWEEP_S)
    assert Webhooks.__init__.__kwdefaults__ is not None
    Webhooks.__init__.__kwdefaults__.update(claim_s=_CLAIM_S)
    home, model, happened = Path(order["home"]), Path(order["model"]), Path(order["happened"])
    Observer(loaded(order["faults"]), home, model, happened, armed=order["armed"]).install()
    main(order["command"])


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
