"""Starting the guardian and, through it, the servers; from the side of Lethe."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from service.embedded import guardian
from service.embedded.home import Home
from service.embedded.orphans import Server

_START_SECONDS = 120.0  # recovery after a crash reads the whole write-ahead log
#: Time for each of a server's stop signals.
_STOP_SECONDS = (30.0, 10.0, 5.0)
#: Longest time that the guardian takes to end.
STOP_SECONDS = sum(_STOP_SECONDS) + 10.0
_LOG_ROTATE_BYTES = 8 << 20


class StartFailed(Exception):
    """A server ended before it was ready, or did not get ready in time."""

    def __init__(self, server: Server, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.server = server
        self.timed_out = timed_out


class StartGivenUp(Exception):
    """Whoever waited for the servers wants them no more."""


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
                start_new_session=True,  # Ctrl-C does not reach it: others may use the servers
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
        """Return when all servers serve, and leave the guardian to itself; raises StartFailed.

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
        """Stop the servers and the guardian of a start that failed, and wait for their end."""
        self._hang_up()  # the end of its standard input tells the guardian to stop
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the kernel, or the next start, sees to the servers
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
        """Wait a moment for reports of the guardian and note the process ids; StartFailed when one tells of an end."""
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
    """A log file that is rotated once when large, and what was added to it since."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and path.stat().st_size > _LOG_ROTATE_BYTES:
            path.replace(path.with_suffix(".log.1"))
        self._start = path.stat().st_size if path.exists() else 0

    def added(self) -> str:
        """Return the last lines added since this object was made."""
        if not self.path.exists():
            return ""
        with self.path.open("rb") as file:
            file.seek(self._start)
            return b"\n".join(file.read().splitlines()[-15:]).decode(errors="replace")
