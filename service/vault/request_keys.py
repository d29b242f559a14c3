"""The keys of single requests: one file of fixed-size slots, so that destroying a key overwrites it in place.

The file starts with a header of one slot. A slot is request id (16 bytes), key (32), checksum of both and of the
slot's place (16); a slot of zeros is free. A write that was cut off fails its checksum. Overwriting reaches the file's
own blocks; on a copy-on-write file system or a flash drive older blocks may survive below the file system.
"""

import fcntl
import hashlib
import heapq
import os
import secrets
import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from uuid import UUID

from service.errors import AlreadyRunning, KeyMissing
from service.vault import key_files

SLOT_BYTES = 64
_HEADER = b"lethe request keys, format 1\n".ljust(SLOT_BYTES, b"\0")
_ZEROS = bytes(SLOT_BYTES)
#: The file grows by this many slots at a time, so that a reservation rarely changes its size.
_GROWTH_SLOTS = 1024


class RequestKeys:
    """The open slot file. Methods block on the disk and may be called from any thread."""

    def __init__(self, descriptor: int, path: Path) -> None:
        """Take over a locked descriptor; use `RequestKeys.open`."""
        self._descriptor = descriptor
        self._path = path
        self._lock = threading.Lock()
        self._slots: dict[UUID, int] = {}
        self._free: list[int] = []
        self._end = 1
        #: How many slots were cut off by a crash and have been cleared.
        self.torn_slots = 0
        self._load()

    @classmethod
    def open(cls, path: Path) -> "RequestKeys":
        """Open or create the file at `path` and lock it.

        Raises `AlreadyRunning` when another process has it open, `KeyMissing` when it is some other file.
        """
        key_files.secure_folder(path.parent, create=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunning(
                    f"Another process uses the request keys in {path}.", "Stop it, or choose another LETHE_HOME."
                ) from None
            key_files.require_private(path)
            _prepare(descriptor, path)
            key_files.sync_folder(path.parent)
            return cls(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise

    def __enter__(self) -> "RequestKeys":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unlock and close the file; closing twice does nothing."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def check_file(self) -> None:
        """Raise `KeyMissing` when the open file is no longer the one in the key folder: new keys would be lost."""
        try:
            is_same = os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise KeyMissing(
                f"{self._path} was removed or replaced while Lethe runs.",
                "Stop Lethe and restore the file from the backup of LETHE_HOME; what is accepted meanwhile is lost "
                "with the process.",
            )

    def ids(self) -> frozenset[UUID]:
        """Return the requests that have a key."""
        with self._lock:
            return frozenset(self._slots)

    def reserve(self, ids: Collection[UUID]) -> dict[UUID, bytes]:
        """Make a 32-byte key for each of `ids` and return them; all are durable on return, after one sync.

        Raises `OSError` when the disk refuses; then none of the keys is kept.
        """
        keys = {request_id: secrets.token_bytes(32) for request_id in ids}
        with self._lock:
            if not self._slots.keys().isdisjoint(keys):
                raise ValueError("a request already has a key")
            self._make_room(len(keys))
            taken = {request_id: heapq.heappop(self._free) for request_id in keys}
            try:
                for request_id, place in taken.items():
                    self._write(place, _slot(place, request_id, keys[request_id]))
                os.fdatasync(self._descriptor)
            except OSError:
                # Not durable, so never handed out; the slots stay unused until the file is opened again.
                for place in taken.values():
                    self._write(place, _ZEROS)
                raise
            self._slots.update(taken)
        return keys

    def get(self, request_id: UUID) -> bytes | None:
        """Return the key of a request, or None when it has none (any more). Does not wait for the disk's syncs."""
        place = self._slots.get(request_id)
        if place is None:
            return None
        # Without the lock: a slot that is being emptied or has a new owner fails one of the two checks.
        found = _read(place, os.pread(self._descriptor, SLOT_BYTES, place * SLOT_BYTES))
        return found[1] if found and found[0] == request_id else None

    def destroy(self, ids: Collection[UUID]) -> None:
        """Overwrite the keys of `ids` with zeros; gone from the file on return. Unknown ids are ignored.

        Raises `OSError` when the disk refuses; calling again repeats the whole overwrite.
        """
        with self._lock:
            doomed = {request_id: self._slots[request_id] for request_id in ids if request_id in self._slots}
            if not doomed:
                return
            for place in doomed.values():
                self._write(place, _ZEROS)
            os.fdatasync(self._descriptor)
            for request_id, place in doomed.items():
                del self._slots[request_id]
                heapq.heappush(self._free, place)

    def _load(self) -> None:
        raw = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        self._end = len(raw) // SLOT_BYTES
        for place in range(1, self._end):
            slot = raw[place * SLOT_BYTES : (place + 1) * SLOT_BYTES]
            found = _read(place, slot)
            if found:
                self._slots[found[0]] = place
                continue
            if slot != _ZEROS:
                # Cut off while it was written, so its request was never accepted, or while it was destroyed.
                self._write(place, _ZEROS)
                self.torn_slots += 1
            self._free.append(place)
        if self.torn_slots:
            os.fdatasync(self._descriptor)

    def _make_room(self, slots: int) -> None:
        while len(self._free) < slots:
            os.posix_fallocate(self._descriptor, self._end * SLOT_BYTES, _GROWTH_SLOTS * SLOT_BYTES)
            for place in range(self._end, self._end + _GROWTH_SLOTS):
                heapq.heappush(self._free, place)
            self._end += _GROWTH_SLOTS

    def _write(self, place: int, slot: bytes) -> None:
        if os.pwrite(self._descriptor, slot, place * SLOT_BYTES) != SLOT_BYTES:
            raise OSError("the key file took only part of a slot")


def count_keys(path: Path) -> int:
    """How many requests have a key in the file at `path`, which may be in use; 0 when there is no file."""
    if not path.exists():
        return 0
    raw = path.read_bytes()
    slots = (raw[place * SLOT_BYTES : (place + 1) * SLOT_BYTES] for place in range(1, len(raw) // SLOT_BYTES))
    return sum(_read(place, slot) is not None for place, slot in enumerate(slots, start=1))


def _slot(place: int, request_id: UUID, key: bytes) -> bytes:
    body = request_id.bytes + key
    return body + hashlib.blake2b(body, digest_size=16, salt=place.to_bytes(16, "big")).digest()


def _read(place: int, slot: bytes) -> tuple[UUID, bytes] | None:
    """Return id and key of a whole slot, None for a free or a cut-off one."""
    request_id, key = UUID(bytes=slot[:16]), slot[16:48]
    return (request_id, key) if slot == _slot(place, request_id, key) else None


def _prepare(descriptor: int, path: Path) -> None:
    """Write the header of a new file; cut a growth that a crash left incomplete."""
    size = os.fstat(descriptor).st_size
    header = os.pread(descriptor, SLOT_BYTES, 0)
    if header == _HEADER:
        os.ftruncate(descriptor, size - size % SLOT_BYTES)
    elif size <= SLOT_BYTES and _HEADER.startswith(header.rstrip(b"\0")):
        os.pwrite(descriptor, _HEADER, 0)
    else:
        raise KeyMissing(f"{path} is not a file of request keys.", "Restore it from the backup of LETHE_HOME.")
    os.fsync(descriptor)
