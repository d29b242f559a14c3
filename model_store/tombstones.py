"""The model's own record of its deletions: keyed hashes of data that must not return.

    tombstones-<fencing>      a header of 64 bytes, then records of 64 bytes

A record is a hash (32 bytes), an identifier of the key that made it (15), a code of what was deleted (1; 128 more if it
joined again, which makes earlier records void), and a checksum of these (16). The header counts the records that the
file was created with; later ones are appended. The database has the same and more. This record matters when an older
database is restored beside the store.

Every writer appends to its own file, named by its fencing number. So an overtaken writer changes nothing in its
successor's file, and removes its own again. All files count together. A record cut off at the end of a file by a crash
is ignored: the database has it, and its request is resumed. Any other unreadable record is damage.
"""

import hashlib
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from model_store.disk.durable import remove_file, replace_file, sync

_RECORD_BYTES = 64
_TITLE = b"lethe tombstones, format 2\n".ljust(40, b"\0")
_CHECKSUM_BYTES = 16
#: Length of a key's identifier.
KEY_BYTES = 15
#: Added to the code of what joined again.
_VOID = 128
_NAME = re.compile(r"(?P<unfinished>\.?)tombstones-(?P<fencing>0|[1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True)
class RecordedTombstone:
    """The keyed hash of a deleted item."""

    #: 32 bytes.
    hash: bytes
    #: Identifier of the key that made it, `KEY_BYTES` bytes, which reveals nothing about the key.
    key: bytes
    #: What was deleted, in a code of the caller's, 0 to 127.
    code: int
    #: Whether it joined again.
    is_void: bool = False


@dataclass(frozen=True)
class TombstoneRecord:
    """The contents of a model's own record of tombstones, without those of what joined again."""

    tombstones: tuple[RecordedTombstone, ...] = ()
    #: Files with unreadable records that were once complete.
    damaged: tuple[Path, ...] = ()
    #: Whether there is at most one file, with all records complete and counted in its header.
    is_tidy: bool = True

    @property
    def hashes(self) -> frozenset[bytes]:
        """The hashes alone."""
        return frozenset(one.hash for one in self.tombstones)


def read(folder: Path) -> TombstoneRecord:
    """Return the record in a model's folder; empty and tidy if none exists. Raises OSError."""
    kept: dict[RecordedTombstone, None] = {}
    damaged = []
    contents = _contents(folder)
    is_tidy = len(contents) <= 1
    for path, raw in contents.items():
        slots = [raw[start : start + _RECORD_BYTES] for start in range(0, len(raw), _RECORD_BYTES)]
        is_cut_off = bool(slots) and len(slots[-1]) < _RECORD_BYTES
        found = [_decoded(slot) for slot in slots[1 : len(slots) - is_cut_off]]
        made_with = _count(raw[:_RECORD_BYTES])
        if made_with is None or len(found) < made_with or None in found:
            damaged.append(path)
        is_tidy = is_tidy and not is_cut_off and len(found) == made_with
        for one in found:
            if one is not None and one.is_void:
                kept.pop(RecordedTombstone(one.hash, one.key, one.code), None)
            elif one is not None:
                kept[one] = None
    return TombstoneRecord(tuple(kept), tuple(damaged), is_tidy and not damaged)


def fencing(folder: Path) -> int:
    """Return the highest fencing number of the record's files, 0 if none exist."""
    return max(_files(folder), default=0)


def files(folder: Path) -> frozenset[str]:
    """Return the names of the record's files."""
    return frozenset(path.name for path in _files(folder).values())


def append(folder: Path, tombstones: Sequence[RecordedTombstone], *, fencing: int) -> None:
    """Append to the writer's own file, durably. Repetition is harmless. Raises OSError."""
    if not tombstones:
        return
    path = _path(folder, fencing)
    if not path.exists():
        _write(path, tombstones)
        _give_way(folder, fencing)
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size % _RECORD_BYTES:
            # Left by an earlier attempt of this writer on a full disk.
            os.ftruncate(descriptor, size - size % _RECORD_BYTES)
        view = memoryview(b"".join(map(_encoded, tombstones)))
        while view:
            view = view[os.write(descriptor, view) :]
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def replace(folder: Path, tombstones: Collection[RecordedTombstone], *, fencing: int) -> None:
    """Replace the record with these, in the writer's own file, and remove those of earlier writers.

    Raises OSError, and then the earlier files count as well.
    """
    _write(_path(folder, fencing), tombstones)
    if _give_way(folder, fencing):
        return
    for earlier, path in _files(folder).items():
        if earlier < fencing:
            remove_file(path)
    remove_unfinished(folder, below_fencing=fencing)
    sync(folder)


def remove_unfinished(folder: Path, *, below_fencing: int) -> None:
    """Remove unfinished files with a fencing number of at most `below_fencing`; none may be in progress."""
    for number, path in _files(folder, unfinished=True).items():
        if number <= below_fencing:
            remove_file(path)


def carry(source: Path, target: Path) -> None:
    """Make the record in the folder `target` equal that in `source`, which may have none. Raises OSError."""
    wanted = _files(source)
    for number, path in wanted.items():
        replace_file(_path(target, number), path.read_bytes(), temporary=f".{path.name}")
    for number, path in _files(target).items():
        if number not in wanted:
            remove_file(path)
    sync(target)


def _path(folder: Path, fencing: int) -> Path:
    return folder / f"tombstones-{fencing}"


def _files(folder: Path, *, unfinished: bool = False) -> dict[int, Path]:
    """Return the record's files by fencing number, ascending, or only the unfinished ones."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    files = {int(match["fencing"]): path for match, path in found if match and bool(match["unfinished"]) == unfinished}
    return dict(sorted(files.items()))


def _give_way(folder: Path, fencing: int) -> bool:
    """Return whether the writer was overtaken, after removing the file it has just written.

    Nothing is lost: a successor starts by replacing the record with the database's, which already has these.
    """
    if max(_files(folder), default=fencing) <= fencing:
        return False
    remove_file(_path(folder, fencing))
    sync(folder)
    return True


def _contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of each file of the record. Raises OSError."""
    while True:
        files = _files(folder)
        try:
            return {path: path.read_bytes() for path in files.values()}
        except FileNotFoundError:
            # A writer has just moved its content to a file of its own.
            if _files(folder) == files:
                raise


def _write(path: Path, tombstones: Collection[RecordedTombstone]) -> None:
    replace_file(path, b"".join([_header(len(tombstones)), *map(_encoded, tombstones)]), temporary=f".{path.name}")


def _header(count: int) -> bytes:
    return _checked(_TITLE + count.to_bytes(8, "little"))


def _count(header: bytes) -> int | None:
    """Return how many records a file was created with; None if its header was altered."""
    count = int.from_bytes(header[len(_TITLE) : -_CHECKSUM_BYTES], "little")
    return count if header == _header(count) else None


def _encoded(one: RecordedTombstone) -> bytes:
    return _checked(one.hash + one.key + bytes([one.code | _VOID * one.is_void]))


def _decoded(record: bytes) -> RecordedTombstone | None:
    body = record[:-_CHECKSUM_BYTES]
    code, is_void = body[-1] % _VOID, body[-1] >= _VOID
    return RecordedTombstone(body[:32], body[32:-1], code, is_void) if record == _checked(body) else None


def _checked(body: bytes) -> bytes:
    return body + hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()
