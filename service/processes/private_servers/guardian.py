"""The guardian: a small process that starts the private servers and watches them while anyone uses their home.

Run it as a script with the standard library alone. The first line of its standard input is the plan. The line `watch`
confirms the start. If standard input ends before that, the guardian stops the servers.

After `watch` it belongs to no process. All users of the home share a lock. Once nobody holds it, even after a SIGKILL,
the guardian stops the servers. If the guardian itself is killed, the kernel sends each server its stop signal (Linux).
A server that ends before `watch` is an error that stops everything; afterwards it is restarted.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1
_TICK_SECONDS = 0.1
#: A server that ran this long (seconds) resets its count of failures in a row.
_STEADY_SECONDS = 60.0


class GuardedServer:
    """One server of the plan with its process, if running."""

    def __init__(self, plan: dict[str, Any], lock: int) -> None:
        self.name: str = plan["name"]
        self._plan = plan
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._restarts = 0
        self._restart_at: float | None = None

    def start(self) -> int:
        """Start the process and return its id; raises OSError on failure."""
        plan = self._plan
        self._started_at = time.monotonic()
        account = {} if plan["uid"] is None else {"user": plan["uid"], "group": plan["gid"], "extra_groups": []}
        log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                plan["argv"],
                cwd=plan["folder"],
                env=plan["environment"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                umask=0o077,
                pass_fds=(self._lock,),  # held as long as any process of the server lives, children included
                preexec_fn=die_with_parent(plan["stop_signals"][0]),  # noqa: PLW1509 - this process has one thread
                **account,
            )
        finally:
            os.close(log)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # the server ended immediately; `ended` reports it
                self._process.stdin.write(plan["stdin"].encode())
                self._process.stdin.close()
        return self._process.pid

    def ended(self) -> int | None:
        """Return the exit status once if the process has ended since the last call."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            self._process = None
        return code

    def schedule_restart(self) -> None:
        """Schedule the next start, later after each end in a row; the cause, such as a full disk, may pass."""
        now = time.monotonic()
        # Stop counting at the longest pause.
        self._restarts = min(self._restarts + 1, 6) if now - self._started_at < _STEADY_SECONDS else 1
        self._restart_at = now + min(0.1 * 2**self._restarts, 5.0)

    def due(self) -> bool:
        """Return once whether a scheduled start is due."""
        if self._restart_at is None or time.monotonic() < self._restart_at:
            return False
        self._restart_at = None
        return True

    def signal(self, number: int) -> None:
        """Send a signal if the process runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def runs(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def stop_signals(self) -> list[int]:
        """Signals that stop the server, gentlest first."""
        return list(self._plan["stop_signals"])


class Guardian:
    """Starts, watches and stops the servers of one plan."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._servers = [GuardedServer(server, plan["lock"]) for server in plan["servers"]]
        self._stop_seconds: list[float] = plan["stop_seconds"]
        #: The lock that all users of the home share. Taken here, until the end, once nobody else holds it.
        self._users: int = plan["users"]
        self._watching = False
        self._stop_asked = False

    def run(self) -> int:
        """Run the plan until stopped; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask_to_stop)
        try:
            return self._serve()
        finally:
            self._stop_servers()

    def _ask_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_asked = True

    def _serve(self) -> int:
        for server in self._servers:
            if not self._start(server):
                return 1
        while not self._stop_asked and not self._is_unused():
            if self._watching:
                time.sleep(_TICK_SECONDS)
            elif select.select([0], [], [], _TICK_SECONDS)[0]:
                received = os.read(0, 4096)
                if not received:
                    return 0
                self._watching = b"watch" in received
            for server in self._servers:
                if not self._look_after(server):
                    return 1
        return 0

    def _is_unused(self) -> bool:
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _look_after(self, server: GuardedServer) -> bool:
        """Handle an end and a due restart; return False if the whole start has failed."""
        code = server.ended()
        if code is not None:
            self._report(event="exited", server=server.name, code=code)
            if not self._watching:
                return False
            server.schedule_restart()
        if server.due() and not self._start(server):
            server.schedule_restart()
        return True

    def _start(self, server: GuardedServer) -> bool:
        try:
            pid = server.start()
        except (OSError, subprocess.SubprocessError) as error:
            self._report(event="failed", server=server.name, error=str(error))
            return False
        self._report(event="started", server=server.name, pid=pid)
        return True

    def _report(self, **event: object) -> None:
        """Report to the starting process during the start, and to the log afterwards."""
        descriptor = 2 if self._watching else 1
        stamp = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())} if self._watching else {}
        with contextlib.suppress(OSError):  # the starting process may be gone, which also closes the pipe
            os.write(descriptor, (json.dumps({**stamp, **event}) + "\n").encode())

    def _stop_servers(self) -> None:
        """Send increasingly harsh signals, each with its time, until every server has ended."""
        for step, seconds in enumerate(self._stop_seconds):
            for server in self._servers:
                signals = server.stop_signals
                server.signal(signals[min(step, len(signals) - 1)])
            if wait_until(lambda: not any(server.runs() for server in self._servers), seconds):
                return


def die_with_parent(number: int) -> Callable[[], None]:
    """Return a hook for a child to run before its program: the kernel signals it when this process ends."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask_the_kernel() -> None:
        prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the request
            os.kill(os.getpid(), signal.SIGKILL)

    return ask_the_kernel


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _read_plan() -> dict[str, Any] | None:
    """Read the first line of standard input byte by byte, so that nothing after it is consumed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        received = os.read(0, 1)
        if not received:
            return None
        line += received
    plan: dict[str, Any] = json.loads(line)
    return plan


if __name__ == "__main__":
    the_plan = _read_plan()
    sys.exit(0 if the_plan is None else Guardian(the_plan).run())
