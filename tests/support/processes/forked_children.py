"""A supervisor's children as forks of it, with its imports; see `preloaded.py`.

Everything else is as in the supervisor: descriptors, environment, process group, and the end with the parent.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NoReturn

from service.cli import child
from service.processes import child_process
from service.processes.private_servers.guardian import die_with_parent
from tests.support.preloaded import ended, leave

#: Blocked until a fork has its own signal handlers; it must never run its parent's.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Fork:
    """The part of `subprocess.Popen` that a supervisor uses."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> None:
        self._status: int | None = None
        end_with_parent = die_with_parent(signal.SIGKILL)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            # The parent's objects are not destroyed here: they would close descriptors that are others by then.
            try:
                os.setpgid(0, 0)
                assert end_with_parent is not None
                end_with_parent()
                signal.set_wakeup_fd(-1)
                for number in _SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                _inherit(descriptors)
                os.environ.clear()
                os.environ.update(environment)
                sys.argv = list(command[command.index("-m") + 1 :])
                leave(child.main)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def poll(self) -> int | None:
        if self._status is None:
            self._status = ended(self.pid, os.WNOHANG)
        return self._status

    def wait(self) -> int:
        while self._status is None:
            self._status = ended(self.pid, 0)
        return self._status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def kill_supervisor() -> NoReturn:
    """From one of its children: kill the supervisor, and with it this process, which stops here."""
    os.kill(os.getppid(), signal.SIGKILL)
    while True:
        threading.Event().wait()


def _inherit(descriptors: Sequence[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    first = 3
    for kept in (*sorted(descriptors), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, kept)
        first = kept + 1


def install() -> None:
    """Use forks in this process and its forks from now on."""
    child_process.launch = Fork  # type: ignore[assignment]  # it has what a supervisor uses of a Popen
