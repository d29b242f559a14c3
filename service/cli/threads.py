"""On how many threads torch computes, where nobody has said."""

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

import psutil

#: As in the launcher.
_MOST = 8


def set_threads(environment: MutableMapping[str, str]) -> None:
    """Say in `environment` what the launcher of a checkout says in it; what is set already stays.

    To be called before torch is imported, which reads it once.
    """
    if not environment.get("OMP_NUM_THREADS"):
        environment["OMP_NUM_THREADS"] = str(cores())
    if not environment.get("OMP_WAIT_POLICY"):
        environment["OMP_WAIT_POLICY"] = "passive"


def cores() -> int:
    """Cores that compute: no hyperthreads, no more than this process may use, and at most 8."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed, _quota(), _MOST))


def _quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Processors' worth of time that the control group gets, rounded up; `_MOST` where it is not limited."""
    try:
        quota, period = file.read_text().split()
    except OSError:
        return _MOST
    return _MOST if quota == "max" else math.ceil(int(quota) / int(period))
