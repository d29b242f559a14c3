"""Heads: directory entries that select the published version to answer from.

Each is a symbolic link `<fencing>.<version>.<copy>` in `<home>/run/heads/<boot id>-<home id>/` to the version's folder,
made by the unlearner's session with that fencing number. A lost version is written again as another copy. The head is
the highest entry, comparing these numbers in this order. A session that continues after losing its lease can therefore
only make lower ones.

A reader lists the entries after it has computed an answer, and recomputes it if the head has changed. So an answer
comes from the version that was the head at the time of the request, or from a later one. Nothing is overwritten while
it is the head.

Entries of another boot are ignored, because after a power loss the latest one is unknown. Entries that a copied or
restored home has from its original are ignored too.
"""

import contextlib
import os
import secrets
import shutil
from pathlib import Path
from typing import NamedTuple

from service.errors import LeaseLost
from service.home_id import id_of

_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: Target of an entry that suspends predictions.
_WITHHELD = "withheld"
#: Listings to try before reporting no entry: one may be replaced during a listing.
_LISTINGS = 10


class Head(NamedTuple):
    """An entry. The highest of several is the head."""

    fencing: int
    version: int
    copy: int


class Heads:
    """The entries of this boot in one LETHE_HOME."""

    def __init__(self, home: Path) -> None:
        """Raises OSError."""
        self._all_boots = home / "run" / "heads"
        self._folder = str(self._all_boots / f"{boot_id()}-{id_of(home)}")
        #: The names of the last listing, and the head among them.
        self._known: tuple[list[str], Head | None] = ([], None)

    def newest(self, least: Head | None = None) -> Head | None:
        """Return the head; None if there is no entry, or none as high as `least`. Raises OSError."""
        head = None
        for _ in range(_LISTINGS):
            try:
                names = os.listdir(self._folder)  # noqa: PTH208 - building a path for each is slower
            except FileNotFoundError:
                return None
            known, head = self._known
            if names != known:
                head = max(filter(None, map(_parsed, names)), default=None)
                self._known = (names, head)
            if head is not None and (least is None or head >= least):
                return head
        return None

    def folder(self, head: Head) -> Path:
        """Return the version folder of an entry. Raises FileNotFoundError if either is gone."""
        path = self._path(head)
        path.stat()
        return path.readlink()

    def show(self, head: Head, folder: Path) -> None:
        """Make `head` an entry that leads to `folder`, and remove all lower ones.

        Raises OSError, and LeaseLost if there is a higher one.
        """
        self._make(head, str(folder.absolute()))

    def withhold(self, head: Head) -> None:
        """Suspend predictions until this or a later session shows a version. Raises the errors of `show`."""
        self._make(head, _WITHHELD)

    def clear(self) -> None:
        """Remove the entries of all boots. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._all_boots)

    def _make(self, head: Head, target: str) -> None:
        path = self._path(head)
        Path(self._folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (path.is_symlink() and str(path.readlink()) == target):
            unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            unfinished.symlink_to(target)
            unfinished.rename(path)
        for other in path.parent.iterdir():
            # A leading dot marks an unfinished entry.
            found = _parsed(other.name) or _parsed(other.name[1:].rpartition(".")[0])
            if found is not None and other != path and found <= head:
                other.unlink(missing_ok=True)
        for folder in self._all_boots.iterdir():
            if folder != path.parent:
                shutil.rmtree(folder, ignore_errors=True)
        if self.newest() != head:
            raise LeaseLost(
                f"Another session of the unlearner publishes: the entry {path.name} is not the head.",
                "No prediction comes from what this session wrote. It starts again with a new lease.",
            )

    def _path(self, head: Head) -> Path:
        return Path(self._folder, ".".join(map(str, head)))


def boot_id() -> str:
    """Return the id that the kernel generated at boot."""
    return _BOOT.read_text().strip()


def _parsed(name: str) -> Head | None:
    """Parse the name of an entry; None for any other name."""
    numbers = name.split(".")
    return Head(*map(int, numbers)) if len(numbers) == 3 and all(map(str.isdecimal, numbers)) else None
