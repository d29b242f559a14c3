"""Where a publication lies, and what is in it.

    <share>/lethe-<random>/                  named by `<home>/run/publication`
    models/<fencing>-<random>/               of each import; what goes is blanked in place
        manifest.json checksums.<fencing> ids offsets index edges public
    versions/<version>-<fencing>-<random>/   of each version, and again where it was lost
        manifest.json probabilities live
    home                                     the LETHE_HOME it is of: a copied home makes a publication of its own

It is derived from the store and may be lost at any time. Which version readers answer from is told by `heads`. A folder
is whole once it has its name; until then its name begins with a dot, and so it does while it is removed. Every name has
the fencing number of the unlearner that wrote it, and none is written under two: one that goes on after it lost its
lease spoils nothing of its successor's.
"""

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from service.errors import StateMismatch
from service.private_files import ignore_in_git, write_private
from service.publication.checksums import unsealed
from service.publication.facts import FORMAT, ModelManifest, VersionManifest

MANIFEST = "manifest.json"
_NAMED_BY = Path("run") / "publication"
_PREFIX = "lethe-"
#: The home that it belongs to.
_OWNER = "home"
_MEMORY = Path("/dev/shm")
#: Bytes that are overwritten at a time.
_BLOCK = 1 << 20
_Manifest = TypeVar("_Manifest", ModelManifest, VersionManifest)


class OtherPublicationFormat(StateMismatch):
    """A publication of another format."""


@dataclass(frozen=True)
class Layout:
    """The folders of one publication."""

    path: Path

    @classmethod
    def find(cls, home: Path) -> "Layout | None":
        """The publication that belongs to a LETHE_HOME; None when there is none. Raises OSError."""
        path = next(iter(_named(home)), None)
        return cls(path) if path is not None and _is_of(path, home) else None

    @classmethod
    def all_of(cls, home: Path) -> "list[Layout]":
        """The publication, and what is left of earlier ones elsewhere. Raises OSError."""
        return [cls(path) for path in _named(home) if _is_of(path, home)]

    @classmethod
    def make(cls, home: Path, share: Path | None, *, room: int) -> "Layout":
        """The publication of a LETHE_HOME; a new one, below `share`, when it has none there. Raises OSError.

        By default the new one is in memory, where there is such a file system with `room` bytes to spare, else in
        `run` below the home. One that lies elsewhere than wanted is left to `remove_outgrown`.
        """
        found = cls.find(home)
        wanted = share or (_MEMORY if _has_room(room) else home / "run")
        if found is not None and (share is None or found.path.parent == wanted):
            return found
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=wanted)))
        for folder in (made.models, made.versions):
            folder.mkdir(mode=0o700)
        ignore_in_git(made.path)
        write_private(made.path / _OWNER, str(home.resolve()))
        # From the newest to the oldest.
        write_private(home / _NAMED_BY, "\n".join([str(made.path), *map(str, _named(home))]))
        structlog.get_logger(__name__).info("publication.made", folder=str(made.path))
        return made

    def remove_outgrown(self, home: Path) -> None:
        """Overwrite and remove what was published elsewhere before this one was made. Raises OSError."""
        newest, *outgrown = _named(home)
        if newest != self.path or not outgrown:
            return
        for path in outgrown:
            if _is_of(path, home):
                Layout(path).remove()
        write_private(home / _NAMED_BY, str(newest))

    @property
    def models(self) -> Path:
        """A folder for each import."""
        return self.path / "models"

    @property
    def versions(self) -> Path:
        """A folder for each version."""
        return self.path / "versions"

    def remove(self) -> None:
        """Overwrite and remove all of it. Raises OSError."""
        # Versions first: whoever finds one that has its name trusts its model's files.
        for folder in (*self.versions.iterdir(), *self.models.iterdir()):
            remove_folder(folder)
        # First, so that what is left of it, however this ends, is not taken for a publication.
        (self.path / _OWNER).unlink(missing_ok=True)
        shutil.rmtree(self.path)


def _named(home: Path) -> list[Path]:
    """The folders that were made for a LETHE_HOME and are not known to be gone, the newest first."""
    try:
        return [Path(line) for line in (home / _NAMED_BY).read_text().splitlines()]
    except FileNotFoundError:
        return []


def _is_of(path: Path, home: Path) -> bool:
    """Whether a folder is a publication of this very home: not that of one it is a copy of, nor another user's."""
    try:
        found = path.lstat()
        return (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.geteuid()
            and stat.S_IMODE(found.st_mode) == 0o700
            and (path / _OWNER).read_text() == str(home.resolve())
        )
    except (FileNotFoundError, PermissionError):
        return False


def read_manifest(folder: Path, kind: type[_Manifest]) -> _Manifest:
    """The manifest of a folder.

    Raises FileNotFoundError if it is gone, OtherPublicationFormat and PublicationDamaged.
    """
    path = folder / MANIFEST
    document = unsealed(path.read_bytes(), path)
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.ValidationError as error:
        raise OtherPublicationFormat(
            f"The publication {folder} is not of format {FORMAT}, which this process reads: another version of Lethe "
            f"wrote it ({error}).",
            "Start all processes of Lethe from the same version.",
        ) from error


def hidden(folder: Path) -> Path:
    """A name for a folder that is not whole, which no other has."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")


def written_under(folder: Path) -> int:
    """The fencing number of the unlearner that wrote a folder, whole or not, by its name."""
    name = folder.name[1:].rpartition(".")[0] if folder.name.startswith(".") else folder.name
    return int(name.split("-")[-2])


def remove_folder(folder: Path) -> None:
    """Overwrite and remove a folder of files; one that is gone already is fine. Raises OSError.

    It loses its name first, so that it is not taken for whole however this ends.
    """
    with contextlib.suppress(FileNotFoundError):
        if not folder.name.startswith("."):
            folder = folder.rename(hidden(folder))
        for path in folder.iterdir():
            _overwrite(path)
            path.unlink()
        folder.rmdir()


def _overwrite(path: Path) -> None:
    """In place: another file of the same name would leave the bytes where they are."""
    with path.open("r+b", buffering=0) as file:
        left = os.fstat(file.fileno()).st_size
        zeros = bytes(min(left, _BLOCK))
        while left > 0:
            left -= file.write(zeros[: min(left, _BLOCK)])


def _has_room(room: int) -> bool:
    """Whether there is a file system in memory that can be written to, with so many bytes free."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        system = os.statvfs(_MEMORY)
    except OSError:
        return False
    in_memory = any(line.split()[1:3] == [str(_MEMORY), "tmpfs"] for line in mounts)
    return in_memory and os.access(_MEMORY, os.W_OK) and system.f_bavail * system.f_frsize >= room
