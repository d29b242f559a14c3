"""Which of several of a kind that share a home: by their numbers processes, metrics and files of facts differ."""

import contextlib
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from service.embedded.home import try_lock


@contextlib.contextmanager
def own_number(home: Path, kind: str) -> Iterator[int]:
    """The lowest number, from 1, that no other `kind` of this home has; it is taken until the end of the block."""
    tried = ((number, _taken(home, numbered(kind, number))) for number in count(1))
    number, descriptor = next((number, descriptor) for number, descriptor in tried if descriptor is not None)
    try:
        yield number
    finally:
        os.close(descriptor)


def is_only(home: Path, kind: str, number: int) -> bool:
    """Whether no other `kind` of this home has a number, for the one that has `number`."""
    for path in (home / "run").glob(f"{kind}*.lock"):
        if path.stem == numbered(kind, number):
            continue
        if (descriptor := _taken(home, path.stem)) is None:
            return False
        os.close(descriptor)
    return True


def numbered(word: str, number: int) -> str:
    """`api`, `api2`, `api3` and so on."""
    return word if number == 1 else f"{word}{number}"


def _taken(home: Path, name: str) -> int | None:
    """A descriptor that holds a name until it is closed; None if another process holds it."""
    folder = home / "run"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None
