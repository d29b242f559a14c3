"""The model's own record of what was deleted from it: keyed hashes, by which it knows what it must not take back.

    tombstones      a header of 64 bytes, then records of 64 bytes

A record is hash (32 bytes), by what the key that made it is told from others (15), a code of what was deleted (1), and
a checksum of that (16). The database has the same and more; this is for when an older database is restored beside the
store. A record that a crash cut off, or that is damaged, counts as none; the next start writes the file anew from the
database.
"""

import hashlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from model_store.files import replace_file, sync_folder

FILE = "tombstones"
_RECORD_BYTES = 64
_HEADER = b"lethe tombstones, format 1\n".ljust(_RECORD_BYTES, b"\0")
_CHECKSUM_BYTES = 16
#: Length of what tells the keys apart.
KEY_BYTES = 15


@dataclass(frozen=True)
class KeptTombstone:
    """The keyed hash of something deleted."""

    #: 32 bytes.
    hash: bytes
    #: By what the key that made it is told from others, `KEY_BYTES` bytes; nothing can be told of the key from it.
    key: bytes
    #: What was deleted, in a code of the caller's, 0 to 255.
    code: int


@dataclass(frozen=True)
class Kept:
    """What a record of tombstones holds."""

    tombstones: tuple[KeptTombstone, ...]
    #: Whether all of the file could be read.
    is_whole: bool

    @property
    def hashes(self) -> frozenset[bytes]:
        """The hashes alone."""
        return frozenset(one.hash for one in self.tombstones)


def read(path: Path) -> Kept:
    """What the record at `path` holds; nothing, and whole, when there is no file."""
    if not path.exists():
        return Kept((), is_whole=True)
    raw = path.read_bytes()
    records = [raw[start : start + _RECORD_BYTES] for start in range(_RECORD_BYTES, len(raw), _RECORD_BYTES)]
    found = [_decoded(record) for record in records]
    kept = dict.fromkeys(one for one in found if one is not None)
    return Kept(tuple(kept), is_whole=raw[:_RECORD_BYTES] == _HEADER and None not in found)


def append(path: Path, tombstones: Sequence[KeptTombstone]) -> None:
    """Adds to the record at `path`, durably; adding the same again does no harm. Raises OSError."""
    if not tombstones:
        return
    if not path.exists():
        replace(path, tombstones)
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size % _RECORD_BYTES:
            # What an earlier attempt, on a disk that was full, has left.
            os.ftruncate(descriptor, size - size % _RECORD_BYTES)
        view = memoryview(b"".join(map(_encoded, tombstones)))
        while view:
            view = view[os.write(descriptor, view) :]
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: Path, tombstones: Collection[KeptTombstone]) -> None:
    """Makes the record at `path` hold exactly these, in one step. Raises OSError."""
    replace_file(path, b"".join([_HEADER, *map(_encoded, tombstones)]), temporary=f".{FILE}")


def carry(source: Path, target: Path) -> None:
    """Makes the record at `target` that at `source`, and none where that has none. Raises OSError."""
    if source.exists():
        replace_file(target, source.read_bytes(), temporary=f".{FILE}")
    elif target.exists():
        target.unlink()
        sync_folder(target.parent)


def _encoded(one: KeptTombstone) -> bytes:
    body = one.hash + one.key + bytes([one.code])
    return body + hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()


def _decoded(record: bytes) -> KeptTombstone | None:
    body, checksum = record[:-_CHECKSUM_BYTES], record[-_CHECKSUM_BYTES:]
    if len(record) != _RECORD_BYTES or hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest() != checksum:
        return None
    return KeptTombstone(body[:32], body[32:-1], body[-1])
