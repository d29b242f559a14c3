"""A process that the supervisor starts, and the channel between the two.

A child gets two things besides its command: a *channel*, a socket whose descriptor number is the last argument, and, if
it serves, the listening socket. The channel carries one line of JSON to the child (`Child.handover`, with secrets,
which appear in neither environment nor arguments). The child answers `ready`. It prints its own errors on its standard
error. See `service/cli/child.py` for the other side.
"""

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.processes.private_servers.guardian import die_with_parent
from service.queue.outage import Backoff

#: Written once by a child on its channel, when it works.
READY = b"ready\n"
#: A child that ran this long (seconds) resets its count of failures in a row.
_STEADY_S = 60.0
_BACKOFF = Backoff()


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


class ChildProcess:
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
