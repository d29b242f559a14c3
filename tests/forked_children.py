"""Lethe's command line, whose supervisor forks its children instead of starting them: what is imported stays imported.

Run in a fork of a process that has imported the service (`tests/preloaded.py`), it is there at once, and so are they.
What a child inherits and how it ends is as with `subprocess`, which the tests of the supervisor itself use.
"""

import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from service import supervisor
from service.cli.__main__ import main
from tests.preloaded import leave


class ForkedChild(subprocess.Popen[bytes]):
    """A child that runs a module in a fork of this process."""

    def _execute_child(self, *given: Any) -> None:
        """Overridden, because all else about a process is as it is."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        pass_fds: Sequence[int],
        process_group: int,
        preexec_fn: Callable[[], None] | None,
    ) -> None:
        super().__init__(command)
        sys.stdout.flush()
        self.pid = os.fork()
        self._child_created = True
        if self.pid == 0:
            status = 1
            try:
                os.setpgid(0, process_group)
                _separate(env, pass_fds)
                if preexec_fn is not None:
                    preexec_fn()
                module, *arguments = command[command.index("-m") + 1 :]
                sys.argv = [module, *arguments]
                runpy.run_module(module, run_name="__main__", alter_sys=True)
                status = 0
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:  # noqa: BLE001 - as the interpreter does
                traceback.print_exc()
            finally:
                leave(status)


def _separate(environment: Mapping[str, str], kept: Sequence[int]) -> None:
    """Give up what a program of its own would not have inherited."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *kept}:  # noqa: PTH208
        with suppress(OSError):  # that of the listing itself
            os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)


if __name__ == "__main__":
    supervisor.subprocess = SimpleNamespace(Popen=ForkedChild, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]
    main()
