"""Memory that a measurement takes at its peak (Linux, with glibc)."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


def peak(run: Callable[[], _T]) -> tuple[_T, float]:
    """Return what `run` returns, and the mebibytes of anonymous memory that it took at its peak.

    Freed memory goes back to the system first. A process that still held it would use it again and take nothing. Pages
    of files do not count, such as libraries loaded meanwhile.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _kibibytes("RssAnon")
    found = run()
    files = _kibibytes("RssFile") + _kibibytes("RssShmem")
    return found, max(0.0, _kibibytes("VmHWM") - files - before) / 1024


def _kibibytes(name: str) -> float:
    """Return a size of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
