"""The model's own record of what was deleted from it: keyed hashes, by which it knows what it must not take back.

    tombstones-<fencing>      a header of 64 bytes, then records of 64 bytes

A record is hash (32 bytes), by what the key that made it is told from others (15), a code of what was deleted (1), and
a checksum of that (16). The header says how many records the file was made with; others are added behind them. The
database has the same and more; this is for when an older database is restored beside the store.

Every writer adds to a file of its own, named by its fencing number, so that one that was overtaken changes nothing of
its successor's, and removes its own again; what counts is what all of them hold. A record that a crash cut off at the
end of a file counts as none: the database has it, and what it is part of is taken up again. Any other that cannot be
read is damage.
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
#: Length of what tells the keys apart.
KEY_BYTES = 15
_NAME = re.compile(r"(?P<unfinished>\.?)tombstones-(?P<fencing>0|[1-9][0-9]{0,17})", re.ASCII)


@dataclass(frozen=True)
class RecordedTombstone:
    """The keyed hash of something deleted."""

    #: 32 bytes.
    hash: bytes
    #: By what the key that made it is told from others, `KEY_BYTES` bytes; nothing can be told of the key from it.
    key: bytes
    #: What was deleted, in a code of the caller's, 0 to 255.
    code: int


@dataclass(frozen=True)
class TombstoneRecord:
    """What a model's own record of tombstones holds."""

    tombstones: tuple[RecordedTombstone, ...] = ()
    #: Files in which something cannot be read that was once written whole.
    damaged: tuple[Path, ...] = ()
    #: Whether there is one file at most, with all its records whole and counted in its header.
    is_tidy: bool = True

    @property
    def hashes(self) -> frozenset[bytes]:
        """The hashes alone."""
        return frozenset(one.hash for one in self.tombstones)


def read(folder: Path) -> TombstoneRecord:
    """What the record in a model's folder holds; nothing, and tidy, where there is none. Raises OSError."""
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
        kept.update((one, None) for one in found if one is not None)
    return TombstoneRecord(tuple(kept), tuple(damaged), is_tidy and not damaged)


def fencing(folder: Path) -> int:
    """The highest fencing number under which anything of the record was written, 0 where there is none."""
    return max(_files(folder), default=0)


def files(folder: Path) -> frozenset[str]:
    """The names of the files of the record."""
    return frozenset(path.name for path in _files(folder).values())


def append(folder: Path, tombstones: Sequence[RecordedTombstone], *, fencing: int) -> None:
    """Adds to the writer's own file, durably; adding the same again does no harm. Raises OSError."""
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
            # What an earlier attempt of this writer, on a disk that was full, has left.
            os.ftruncate(descriptor, size - size % _RECORD_BYTES)
        view = memoryview(b"".join(map(_encoded, tombstones)))
        while view:
            view = view[os.write(descriptor, view) :]
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def replace(folder: Path, tombstones: Collection[RecordedTombstone], *, fencing: int) -> None:
    """Makes the record hold these, in a file of the writer's own, and removes those of earlier writers.

    Raises OSError, and then what was there before counts as well.
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
    """Removes files that a writer whose fencing number is at most `below_fencing` has begun; none is under way."""
    for number, path in _files(folder, unfinished=True).items():
        if number <= below_fencing:
            remove_file(path)


def carry(source: Path, target: Path) -> None:
    """Makes the record in the folder `target` that in `source`, and none where that has none. Raises OSError."""
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
    """The files of the record by their fencing numbers, ascending; or those that were never finished."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    files = {int(match["fencing"]): path for match, path in found if match and bool(match["unfinished"]) == unfinished}
    return dict(sorted(files.items()))


def _give_way(folder: Path, fencing: int) -> bool:
    """Whether the writer was overtaken; then the file that it has just written is removed.

    Nothing is lost by that: a successor begins with making the record that of the database, which has these already.
    """
    if max(_files(folder), default=fencing) <= fencing:
        return False
    remove_file(_path(folder, fencing))
    sync(folder)
    return True


def _contents(folder: Path) -> dict[Path, bytes]:
    """What is in each file of the record. Raises OSError."""
    while True:
        files = _files(folder)
        try:
            return {path: path.read_bytes() for path in files.values()}
        except FileNotFoundError:
            # A writer has just taken what it holds over into a file of its own.
            if _files(folder) == files:
                raise


def _write(path: Path, tombstones: Collection[RecordedTombstone]) -> None:
    replace_file(path, b"".join([_header(len(tombstones)), *map(_encoded, tombstones)]), temporary=f".{path.name}")


def _header(count: int) -> bytes:
    return _checked(_TITLE + count.to_bytes(8, "little"))


def _count(header: bytes) -> int | None:
    """How many records a file was made with; None when its header is not as it was written."""
    count = int.from_bytes(header[len(_TITLE) : -_CHECKSUM_BYTES], "little")
    return count if header == _header(count) else None


def _encoded(one: RecordedTombstone) -> bytes:
    return _checked(one.hash + one.key + bytes([one.code]))


def _decoded(record: bytes) -> RecordedTombstone | None:
    body = record[:-_CHECKSUM_BYTES]
    return RecordedTombstone(body[:32], body[32:-1], body[-1]) if record == _checked(body) else None


def _checked(body: bytes) -> bytes:
    return body + hashlib.blake2b(body, digest_size=_CHECKSUM_BYTES).digest()
