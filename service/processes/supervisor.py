"""Keep processes running: start them, restart them when they die, and stop them in order.

Nothing here needs torch, a database or a web stack, so that the supervisor is small and starts quickly.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.errors import LetheError
from service.processes.child_process import Child, ChildProcess

#: Exit status for a temporary cause: the child is restarted even if it was never ready.
MAY_PASS = os.EX_TEMPFAIL
#: Sent to a child when another Lethe answers: it finishes its open work, starts none, and ends.
DRAIN = signal.SIGUSR1
#: Seconds until the process ids are reported again after a failure.
_REPORT_AGAIN_S = 1.0
#: Maximum interval between two calls of `on_look` (seconds).
_LOOK_AGAIN_S = 1.0
_logger = logging.getLogger(__name__)


class ChildKilled(LetheError):
    """A signal ended a process before it finished its work."""


@dataclass(frozen=True)
class Stage:
    """Children that are stopped together, after those of the previous stage have ended."""

    children: Sequence[Child]
    #: Seconds from SIGTERM to SIGKILL.
    grace_s: float
    #: Most seconds from `DRAIN` to SIGTERM when another Lethe answers; `stop` ends them.
    drain_s: float = 0.0


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
        self._stages = [(stage, [ChildProcess(child) for child in stage.children]) for stage in stages]
        self._processes = [process for _, processes in self._stages for process in processes]
        self._on_ready = on_ready
        self._on_start = on_start
        self._on_look = on_look
        self._report_at: float | None = None
        self._announced = False
        self._stopped = self._retired = False

    def stop(self) -> None:
        """Stop everything in order, without draining or no longer draining; for a signal handler."""
        self._stopped = True

    def retire(self) -> None:
        """Drain, then stop as in `stop`: another Lethe answers from now on. Has no effect after `stop`."""
        self._retired = True

    def is_ready(self, stage: int) -> bool:
        """Return whether all children of a stage are ready."""
        return all(process.ready for process in self._stages[stage][1])

    def is_stopping(self) -> bool:
        """Whether `stop` or `retire` was called."""
        return self._stopped or self._retired

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
                while not self.is_stopping():
                    _wait(wakeup, self._processes, self._next_due())
                    self._look_after()
            finally:
                # Stage by stage: SIGTERM, the stage's time, SIGKILL.
                for stage, processes in self._stages:
                    if self._retired and not self._stopped and stage.drain_s:
                        _signal(wakeup, processes, DRAIN, stage.drain_s, lambda: not self._stopped)
                    _end(wakeup, processes, stage.grace_s)

    def _look_after(self) -> None:
        if self._on_look is not None and not self.is_stopping():
            self._on_look()
        for process in self._processes:
            process.listen()
            status = process.ended()
            if status is None or self.is_stopping():
                continue
            if status > 0 and status != MAY_PASS and not process.has_been_ready:
                raise SystemExit(status)
            delay = process.schedule_restart()
            _logger.warning("%s %s; starting it again in %.1f s", process.child.name, _ended(status), delay)
        due = [process for process in self._processes if _is_due(process.restart_at)]
        if (due or _is_due(self._report_at)) and not self.is_stopping():
            for process in due:
                self._start_again(process)
            self._report_pids()
        if not self._announced and all(process.ready for process in self._processes):
            self._announced = True
            self._on_ready()

    def _start_again(self, process: ChildProcess) -> None:
        try:
            process.start()
        except OSError as error:
            delay = process.schedule_restart()
            _logger.warning("%s cannot be started (%s); again in %.1f s", process.child.name, error.strerror, delay)

    def _next_due(self) -> float | None:
        look_at = None if self._on_look is None else time.monotonic() + _LOOK_AGAIN_S
        times = [look_at, self._report_at, *(process.restart_at for process in self._processes)]
        return min((at for at in times if at is not None), default=None)

    def _report_pids(self) -> None:
        try:
            self._on_start({process.child.name: process.pid for process in self._processes if process.pid is not None})
        except OSError as error:
            if self._report_at is None:
                _logger.warning("the ids of the processes cannot be written (%s); trying on", error.strerror)
            self._report_at = time.monotonic() + _REPORT_AGAIN_S
        else:
            self._report_at = None


def run_once(child: Child, grace_s: float) -> None:
    """Run a child with a single task to its end.

    If this process is stopped meanwhile, the child is stopped too, and killed after `grace_s` seconds.

    Raises:
        SystemExit: the child has failed and reported why; with its status.
        ChildKilled: a signal ended it.
    """
    process = ChildProcess(child)
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


def _end(wakeup: socket.socket, processes: Sequence[ChildProcess], grace_s: float) -> None:
    """Stop `processes` and return when they have ended."""
    for process in _signal(wakeup, processes, signal.SIGTERM, grace_s):
        _logger.warning("%s did not stop within %.1f s and is killed", process.child.name, grace_s)
        process.signal(signal.SIGKILL)
        process.wait()


def _signal(
    wakeup: socket.socket,
    processes: Sequence[ChildProcess],
    number: int,
    seconds: float,
    may_wait: Callable[[], bool] = lambda: True,
) -> list[ChildProcess]:
    """Send a signal to `processes`, and return those that are still running after `seconds`.

    Returns sooner once `may_wait` returns False.
    """
    deadline = time.monotonic() + seconds
    for process in processes:
        process.signal(number)
    running = [process for process in processes if process.ended() is None and process.pid is not None]
    while running and may_wait() and time.monotonic() < deadline:
        _wait(wakeup, (), deadline)
        running = [process for process in running if process.ended() is None]
    return running


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


def _wait(wakeup: socket.socket, speaking: Sequence[ChildProcess], until: float | None) -> None:
    """Wait for a signal, a child's report, or the time `until`."""
    channels = [process.channel for process in speaking if process.channel is not None]
    timeout = None if until is None else max(0.0, until - time.monotonic())
    if wakeup in select.select([wakeup, *channels], [], [], timeout)[0]:
        with contextlib.suppress(BlockingIOError):
            wakeup.recv(4096)
