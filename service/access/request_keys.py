"""Id-list keys, one per request, in slots of files. Each request's targets are encrypted under its own key."""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from service import private_files
from service.domain.records import KeySlot, QueuedRequest, Targets
from service.errors import BodyTooLarge, InvalidRequest, KeyMissing, LetheError

SLOT_BYTES = 64
SUFFIX = ".slots"
HEADER = b"lethe request keys, format 1\n".ljust(SLOT_BYTES, b"\0")
_ZEROS = bytes(SLOT_BYTES)
#: Slots per read.
_PAGE_SLOTS = 1 << 14


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Exclude all other writers, in this process and others, from the files in `folder` during the block.

    Use it to check and overwrite slots, not for syncs: a process stopped inside blocks the others.
    """
    # A separate descriptor, because locks then also exclude other threads of this process.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def fill(descriptor: int, place: int, request_id: UUID, key: bytes) -> None:
    """Write a 32-byte key into a free slot, under `writing`."""
    _write(descriptor, place, _slot(place, request_id, key))


def empty(descriptor: int, place: int, request_id: UUID | None) -> None:
    """Zero a slot if it belongs to `request_id`, or, for None, if it is torn; under `writing`.

    Free slots are overwritten too, because an earlier sync may have failed.
    """
    slot = os.pread(descriptor, SLOT_BYTES, place * SLOT_BYTES)
    found = _read(place, slot)
    if slot == _ZEROS or (found[0] if found else None) == request_id:
        # Beyond the end there is nothing to erase, and the file must not grow.
        _write(descriptor, place, _ZEROS[: len(slot)])


def key_in(descriptor: int, place: int, request_id: UUID) -> bytes | None:
    """Return the key in a slot if it belongs to `request_id`; never waits."""
    # A slot in the middle of a write fails one of the two checks.
    found = _read(place, os.pread(descriptor, SLOT_BYTES, place * SLOT_BYTES))
    return found[1] if found and found[0] == request_id else None


def free_slots(descriptor: int, end: int) -> list[int]:
    """Return the places of the free slots (all zeros) below `end`."""
    return [
        first + int(offset)
        for first, page in _pages(descriptor, end)
        for offset in np.flatnonzero(~_is_used(page))
        if first + offset > 0
    ]


def used_slots(descriptor: int) -> Iterator[tuple[int, UUID | None]]:
    """Yield the places of all other slots, each with its request; None for a torn slot or one in mid-write."""
    for first, page in _pages(descriptor, os.fstat(descriptor).st_size // SLOT_BYTES):
        for offset in np.flatnonzero(_is_used(page)):
            place = first + int(offset)
            if place:
                found = _read(place, page[offset * SLOT_BYTES : (offset + 1) * SLOT_BYTES])
                yield place, found[0] if found else None


def _pages(descriptor: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield pages of whole slots, each with the place of its first."""
    for first in range(0, end, _PAGE_SLOTS):
        page = os.pread(descriptor, min(_PAGE_SLOTS, end - first) * SLOT_BYTES, first * SLOT_BYTES)
        yield first, page[: len(page) - len(page) % SLOT_BYTES]


def _is_used(page: bytes) -> NDArray[np.bool_]:
    return np.asarray(np.frombuffer(page, np.uint64).reshape(-1, SLOT_BYTES // 8).any(axis=1))


def _slot(place: int, request_id: UUID, key: bytes) -> bytes:
    body = request_id.bytes + key
    return body + hashlib.blake2b(body, digest_size=16, salt=place.to_bytes(16, "big")).digest()


def _read(place: int, slot: bytes) -> tuple[UUID, bytes] | None:
    """Return id and key of a slot; None if it is free or torn."""
    if len(slot) < SLOT_BYTES:
        return None
    request_id, key = UUID(bytes=slot[:16]), slot[16:48]
    return (request_id, key) if slot == _slot(place, request_id, key) else None


def _write(descriptor: int, place: int, content: bytes) -> None:
    if os.pwrite(descriptor, content, place * SLOT_BYTES) != len(content):
        raise OSError("the key file took only part of a slot")


#: Keys per page.
_PAGE = 10_000


class RequestKeys:
    """The key files in `keys/requests`. Holds nothing in memory; methods block on the disk, in any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_files(self) -> None:
        """Raise `KeyMissing` for a file that holds no request keys, `ConfigurationError` for one open to others."""
        for number in self._numbers():
            path = self._path(number)
            private_files.require_private(path)
            with path.open("rb") as file:
                header = file.read(SLOT_BYTES)
            # A header cut off at creation is completed by the process that opens the file.
            if not HEADER.startswith(header.rstrip(b"\0")):
                raise KeyMissing(f"{path} is not a file of request keys.", "Restore it from the backup of LETHE_HOME.")

    def get(self, request_id: UUID, slot: KeySlot | None) -> bytes | None:
        """Return the key of a request from its slot; None if it is not there, or no longer."""
        if slot is None:
            return None
        with self._opened(slot.file) as descriptor:
            return None if descriptor is None else key_in(descriptor, slot.place, request_id)

    def lacking(self, wanted: Mapping[UUID, KeySlot | None]) -> set[UUID]:
        """Return the requests whose keys are missing from their slots."""
        lacking = {request_id for request_id, slot in wanted.items() if slot is None}
        for number, keys in _by_file({one: slot for one, slot in wanted.items() if slot is not None}):
            with self._opened(number) as descriptor:
                lacking |= {
                    request_id
                    for request_id, place in keys
                    if descriptor is None or key_in(descriptor, place, request_id) is None
                }
        return lacking

    def destroy(self, keys: Mapping[UUID, KeySlot]) -> None:
        """Overwrite the keys of requests with zeros; they are gone from the files on return. Unknown keys are ignored.

        Raises `OSError` when a write fails; calling again repeats the whole overwrite.
        """
        for number, doomed in _by_file(keys):
            self._empty(number, doomed)

    def clear_torn(self) -> int:
        """Zero slots torn by a crash, whose keys are unusable; return their number."""
        cleared = 0
        for number in self._numbers():
            with self._opened(number) as descriptor:
                found = [] if descriptor is None else list(used_slots(descriptor))
            torn = [(None, place) for place, request_id in found if request_id is None]
            if torn:
                self._empty(number, torn)
            cleared += len(torn)
        return cleared

    def held(self) -> Iterator[dict[UUID, KeySlot]]:
        """Yield the requests that have keys, with their slots, some thousands at a time.

        A request with two keys, as in a copy of a file beside the original, appears twice.
        """
        for number in self._numbers():
            page: dict[UUID, KeySlot] = {}
            with self._opened(number) as descriptor:
                for place, request_id in () if descriptor is None else used_slots(descriptor):
                    if request_id is None:
                        continue
                    page[request_id] = KeySlot(number, place)
                    if len(page) == _PAGE:
                        yield page
                        page = {}
            if page:
                yield page

    def count(self) -> int:
        """Return the number of requests with a key."""
        return sum(map(len, self.held()))

    def _empty(self, number: int, doomed: list[tuple[UUID, int]] | list[tuple[None, int]]) -> None:
        with self._opened(number, os.O_RDWR) as descriptor:
            if descriptor is None:
                return
            with writing(self.folder):
                for request_id, place in doomed:
                    empty(descriptor, place, request_id)
            os.fdatasync(descriptor)

    def _numbers(self) -> list[int]:
        stems = (path.stem for path in self.folder.glob(f"*{SUFFIX}"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}{SUFFIX}"

    @contextmanager
    def _opened(self, number: int, flags: int = os.O_RDONLY) -> Iterator[int | None]:
        """Yield a descriptor of a file; None if the file does not exist."""
        try:
            descriptor = os.open(self._path(number), flags | os.O_CLOEXEC)
        except FileNotFoundError:
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _by_file(keys: Mapping[UUID, KeySlot]) -> Iterator[tuple[int, list[tuple[UUID, int]]]]:
    """Yield each file of the keys with its requests and their places."""
    ordered = sorted(keys.items(), key=lambda one: one[1])
    for number, group in groupby(ordered, key=lambda one: one[1].file):
        yield number, [(request_id, slot.place) for request_id, slot in group]


_NONCE_BYTES = 12
#: Less than the database takes as the ciphertext of an addition or a correction.
_MOST_CONTENT_BYTES = 8_000_000


class NotDecrypted(LetheError):
    """The encrypted targets of a request cannot be decrypted with its stored key."""


def encrypt(targets: Targets, key: bytes, request_id: UUID) -> bytes:
    """Return nonce and ciphertext of `targets` under the 32-byte `key`.

    Raises `InvalidRequest` for an id with an unpaired surrogate, which no encoding can represent, and `BodyTooLarge`
    for more content than the database takes.
    """
    try:
        plain = orjson.dumps(targets, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        raise InvalidRequest("An id is not valid Unicode text.", "Remove the unpaired surrogate from it.") from None
    if targets.content and len(plain) > _MOST_CONTENT_BYTES:
        raise BodyTooLarge(
            f"The features and labels of the request take {len(plain)} bytes, of at most {_MOST_CONTENT_BYTES}.",
            "Split it into several requests.",
        )
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, request_id.bytes)


def decrypt(ciphertext: bytes, key: bytes, request_id: UUID) -> Targets:
    """Return the targets given to `encrypt`. Raises `NotDecrypted` for a wrong key or request, or altered bytes."""
    try:
        plain = AESGCM(key).decrypt(ciphertext[:_NONCE_BYTES], ciphertext[_NONCE_BYTES:], request_id.bytes)
    except (InvalidTag, ValueError):
        raise NotDecrypted(
            f"The encrypted id list of request {request_id} cannot be decrypted with its key.",
            "The key file and the database are from different backups; restore a matching pair.",
        ) from None
    return msgspec.json.decode(plain, type=Targets)


def decrypt_targets(request: QueuedRequest, request_keys: RequestKeys) -> Targets | None:
    """Return the targets of a request; None when its key is missing or wrong: they are then lost."""
    key = request_keys.get(request.id, request.key_slot)
    if key is None or request.ciphertext is None:
        return None
    try:
        return decrypt(request.ciphertext, key, request.id)
    except NotDecrypted:
        return None
