"""Which LETHE_HOME this is: a random id that a copy, or what was restored from a backup, does not share."""

import fcntl
import os
import secrets
from pathlib import Path

import msgspec

#: Below the home, and in no backup of it.
_FILE = Path("run") / "id.json"


class _Drawn(msgspec.Struct, frozen=True):
    """What is in the file."""

    id: str
    #: The inodes of the home, of the folder that the file is in, and of the file, by which a copy is known.
    inodes: tuple[int, int, int]


def known_id(home: Path) -> str | None:
    """The id of a home; None where none was drawn for it yet."""
    try:
        drawn = msgspec.json.decode((home / _FILE).read_bytes(), type=_Drawn)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return drawn.id if drawn.inodes == _inodes(home) else None


def id_of(home: Path) -> str:
    """The id of a home, drawn now if there is none. Raises OSError."""
    folder = (home / _FILE).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Of two processes that start at once, one draws it.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        found = known_id(home)
        if found is None:
            found = secrets.token_hex(16)
            (home / _FILE).unlink(missing_ok=True)
            with open(home / _FILE, "xb", opener=_private) as file:
                file.write(msgspec.json.encode(_Drawn(found, _inodes(home))))
                file.flush()
                os.fsync(file.fileno())
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _inodes(home: Path) -> tuple[int, int, int]:
    file = home / _FILE
    return home.stat().st_ino, file.parent.stat().st_ino, file.stat().st_ino
