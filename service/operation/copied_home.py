"""A LETHE_HOME that is a copy of another: both would sign with one key, and their logs would contradict each other."""

import os
from pathlib import Path

from service.errors import StateMismatch
from service.private_files import write_private
from service.vault.log_keys import name_of

#: Where the home was when it was used last. A copy of it says where the original is.
_NOTE = Path("run") / "home"


def require_original(home: Path) -> None:
    """Note where `home` is; raise StateMismatch for a copy of one that is still there and signs the same log.

    A home that was moved, put back over the one it was copied from, or that is seen under another path (a bind mount,
    a container) goes on: where it was noted there is nothing now, or itself. So does one on another machine, which
    nothing here can tell from one that was moved.
    """
    here, note = home.resolve(), home / _NOTE
    noted = Path(os.fsdecode(note.read_bytes())) if note.exists() else None
    if noted is not None and noted != here and _is_another(noted, here):
        raise StateMismatch(
            f"{here} is a copy of {noted}, which is still there: both would sign one log with the same key, and "
            "contradict each other.",
            f"Start that one instead. To go on with this one in its place, move {noted} away or delete it first. For a "
            "Lethe of its own, start with a new LETHE_HOME.",
        )
    if noted != here:
        write_private(note, os.fsencode(here))


def _is_another(noted: Path, here: Path) -> bool:
    """Whether there is a home at `noted` that is not this one, and signs the log that this one signs."""
    try:
        name = name_of(here / "keys")
        return not noted.samefile(here) and name is not None and name == name_of(noted / "keys")
    except (OSError, ValueError):
        # Nothing that can be read, or no path at all.
        return False
