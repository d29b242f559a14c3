"""Keep processes running: start them, restart them when they die, and stop them in order.

A child gets two things besides its command: a *channel*, a socket whose descriptor number is the last argument, and, if
it serves, the listening socket. The channel carries one line of JSON to the child (`Child.handover`, with secrets,
which appear in neither environment nor arguments). The child answers `ready`. It prints its own errors on its standard
error. See `service/cli/child.py` for the other side.

Nothing here needs torch, a database or a web stack, so that the supervisor is small and starts quickly.
"""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.errors import LetheError
from service.processes.private_servers.guardian import die_with_parent
from service.queue.outage import Backoff

#: Written once by a child on its channel, when it works.
READY = b"ready\n"
#: Exit status for a temporary cause: the child is restarted even if it was never ready.
MAY_PASS = os.EX_TEMPFAIL
#: A child that ran this long (seconds) resets its count of failures in a row.
_STEADY_S = 60.0
#: Seconds until the process ids are reported again after a failure.
_TELL_AGAIN_S = 1.0
#: Maximum interval between two calls of `on_look` (seconds).
_LOOK_AGAIN_S = 1.0
_BACKOFF = Backoff()
_logger = logging.getLogger(__name__)


class ChildKilled(LetheError):
    """A signal ended a process before it finished its work."""


@dataclass(frozen=True, repr=False)
class Child:
    """A process to start."""

    name: str
    #: Its program; the descriptor number of its channel is appended.
    command: Sequence[str]
    environment: Mapping[str, str]
    #: Sent to it on its channel, including secrets, with the number of its `restarts`.
    handover: Mapping[str, Any]
    #: The socket it answers on; the child finds the descriptor's number under `listener` in the handover.
    listener: socket.socket | None = None


@dataclass(frozen=True)
class Stage:
    """Children that are stopped together, after those of the previous stage have ended."""

    children: Sequence[Child]
    #: Seconds from SIGTERM to SIGKILL.
    grace_s: float


class _Process:
    """A child and, while it runs, its process."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.ready = False
        #: Whether it has ever been ready: a child that fails before that cannot start.
        self.has_been_ready = False
        self.restart_at: float | None = None
        #: Number of restarts; -1 before its first start.
        self._restarted = -1
        #: Number of ends in a row.
        self._failures = 0
        self._started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def start(self) -> None:
        """Start the process and send its handover; raises OSError on failure."""
        listener = self.child.listener
        self._restarted += 1
        handover = {**self.child.handover, "restarts": self._restarted}
        if listener is not None:
            handover["listener"] = listener.fileno()
        ours, theirs = socket.socketpair()
        self._channel = ours
        self.restart_at = None
        self._started_at = time.monotonic()
        with theirs:
            descriptors = (theirs.fileno(), *(() if listener is None else (listener.fileno(),)))
            self._process = launch((*self.child.command, str(theirs.fileno())), self.child.environment, descriptors)
        with contextlib.suppress(BrokenPipeError):  # it ended immediately, which `ended` reports
            ours.sendall(json.dumps(handover).encode() + b"\n")

    @property
    def pid(self) -> int | None:
        """Process id, while it runs."""
        return None if self._process is None else self._process.pid

    @property
    def channel(self) -> socket.socket | None:
        """The channel to the child, until it has reported that it is ready."""
        return None if self.ready else self._channel

    def listen(self) -> None:
        """Read the child's report, without waiting."""
        if self._channel is None or self.ready:
            return
        try:
            said = self._channel.recv(len(READY), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""
        self.ready = said == READY
        self.has_been_ready = self.has_been_ready or self.ready
        if not self.ready:
            self._hang_up()  # it is about to end; a closed channel stays readable and would keep the supervisor busy

    def ended(self) -> int | None:
        """Return the exit status, as in `subprocess`, once if it has ended since the last call."""
        status = None if self._process is None else self._process.poll()
        if status is not None:
            self.listen()  # it may have been ready for a moment
            self._forget()
        return status

    def wait(self) -> int:
        """Wait for a running process to end, and return its status."""
        assert self._process is not None
        status = self._process.wait()
        self._forget()
        return status

    def schedule_restart(self) -> float:
        """Schedule the next start, later after each end in a row; return the seconds until then."""
        now = time.monotonic()
        self._failures = 1 if now - self._started_at >= _STEADY_S else self._failures + 1
        delay = _BACKOFF.ceiling(self._failures)
        self.restart_at = now + delay
        return delay

    def signal(self, number: int) -> None:
        """Send a signal if the process runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def _forget(self) -> None:
        self._process = None
        self.ready = False
        self._hang_up()

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class Supervisor:
    """Keeps the children of all stages running until `stop`."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        on_ready: Callable[[], None],
        on_start: Callable[[Mapping[str, int]], None],
        on_look: Callable[[], None] | None = None,
    ) -> None:
        """`on_ready` is called once, when all children are first ready.

        `on_start` is called with the process ids by name whenever a process has started. It is called again if it
        raised OSError, as on a full disk. `on_look` is called at least once a second; an error of it stops everything.
        """
        self._stages = [(stage, [_Process(child) for child in stage.children]) for stage in stages]
        self._processes = [process for _, processes in self._stages for process in processes]
        self._on_ready = on_ready
        self._on_start = on_start
        self._on_look = on_look
        self._tell_at: float | None = None
        self._announced = False
        self._stopping = False

    def stop(self) -> None:
        """Stop everything in order; for a signal handler."""
        self._stopping = True

    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def run(self) -> None:
        """Start all children and keep them running until `stop`; only in the main thread.

        Raises SystemExit with the status of a child that refused, reporting why, before it was ever ready: it can never
        start. All others have been stopped then. A child that ends with `MAY_PASS` has not refused.
        """
        with _woken_by_signals() as wakeup:
            try:
                # The others need the stage that is stopped last.
                for process in reversed(self._processes):
                    process.start()
                self._report_pids()
                while not self._stopping:
                    _wait(wakeup, self._processes, self._next_due())
                    self._look_after()
            finally:
                # Stage by stage: SIGTERM, the stage's time, SIGKILL.
                for stage, processes in self._stages:
                    _end(wakeup, processes, stage.grace_s)

    def _look_after(self) -> None:
        if self._on_look is not None and not self._stopping:
            self._on_look()
        for process in self._processes:
            process.listen()
            status = process.ended()
            if status is None or self._stopping:
                continue
            if status > 0 and status != MAY_PASS and not process.has_been_ready:
                raise SystemExit(status)
            delay = process.schedule_restart()
            _logger.warning("%s %s; starting it again in %.1f s", process.child.name, _ended(status), delay)
        due = [process for process in self._processes if _is_due(process.restart_at)]
        if (due or _is_due(self._tell_at)) and not self._stopping:
            for process in due:
                self._start_again(process)
            self._report_pids()
        if not self._announced and all(process.ready for process in self._processes):
            self._announced = True
            self._on_ready()

    def _start_again(self, process: _Process) -> None:
        try:
            process.start()
        except OSError as error:
            delay = process.schedule_restart()
            _logger.warning("%s cannot be started (%s); again in %.1f s", process.child.name, error.strerror, delay)

    def _next_due(self) -> float | None:
        look_at = None if self._on_look is None else time.monotonic() + _LOOK_AGAIN_S
        times = [look_at, self._tell_at, *(process.restart_at for process in self._processes)]
        return min((at for at in times if at is not None), default=None)

    def _report_pids(self) -> None:
        try:
            self._on_start({process.child.name: process.pid for process in self._processes if process.pid is not None})
        except OSError as error:
            if self._tell_at is None:
                _logger.warning("the ids of the processes cannot be written (%s); trying on", error.strerror)
            self._tell_at = time.monotonic() + _TELL_AGAIN_S
        else:
            self._tell_at = None


def launch(
    command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start a program that inherits only `descriptors` and ends with this process; raises OSError on failure.

    Tests replace it where they need not import all of a child's dependencies.
    """
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        process_group=0,  # Ctrl-C reaches the supervisor alone, which stops its children in order
        preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - the supervisor has one thread
    )


def run_once(child: Child, grace_s: float) -> None:
    """Run a child with a single task to its end.

    If this process is stopped meanwhile, the child is stopped too, and killed after `grace_s` seconds.

    Raises:
        SystemExit: the child has failed and reported why; with its status.
        ChildKilled: a signal ended it.
    """
    process = _Process(child)
    with _woken_by_signals() as wakeup:
        try:
            process.start()
            status = process.wait()
        finally:
            _end(wakeup, [process], grace_s)
    if status > 0:
        raise SystemExit(status)
    if status < 0:
        raise ChildKilled(
            f"The process {child.name!r} {_ended(status)}.",
            "The system kills processes like this when memory is short. Start again after fixing that.",
        )


def _end(wakeup: socket.socket, processes: Sequence[_Process], grace_s: float) -> None:
    """Stop `processes` and return when they have ended."""
    deadline = time.monotonic() + grace_s
    for process in processes:
        process.signal(signal.SIGTERM)
    running = [process for process in processes if process.ended() is None and process.pid is not None]
    while running and time.monotonic() < deadline:
        _wait(wakeup, (), deadline)
        running = [process for process in running if process.ended() is None]
    for process in running:
        _logger.warning("%s did not stop within %.1f s and is killed", process.child.name, grace_s)
        process.signal(signal.SIGKILL)
        process.wait()


def _is_due(at: float | None) -> bool:
    return at is not None and time.monotonic() >= at


def _ended(status: int) -> str:
    return f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"


@contextlib.contextmanager
def _woken_by_signals() -> Iterator[socket.socket]:
    """Yield a socket that becomes readable after a signal, including the end of a child."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        earlier = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGCHLD, earlier)


def _wait(wakeup: socket.socket, speaking: Sequence[_Process], until: float | None) -> None:
    """Wait for a signal, a child's report, or the time `until`."""
    channels = [process.channel for process in speaking if process.channel is not None]
    timeout = None if until is None else max(0.0, until - time.monotonic())
    if wakeup in select.select([wakeup, *channels], [], [], timeout)[0]:
        with contextlib.suppress(BlockingIOError):
            wakeup.recv(4096)
