"""The files of keys of id lists: slots of a fixed size, so that destroying a key overwrites it in place.

A file starts with a header of one slot. A slot is request id (16 bytes), key (32), checksum of both and of the slot's
place (16); a slot of zeros is free. A write that was cut off fails its checksum. Overwriting reaches the file's own
blocks; on a copy-on-write file system or a flash drive older blocks may survive below the file system.

Only the process that owns a file fills its slots, and only free ones; a slot is emptied by whoever knows that its key
is needed no more. Both happen under `writing`, so that what is emptied is the slot of that very request.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

SLOT_BYTES = 64
SUFFIX = ".slots"
HEADER = b"lethe request keys, format 1\n".ljust(SLOT_BYTES, b"\0")
_ZEROS = bytes(SLOT_BYTES)
#: Slots that are read at a time.
_PAGE_SLOTS = 1 << 14


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Keep every other writer out of the files in `folder`, in this process and in others, until the end of the block.

    For looking at a slot and overwriting it, and not for the disk's sync: a process that was stopped in here holds up
    the others.
    """
    # A description of its own: locks of one process exclude each other as well.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def fill(descriptor: int, place: int, request_id: UUID, key: bytes) -> None:
    """Write a key of 32 bytes into a free slot, under `writing`."""
    _write(descriptor, place, _slot(place, request_id, key))


def empty(descriptor: int, place: int, request_id: UUID | None) -> None:
    """Overwrite a slot with zeros if it is that of `request_id`, or, for None, a cut-off one; under `writing`.

    A free one is overwritten too: the disk may have refused the sync of an earlier time.
    """
    slot = os.pread(descriptor, SLOT_BYTES, place * SLOT_BYTES)
    found = _read(place, slot)
    if slot == _ZEROS or (found[0] if found else None) == request_id:
        # Past the end there is nothing, and the file does not grow.
        _write(descriptor, place, _ZEROS[: len(slot)])


def key_in(descriptor: int, place: int, request_id: UUID) -> bytes | None:
    """The key of `request_id` if that is its slot; waits for nobody."""
    # A slot that is being emptied or filled fails one of the two checks.
    found = _read(place, os.pread(descriptor, SLOT_BYTES, place * SLOT_BYTES))
    return found[1] if found and found[0] == request_id else None


def free_slots(descriptor: int, end: int) -> list[int]:
    """The places of the slots of zeros below `end`."""
    return [
        first + int(offset)
        for first, page in _pages(descriptor, end)
        for offset in np.flatnonzero(~_is_used(page))
        if first + offset > 0
    ]


def used_slots(descriptor: int) -> Iterator[tuple[int, UUID | None]]:
    """The places of all other slots, each with its request; None for one that was cut off, or is being written."""
    for first, page in _pages(descriptor, os.fstat(descriptor).st_size // SLOT_BYTES):
        for offset in np.flatnonzero(_is_used(page)):
            place = first + int(offset)
            if place:
                found = _read(place, page[offset * SLOT_BYTES : (offset + 1) * SLOT_BYTES])
                yield place, found[0] if found else None


def _pages(descriptor: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Whole slots in pages, each with the place of its first."""
    for first in range(0, end, _PAGE_SLOTS):
        page = os.pread(descriptor, min(_PAGE_SLOTS, end - first) * SLOT_BYTES, first * SLOT_BYTES)
        yield first, page[: len(page) - len(page) % SLOT_BYTES]


def _is_used(page: bytes) -> NDArray[np.bool_]:
    return np.asarray(np.frombuffer(page, np.uint64).reshape(-1, SLOT_BYTES // 8).any(axis=1))


def _slot(place: int, request_id: UUID, key: bytes) -> bytes:
    body = request_id.bytes + key
    return body + hashlib.blake2b(body, digest_size=16, salt=place.to_bytes(16, "big")).digest()


def _read(place: int, slot: bytes) -> tuple[UUID, bytes] | None:
    """Id and key of a whole slot, None for a free or a cut-off one."""
    if len(slot) < SLOT_BYTES:
        return None
    request_id, key = UUID(bytes=slot[:16]), slot[16:48]
    return (request_id, key) if slot == _slot(place, request_id, key) else None


def _write(descriptor: int, place: int, content: bytes) -> None:
    if os.pwrite(descriptor, content, place * SLOT_BYTES) != len(content):
        raise OSError("the key file took only part of a slot")
