"""The folder of the tests' files: in memory if there is room, since tests create and remove many small files."""

import os
import shutil
import tempfile
from pathlib import Path

import psutil

_MEMORY = Path("/dev/shm")
_PREFIX = "lethe-tests-"
#: Required free space, in the file system and in memory (bytes); runs without sweeps use less.
_ROOM = 4 << 30


def new_folder() -> Path | None:
    """Create a folder in memory that belongs to this process; None without such a file system or without room."""
    if not _has_room():
        return None
    for left in _MEMORY.glob(f"{_PREFIX}*"):
        if not psutil.pid_exists(int(left.name.removeprefix(_PREFIX).partition("-")[0])):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_MEMORY))


def _has_room() -> bool:
    try:
        system = os.statvfs(_MEMORY)
    except OSError:
        return False
    # Some tests run programs that they have written.
    usable = os.access(_MEMORY, os.W_OK) and not system.f_flag & os.ST_NOEXEC
    return usable and min(system.f_bavail * system.f_frsize, psutil.virtual_memory().available) >= _ROOM
