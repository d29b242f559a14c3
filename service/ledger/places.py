"""Where a ledger is kept: a folder, or a bucket of an S3-compatible server. An entry, once created, is not replaced."""

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from service import private_files
from service.errors import Unavailable

_NAME = re.compile(r"([0-9]{12})\.entry", re.ASCII)
#: What a failed write delays, for people who read the error.
WRITE_REMEDY = (
    "Restore access to it. Until then, what was deleted is gone, but its requests are not completed, and later ones "
    "wait in the queue."
)


class Place(Protocol):
    """Numbered entries, each written once. Every method blocks, and raises Unavailable."""

    #: For messages; contains no secret.
    name: str

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, ascending."""

    def read(self, number: int) -> bytes:
        """Return an entry."""

    def create(self, number: int, content: bytes) -> bool:
        """Write an entry, durably; return False, and change nothing, if the number is taken."""

    def remove(self, number: int) -> None:
        """Remove an entry; a missing one is fine."""


def require_readable(url: str) -> None:
    """Raise ValueError unless `open_place` understands the text."""
    parts = urlsplit(url)
    if url.startswith("s3://"):
        # Messages and logs name the place, so it must not contain a password.
        if not parts.netloc or {"@", ":"} & set(parts.netloc) or parts.query or parts.fragment:
            raise ValueError("must name a bucket, as in s3://bucket/prefix; the variables AWS_… hold all else")
    elif not (url.startswith("/") or (url.startswith("file:///") and not (parts.query or parts.fragment))):
        raise ValueError("must be an absolute path, file:///path or s3://bucket/prefix")


def name_of(number: int) -> str:
    """Return the name of an entry's file or object."""
    return f"{number:012}.entry"


def number_of(name: str) -> int | None:
    """Return the number of an entry; None for other files."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


class FolderPlace:
    """A folder, usually on another machine's disk. Its file system must have hard links."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = str(folder)

    def numbers(self) -> list[int]:
        """Return the numbers of all entries, ascending; none if the folder does not exist."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unavailable("read", error) from error
        return sorted(number for number in map(number_of, names) if number is not None)

    def read(self, number: int) -> bytes:
        """Return an entry."""
        try:
            # Without waiting for the writer of a named pipe.
            descriptor = os.open(self._folder / name_of(number), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, f"{name_of(number)} is not a file")
                return file.read()
        except OSError as error:
            raise self._unavailable("read", error) from error

    def create(self, number: int, content: bytes) -> bool:
        """Write an entry under another name, sync it, and link it to its own, which never replaces a file.

        Raises Unavailable if the entry before is missing, as in the empty folder where another one should be mounted.
        """
        path = self._folder / name_of(number)
        temporary = self._folder / f".{path.name}.{secrets.token_hex(8)}"
        try:
            if number == 1:
                self._folder.mkdir(mode=0o700, exist_ok=True)
            else:
                (self._folder / name_of(number - 1)).stat()
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    path.hardlink_to(temporary)
                except FileExistsError:
                    return False
            finally:
                with suppress(FileNotFoundError):
                    temporary.unlink()
            private_files.sync_folder(self._folder)
        except OSError as error:
            raise self._unavailable("written", error) from error
        return True

    def remove(self, number: int) -> None:
        """Remove an entry; a missing one is fine."""
        try:
            (self._folder / name_of(number)).unlink(missing_ok=True)
            private_files.sync_folder(self._folder)
        except OSError as error:
            raise self._unavailable("written", error) from error

    def _unavailable(self, done: str, error: OSError) -> Unavailable:
        reason = error.strerror or type(error).__name__
        return Unavailable(f"The erasure ledger {self.name} cannot be {done}: {reason}.", WRITE_REMEDY)
