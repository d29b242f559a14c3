"""Checksums of published files, which a reader checks before it answers from them.

Each block of a file has its own checksum, because deleted entries are overwritten in place. Checksums detect accidental
changes only: anyone who can write to a publication can write them too.
"""

import errno
import mmap
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from service.errors import Unavailable

#: Bytes of a block; a multiple of every entry's width.
BLOCK = 1 << 18
_FILE = "checksums"

#: The CRC-32 of each block of each file, by the file's name.
Checksums = Mapping[str, Sequence[int]]


class PublicationDamaged(Unavailable):
    """A file of a publication differs from what was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is damaged: it differs from what was published. Restarting the unlearner writes it again.",
            "Have the operator restart the unlearner.",
        )


def of_bytes(data: memoryview) -> list[int]:
    """The checksum of each block of a file's bytes."""
    return [zlib.crc32(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK)]


def of_file(path: Path) -> list[int]:
    """The checksum of each block of a file. Raises OSError."""
    with path.open("rb") as file:
        return [zlib.crc32(block) for block in iter(lambda: file.read(BLOCK), b"")]


def after_change(path: Path, before: Sequence[int], changed: Collection[int]) -> list[int]:
    """The checksums of a file after the blocks `changed` were modified. Raises OSError."""
    found = list(before)
    with path.open("rb") as file:
        for block in changed:
            file.seek(block * BLOCK)
            found[block] = zlib.crc32(file.read(BLOCK))
    return found


def sealed(document: bytes) -> bytes:
    """A one-line document, followed by a line with its checksum."""
    return b"%s\n%08x\n" % (document, zlib.crc32(document))


def unsealed(data: bytes, path: Path) -> bytes:
    """The document sealed in `data`, the content of the file `path`.

    Raises PublicationDamaged, and FileNotFoundError for a file that is being overwritten and removed.
    """
    if data.startswith(b"\0"):
        raise FileNotFoundError(errno.ENOENT, f"{path} is being removed")
    document, _, rest = data.partition(b"\n")
    if sealed(document) != data or not rest:
        raise PublicationDamaged(path)
    return document


def write_checksums(folder: Path, checksums: Checksums | None) -> None:
    """Store the checksums of the files in `folder`; None while the files change. Raises OSError."""
    unfinished = folder / f".{_FILE}"
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(sealed(msgspec.json.encode(checksums)))
    unfinished.rename(folder / _FILE)


def read_checksums(folder: Path) -> Checksums | None:
    """The checksums of the files in `folder`; None while the files change.

    Raises FileNotFoundError if they are gone, and PublicationDamaged.
    """
    path = folder / _FILE
    document = unsealed(path.read_bytes(), path)
    try:
        return msgspec.json.decode(document, type=dict[str, list[int]] | None)
    except msgspec.DecodeError:
        raise PublicationDamaged(path) from None


def check(folder: Path, files: Mapping[str, mmap.mmap], expected: Checksums) -> None:
    """Raise PublicationDamaged if one of a folder's files, by name, does not match its checksums."""
    for name, data in files.items():
        if of_bytes(memoryview(data)) != list(expected.get(name, ())):
            raise PublicationDamaged(folder / name)
