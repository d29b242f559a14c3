"""Default number of threads for torch."""

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

import psutil

#: As in the launcher.
_MOST = 8


def set_threads(environment: MutableMapping[str, str]) -> None:
    """Set the variables that a checkout's launcher sets in `environment`; existing values stay.

    Call it before importing torch, which reads them once.
    """
    if not environment.get("OMP_NUM_THREADS"):
        environment["OMP_NUM_THREADS"] = str(cores())
    if not environment.get("OMP_WAIT_POLICY"):
        environment["OMP_WAIT_POLICY"] = "passive"
    if not environment.get("OPENBLAS_THREAD_TIMEOUT"):
        # A thread of numpy's waits busily for 2^26 ticks after each product, beside the processes that have work.
        environment["OPENBLAS_THREAD_TIMEOUT"] = "4"


def cores() -> int:
    """Return the number of cores to compute on: physical ones that this process may use, at most 8."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed, _quota(), _MOST))


def _quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the control group's CPU quota in processors, rounded up; `_MOST` if unlimited."""
    try:
        quota, period = file.read_text().split()
    except OSError:
        return _MOST
    return _MOST if quota == "max" else math.ceil(int(quota) / int(period))
