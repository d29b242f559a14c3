"""Numbers for several parts of one kind that share a home. Names of processes, metrics and files have them."""

import contextlib
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from service.embedded.home import try_lock


@contextlib.contextmanager
def own_number(home: Path, kind: str) -> Iterator[int]:
    """Take the lowest number, from 1, that no other `kind` of this home has, until the end of the block."""
    tried = ((number, _taken(home, numbered(kind, number))) for number in count(1))
    number, descriptor = next((number, descriptor) for number, descriptor in tried if descriptor is not None)
    try:
        yield number
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def taken_if_free(home: Path, kind: str, number: int) -> Iterator[bool]:
    """Take a number until the end of the block; yields False if another process has it, in any container."""
    descriptor = _taken(home, numbered(kind, number))
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def numbered(word: str, number: int) -> str:
    """`api`, `api2`, `api3` and so on."""
    return word if number == 1 else f"{word}{number}"


def _taken(home: Path, name: str) -> int | None:
    """A descriptor that locks a name until it is closed; None if another process has locked it."""
    folder = home / "run"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None
