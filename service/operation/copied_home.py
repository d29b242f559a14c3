"""Detects a LETHE_HOME that is a copy of another: both would sign with one key, and their logs would contradict."""

import os
from pathlib import Path

from service.errors import StateMismatch
from service.private_files import write_private
from service.vault.log_keys import name_of

#: Holds the path where the home was last used, so a copy names its original.
_NOTE = Path("run") / "home"


def require_original(home: Path) -> None:
    """Record the path of `home`; raise StateMismatch if it is a copy and the original still signs the same log.

    A home passes if it was moved, was restored over its original, or appears under another path (a bind mount, a
    container): the recorded path then holds nothing, or this home itself. A copy on another machine passes too, because
    it looks the same as a home that was moved there.
    """
    here, note = home.resolve(), home / _NOTE
    noted = Path(os.fsdecode(note.read_bytes())) if note.exists() else None
    if noted is not None and noted != here and _is_another(noted, here):
        raise StateMismatch(
            f"{here} is a copy of {noted}, which still exists: both would sign the same log with the same key "
            "and contradict each other.",
            f"Start the original instead. To use this copy in its place, move {noted} away or delete it first. For a "
            "separate Lethe, start with a new LETHE_HOME.",
        )
    if noted != here:
        write_private(note, os.fsencode(here))


def _is_another(noted: Path, here: Path) -> bool:
    """Whether `noted` is another home that signs the same log as this one."""
    try:
        name = name_of(here / "keys")
        return not noted.samefile(here) and name is not None and name == name_of(noted / "keys")
    except (OSError, ValueError):
        # Unreadable, or not a path.
        return False
