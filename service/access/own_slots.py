"""The id-list key file that one api process writes to."""

import fcntl
import itertools
import os
import secrets
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from service import private_files
from service.access import request_keys
from service.domain.records import KeySlot
from service.errors import AlreadyRunning, KeyMissing
from service.private_files import sync_folder

#: Minimum growth of a file in slots, so that a reservation rarely changes its size.
_GROWTH_SLOTS = 1024


@dataclass(frozen=True)
class ReservedKey:
    """A 32-byte key and its slot."""

    slot: KeySlot
    key: bytes


class OwnSlots:
    """The open file; no other process adds keys to it. Methods block on the disk and may run in any thread."""

    def __init__(self, descriptor: int, path: Path) -> None:
        """Take ownership of a locked descriptor; use `OwnSlots.open`."""
        self._descriptor = descriptor
        self._path = path
        #: The file's number, as requests record it.
        self.number = int(path.stem)
        self._lock = threading.Lock()
        self._end = os.fstat(descriptor).st_size // request_keys.SLOT_BYTES
        #: Places that were free at the last scan of the file, lowest last.
        self._free: list[int] = []

    @classmethod
    def open(cls, folder: Path, number: int | None = None) -> "OwnSlots":
        """Open or create file `number` of `folder`, by default the first without an owner, and lock it.

        Raises `AlreadyRunning` when another process owns the file, and `KeyMissing` when it is not a key file.
        """
        private_files.secure_folder(folder.parent, create=True)
        private_files.secure_folder(folder, create=True)
        for candidate in itertools.count() if number is None else (number,):
            path = folder / f"{candidate}{request_keys.SUFFIX}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                private_files.require_private(path)
                _prepare(descriptor, path)
                sync_folder(folder)
                return cls(descriptor, path)
            except BlockingIOError:
                os.close(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        raise AlreadyRunning(
            f"Another process adds to the request keys in {path}.", "Stop it, or choose another LETHE_HOME."
        )

    def __enter__(self) -> "OwnSlots":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Folder of all processes' files."""
        return self._path.parent

    def close(self) -> None:
        """Unlock and close the file. Idempotent."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def check_file(self) -> None:
        """Raise `KeyMissing` if the open file is no longer the one in the key folder: new keys would be lost."""
        try:
            is_same = os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise KeyMissing(
                f"{self._path} was removed or replaced while Lethe runs.",
                "Stop Lethe and restore the file from the backup of LETHE_HOME; until then, no request is accepted.",
            )

    def reserve(self, ids: Collection[UUID]) -> dict[UUID, ReservedKey]:
        """Create a key for each of `ids`, which have none yet; all are durable on return, after one sync.

        Raises `OSError` when a write fails, and `KeyMissing` when other processes would not find the keys. Then no key
        is kept.
        """
        with self._lock:
            self.check_file()
            self._make_room(len(ids))
            reserved = {
                one: ReservedKey(KeySlot(self.number, self._free.pop()), secrets.token_bytes(32)) for one in ids
            }
            try:
                with request_keys.writing(self.folder):
                    for request_id, made in reserved.items():
                        request_keys.fill(self._descriptor, made.slot.place, request_id, made.key)
                os.fdatasync(self._descriptor)
            except OSError:
                # The keys are not durable, so they are never handed out.
                self._empty({request_id: made.slot for request_id, made in reserved.items()})
                raise
        return reserved

    def destroy(self, keys: Mapping[UUID, KeySlot]) -> None:
        """Overwrite keys reserved here with zeros; they are gone from the file on return.

        Raises `OSError` when a write fails; calling again repeats the whole overwrite.
        """
        if not keys:
            return
        with self._lock:
            self._empty(keys)
            os.fdatasync(self._descriptor)

    def _empty(self, keys: Mapping[UUID, KeySlot]) -> None:
        with request_keys.writing(self.folder):
            for request_id, slot in keys.items():
                request_keys.empty(self._descriptor, slot.place, request_id)

    def _make_room(self, count: int) -> None:
        """Provide free slots: those emptied since the last scan, and at least a quarter of the file.

        So each reservation pays for scanning only a few slots, however many keys the file holds.
        """
        if len(self._free) >= count:
            return
        self._free = request_keys.free_slots(self._descriptor, self._end)[::-1]
        lacking = max(count, self._end // 4) - len(self._free)
        if lacking > 0:
            growth = max(lacking, _GROWTH_SLOTS)
            os.posix_fallocate(self._descriptor, self._end * request_keys.SLOT_BYTES, growth * request_keys.SLOT_BYTES)
            self._free = [*range(self._end + growth - 1, self._end - 1, -1), *self._free]
            self._end += growth


def _prepare(descriptor: int, path: Path) -> None:
    """Write the header of a new file; truncate a growth that a crash left incomplete."""
    size = os.fstat(descriptor).st_size
    header = os.pread(descriptor, request_keys.SLOT_BYTES, 0)
    if header == request_keys.HEADER:
        os.ftruncate(descriptor, size - size % request_keys.SLOT_BYTES)
    elif size <= request_keys.SLOT_BYTES and request_keys.HEADER.startswith(header.rstrip(b"\0")):
        os.pwrite(descriptor, request_keys.HEADER, 0)
    else:
        raise KeyMissing(f"{path} is not a file of request keys.", "Restore it from the backup of LETHE_HOME.")
    os.fsync(descriptor)
