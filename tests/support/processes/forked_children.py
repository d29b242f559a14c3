"""The children of a supervisor as forks of it, which has imported what they need; see `preloaded.py`.

All else is as the supervisor does it: the descriptors, the environment, the process group, the end with the parent.
"""

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NoReturn

from service.cli import child
from service.processes import supervisor
from service.processes.private_servers.guardian import die_with_parent
from tests.support.preloaded import ended, leave

#: Until a fork has signal handlers of its own, none may run in it, and none of its parent's ever.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Fork:
    """What a supervisor uses of a `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> None:
        self._status: int | None = None
        end_with_parent = die_with_parent(signal.SIGKILL)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            # Nothing of the parent's is taken apart here: its objects would close descriptors that are others by then.
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
    """In one of its children: end it, and with it this process, which goes not a step further."""
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
    """From now on, in this process and its forks."""
    supervisor.launch = Fork  # type: ignore[assignment]  # it has what a supervisor uses of a Popen
