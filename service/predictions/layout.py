"""Publications: their location and contents.

    <share>/lethe-<random>/
        model/               of one import; deleted entries are blanked in place
            manifest.json checksums ids offsets index edges public
        versions/<version>-<random>/
            manifest.json probabilities live
        home                 the LETHE_HOME that owns it: its id and its path

One session of the unlearner writes a publication, and no other session writes to it. So a session that continues after
losing its lease cannot harm its successor's. An import, and the loss of a publication, begin a new one.

`<home>/run/publications/<fencing>-<random>` is a symbolic link to each, with the fencing number of its session. A
session removes those with lower numbers, and its own earlier ones. `heads` selects the version that readers answer
from. A folder gets its name once it is complete, and loses it before it is overwritten. Before and after that, its name
begins with a dot.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from service.errors import StateMismatch
from service.home_id import id_of, kind_of, known_id
from service.predictions.facts import FORMAT, ModelManifest, VersionManifest, document_of
from service.private_files import ignore_in_git, sync_folder, write_private

MANIFEST = "manifest.json"
#: Held shared while anything in the home publishes or reads; the last user holds it alone to remove everything.
_LOCK = Path("run") / "publication.lock"
_LINKS = Path("run") / "publications"
#: Name of a link: fencing number and random part. Other files in that folder are ignored.
_NAME = re.compile(r"\d+-[0-9a-f]+")
_PREFIX = "lethe-"
_OWNER = "home"
_MEMORY = Path("/dev/shm")
#: Bytes per overwriting write.
_BLOCK = 1 << 20
_Manifest = TypeVar("_Manifest", ModelManifest, VersionManifest)


class OtherPublicationFormat(StateMismatch):
    """The publication has another format."""


@dataclass(frozen=True)
class Layout:
    """The folders of one publication."""

    path: Path
    #: The link in the home.
    link: Path

    @classmethod
    def all_of(cls, home: Path) -> "list[Layout]":
        """Return the publications that belong to a LETHE_HOME, highest fencing number first. Raises OSError."""
        found = [cls(_target(link), link) for link in _links(home)]
        return sorted((one for one in found if one._is_of(home)), key=lambda one: one.fencing, reverse=True)

    @classmethod
    def make(cls, home: Path, share: Path | None, fencing: int, *, room: int) -> "Layout":
        """Create a publication below `share` for the session with this fencing number. Raises OSError.

        By default it is in memory if such a file system has `room` bytes free, else in `run` below the home.
        """
        parent = (share or (_MEMORY if _has_room(room) else home / "run")).resolve()
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        token, links = secrets.token_hex(8), (home / _LINKS).resolve()
        made = cls(parent / f"{_PREFIX}{token}", links / f"{fencing}-{token}")
        links.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A home that moves takes its contents along.
        below = parent.is_relative_to(home.resolve())
        made.link.symlink_to(os.path.relpath(made.path, links) if below else made.path)
        # Sync first, so that every publication has a link.
        sync_folder(links)
        try:
            made.path.mkdir(mode=0o700)
            write_private(made.path / _OWNER, f"{id_of(home)}\n{home.resolve()}")
            ignore_in_git(made.path)
            made.versions.mkdir(mode=0o700)
        except OSError:
            made.remove()
            raise
        structlog.get_logger(__name__).info("publication.made", folder=str(made.path))
        return made

    @classmethod
    def highest_fencing(cls, home: Path) -> int:
        """Return the highest fencing number of a home's known publications, or 0. Raises OSError."""
        return max(map(_fencing, _links(home)), default=0)

    @property
    def model(self) -> Path:
        """The folder of the import."""
        return self.path / "model"

    @property
    def versions(self) -> Path:
        """The parent folder of the versions."""
        return self.path / "versions"

    @property
    def fencing(self) -> int:
        """Fencing number of the session that writes it."""
        return _fencing(self.link)

    def remove_others(self, home: Path) -> None:
        """Overwrite and remove this session's other publications, and all of earlier sessions. Raises OSError."""
        for link in _links(home):
            other = Layout(_target(link), link)
            if other.link.name == self.link.name or other.fencing > self.fencing:
                continue
            if other._is_ours(home):
                other.remove()
            else:
                # It is gone, or belongs to the home that this one was copied from.
                link.unlink(missing_ok=True)

    def remove(self) -> None:
        """Overwrite and remove whatever is left of it. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            # Versions first: a reader that finds one by its name trusts the model's files.
            for folder in self.versions.iterdir():
                remove_folder(folder)
        with contextlib.suppress(FileNotFoundError):
            for folder in self.path.iterdir():
                if folder.is_dir() and folder != self.versions:
                    remove_folder(folder)
            shutil.rmtree(self.path)
        self.link.unlink(missing_ok=True)

    def _is_of(self, home: Path) -> bool:
        """Return whether it belongs to this home and only this user can read or write it. Raises OSError."""
        return self._is_ours(home) and stat.S_IMODE(self.path.lstat().st_mode) == 0o700

    def _is_ours(self, home: Path) -> bool:
        """Return whether it belongs to this home, not to the home's original or another user. Raises OSError.

        A home is identified by its id, even after it was moved. A home restored in place of another has a new id;
        publications of its predecessor at that path belong to it.
        """
        try:
            found = self.path.lstat()
            owner, _, path = (self.path / _OWNER).read_text().partition("\n")
        except FileNotFoundError:
            return False
        is_own_folder = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        return is_own_folder and (owner == known_id(home) or path == str(home.resolve()))


@contextlib.contextmanager
def in_use(home: Path) -> Iterator[Callable[[], bool]]:
    """Keep publications from being removed inside the block. Waits while they are being removed. Raises OSError.

    Yields a function that returns whether nobody else uses them. After True, others wait for the end of the block.
    After False, this process no longer counts as a user. So if several ask concurrently, the last one gets True.
    """
    path = home / _LOCK
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def is_last() -> bool:
        try:
            # The shared lock is released first, whether this succeeds or not.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield is_last
    finally:
        os.close(descriptor)


def _links(home: Path) -> list[Path]:
    try:
        return [path for path in (home / _LINKS).iterdir() if path.is_symlink() and _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []


def _target(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / link.readlink()))


def _fencing(link: Path) -> int:
    return int(link.name.partition("-")[0])


def read_manifest(folder: Path, kind: type[_Manifest]) -> _Manifest:
    """Read the manifest of a folder.

    Raises FileNotFoundError if it is gone, OtherPublicationFormat and PublicationDamaged.
    """
    path = folder / MANIFEST
    document = document_of(path.read_bytes(), path)
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.DecodeError as error:
        raise OtherPublicationFormat(
            f"The publication {folder} is not of format {FORMAT}, which this process reads: another version of Lethe "
            f"wrote it ({error}).",
            "Start all processes of Lethe from the same version.",
        ) from error


def hidden(folder: Path) -> Path:
    """Return a unique name for an incomplete folder."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")


def remove_folder(folder: Path) -> None:
    """Overwrite and remove a folder of files; ignores a missing one. Raises OSError.

    It loses its name first, so that it never counts as complete if this fails.
    """
    with contextlib.suppress(FileNotFoundError):
        if not folder.name.startswith("."):
            folder = folder.rename(hidden(folder))
        for path in folder.iterdir():
            _overwrite(path)
            path.unlink()
        folder.rmdir()


def _overwrite(path: Path) -> None:
    """Overwrite in place: another file of the same name would leave the bytes on the disk."""
    with path.open("r+b", buffering=0) as file:
        left = os.fstat(file.fileno()).st_size
        zeros = bytes(min(left, _BLOCK))
        while left > 0:
            left -= file.write(zeros[: min(left, _BLOCK)])


def _has_room(room: int) -> bool:
    """Return whether a writable file system in memory has this many bytes free."""
    if kind_of(_MEMORY) != "tmpfs" or not os.access(_MEMORY, os.W_OK):
        return False
    return shutil.disk_usage(_MEMORY).free >= room
