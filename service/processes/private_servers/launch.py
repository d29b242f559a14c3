"""Start the guardian and its servers, and stop servers that outlived their guardian."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from service.errors import EmbeddedServerError
from service.processes.private_servers import guardian
from service.processes.private_servers.guardian import wait_until
from service.processes.private_servers.home import Home, try_lock
from service.processes.private_servers.postgres import Postgres, works_in
from service.processes.private_servers.valkey import PROGRAMS, Valkey

_GENTLE_SECONDS = 30.0
_HARSH_SECONDS = 10.0
_SERVER_PROGRAMS = ("postgres", *PROGRAMS)


Server = Postgres | Valkey


def take_over(home: Home, servers: Sequence[Server]) -> int:
    """Stop servers that outlived their guardian, clear their stale files, and return the lock's open descriptor.

    The guardian and every server process hold a copy of that descriptor. The lock is therefore free exactly when all of
    them are gone, even if process ids were reused. The caller holds the guardian's lock: no guardian runs.

    Raises EmbeddedServerError if a leftover server does not end.
    """
    descriptor = os.open(home.servers_lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _stop_orphans(home, servers, lambda: try_lock(descriptor))
        for server in servers:
            server.clear_stale_files()
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _stop_orphans(home: Home, servers: Sequence[Server], is_free: Callable[[], bool]) -> None:
    def gone() -> bool:
        return is_free() and not any(server.main_process() for server in servers)

    if gone():
        return
    for server in servers:
        process = server.main_process()
        if process is not None:
            # Repeating the signal does not disturb a shutdown in progress.
            _send(process, signal.SIGINT if server.name == "postgres" else signal.SIGTERM)
    if wait_until(gone, _GENTLE_SECONDS):
        return
    for process in _processes_of(home):
        _send(process, signal.SIGKILL)
    if not wait_until(gone, _HARSH_SECONDS):
        pids = ", ".join(str(process.pid) for process in _processes_of(home)) or "unknown"
        raise EmbeddedServerError(
            f"Servers left by an earlier Lethe in {home.path} do not end (processes: {pids}).", "Stop them manually."
        )


def _processes_of(home: Home) -> list[psutil.Process]:
    folders = (home.postgres, home.valkey)
    return [
        process
        for process in psutil.process_iter()
        if any(works_in(process, folder, *_SERVER_PROGRAMS) for folder in folders)
    ]


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


_START_SECONDS = 120.0  # recovery after a crash reads the whole write-ahead log
#: Time for each stop signal of a server.
_STOP_SECONDS = (30.0, 10.0, 5.0)
#: Maximum time that the guardian takes to end.
STOP_SECONDS = sum(_STOP_SECONDS) + 10.0
_LOG_ROTATE_BYTES = 8 << 20


class StartFailed(Exception):
    """A server ended before it was ready, or was not ready in time."""

    def __init__(self, server: Server, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.server = server
        self.timed_out = timed_out


class StartGivenUp(Exception):
    """The caller no longer wants the servers."""


class Launch:
    """One guardian with its servers."""

    def __init__(
        self, home: Home, servers: Sequence[Server], ports: Mapping[str, int], guardian_lock: int, lock: int
    ) -> None:
        """Start the guardian, which holds copies of both descriptors; the servers hold copies of `lock` alone."""
        self._servers = {server.name: server for server in servers}
        self._ports = ports
        self._logs = {name: _Log(home.logs / f"{name}.log") for name in ("guardian", *self._servers)}
        self._pids: dict[str, int] = {}
        log = os.open(self._logs["guardian"].path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        users = os.open(home.lock_file, os.O_RDWR)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, str(home.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,  # Ctrl-C must not reach it: others may use the servers
                pass_fds=(guardian_lock, lock, users),
                bufsize=0,
            )
        finally:
            os.close(log)
            os.close(users)
        plan = {
            "users": users,
            "lock": lock,
            "stop_seconds": _STOP_SECONDS,
            "servers": [server.plan(ports[server.name]).as_json() for server in servers],
        }
        self._send(json.dumps(plan))

    def wait_until_ready(self, is_stopping: Callable[[], bool]) -> None:
        """Return when all servers are ready, and detach from the guardian; raises StartFailed.

        Raises StartGivenUp once `is_stopping`.
        """
        deadline = time.monotonic() + _START_SECONDS
        waiting = list(self._servers.values())
        while waiting:
            self._read_reports()
            server = waiting[0]
            pid = self._pids.get(server.name)
            if pid is not None and server.is_ready(pid, self._ports[server.name]):
                waiting.pop(0)
            elif time.monotonic() > deadline:
                raise StartFailed(server, f"It was not ready after {_START_SECONDS:.0f} s.", timed_out=True)
            elif is_stopping():
                raise StartGivenUp
        self._send("watch")
        self._hang_up()

    def give_up(self) -> None:
        """Stop the servers and the guardian of a failed start, and wait until they end."""
        self._hang_up()  # the end of its standard input makes the guardian stop
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the kernel, or the next start, stops the servers
            self.process.wait()

    def _hang_up(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _send(self, line: str) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # noticed where the reports are read
                self.process.stdin.write(line.encode() + b"\n")

    def _read_reports(self) -> None:
        """Read the guardian's pending reports and note the process ids; raises StartFailed if a server ended."""
        for event in self._reports():
            name = event["server"]
            if event["event"] == "started":
                self._pids[name] = event["pid"]
                continue
            reason = event.get("error") or f"It ended with status {event['code']}."
            raise StartFailed(self._servers[name], f"{reason}\n{self._logs[name].added()}")

    def _reports(self) -> Iterator[dict[str, Any]]:
        if self.process.stdout is None or not select.select([self.process.stdout], [], [], 0.01)[0]:
            return
        received = self.process.stdout.read(65_536)  # the guardian writes each short line in one piece
        if not received:
            reason = f"The guardian ended.\n{self._logs['guardian'].added()}"
            raise StartFailed(next(iter(self._servers.values())), reason)
        for line in received.splitlines():
            yield json.loads(line)


class _Log:
    """A log file, rotated once when large, and the lines added to it since."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and path.stat().st_size > _LOG_ROTATE_BYTES:
            path.replace(path.with_suffix(".log.1"))
        self._start = path.stat().st_size if path.exists() else 0

    def added(self) -> str:
        """Return the last lines added since this object was created."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(self._start)
            return b"\n".join(file.read().splitlines()[-15:]).decode(errors="replace")
