"""The program `gated.py ORDER`: `lethe serve`, or another command, that stops at a failure point on demand.

A file beside the home names the point. The first process to reach it renames the file, with its process id in the new
name, and stops itself. The order may also name a mutant, and a file with the boot id. The supervisor's children are
forks of it and inherit all this.
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

#: Delay before a lost request is published again; the service's own 15 s are not under test.
_SWEEP_S = 1.0


class Gate:
    """The file that names the point, and its new name after a stop."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self, point: str) -> None:
        """Stop the next process that reaches `point`."""
        for left in self._passed():
            left.unlink()
        written = self._path.with_name(f".{self._path.name}")
        written.write_text(point)
        written.rename(self._path)

    def open(self) -> None:
        """Stop no more processes."""
        self._path.unlink(missing_ok=True)

    def held(self) -> int | None:
        """The stopped process; None if there is none."""
        for passed in self._passed():
            pid = int(passed.suffix[1:])
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                    return pid
        return None

    def reached(self, point: str, cause: object = None) -> None:
        """Called by the service."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.read_text() == point:
                self._path.rename(self._path.with_name(f"{self._path.name}.{os.getpid()}"))
                os.kill(os.getpid(), signal.SIGSTOP)
                # All threads may take a moment to stop.
                time.sleep(0)

    def _passed(self) -> list[Path]:
        return list(self._path.parent.glob(f"{self._path.name}.*"))


def serve(order: Mapping[str, Any]) -> None:
    """Run `lethe serve`, or the command of the order."""
    assert Sweeper.__init__.__kwdefaults__ is not None
    Sweeper.__init__.__kwdefaults__.update(older_than_s=_SWEEP_S, interval_s=_SWEEP_S)
    failure_points.reached = Gate(Path(order["gate"])).reached
    boot_id_from(Path(order["boot"]))
    if order["mutant"] is not None:
        MUTANTS[order["mutant"]]()
    main(order["command"])


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
