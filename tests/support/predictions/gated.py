"""A program, `gated.py ORDER`, that is `lethe serve`, or another command, and stops at a failure point when told to.

A file beside the home names the point; the first process that comes to it takes the file, leaves its process id in the
new name and stops itself. The order may also name a mutant, and a file with the boot id. The children of the supervisor
are forks of it, which inherit all this.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from service import failure_points
from service.cli.main import main
from service.requests.delivery import Sweeper
from tests.support.predictions.mutants import MUTANTS, boot_id_from

#: So soon a request that the stream has lost is published again: the service's own 15 s are no part of what is checked.
_SWEEP_S = 1.0


class Gate:
    """The file that says where a process is to stop, and what its name becomes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self, point: str) -> None:
        """The next process to come to `point` stops there."""
        for left in self._passed():
            left.unlink()
        written = self._path.with_name(f".{self._path.name}")
        written.write_text(point)
        written.rename(self._path)

    def open(self) -> None:
        """Nobody stops, who has not already."""
        self._path.unlink(missing_ok=True)

    def held(self) -> int | None:
        """The process that has stopped; None while there is none."""
        for passed in self._passed():
            pid = int(passed.suffix[1:])
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    return pid
        return None

    def reached(self, point: str, cause: object = None) -> None:
        """What the service calls."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.read_text() == point:
                self._path.rename(self._path.with_name(f"{self._path.name}.{os.getpid()}"))
                os.kill(os.getpid(), signal.SIGSTOP)
                # It may be a moment until all threads have stopped.
                time.sleep(0)

    def _passed(self) -> list[Path]:
        return list(self._path.parent.glob(f"{self._path.name}.*"))


def serve(order: Mapping[str, Any]) -> None:
    """Be `lethe serve`, or the command of the order."""
    assert Sweeper.__init__.__kwdefaults__ is not None
    Sweeper.__init__.__kwdefaults__.update(older_than_s=_SWEEP_S, interval_s=_SWEEP_S)
    failure_points.reached = Gate(Path(order["gate"])).reached
    boot_id_from(Path(order["boot"]))
    if order["mutant"] is not None:
        MUTANTS[order["mutant"]]()
    main(order["command"])


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
