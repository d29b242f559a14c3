"""The keys of id lists in the files of all processes: read by any, and emptied by the unlearner."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from uuid import UUID

from service.domain.records import KeySlot
from service.errors import KeyMissing
from service.vault import key_files, slots

#: Keys that are named at a time.
_PAGE = 10_000


class RequestKeys:
    """The files of one folder, `keys/requests`. Holds nothing in memory; methods block on the disk, in any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_files(self) -> None:
        """Raise `KeyMissing` for a file that is none of request keys, `ConfigurationError` for one open to others."""
        for number in self._numbers():
            path = self._path(number)
            key_files.require_private(path)
            with path.open("rb") as file:
                header = file.read(slots.SLOT_BYTES)
            # One that was cut off at its creation is completed by the process that opens it.
            if not slots.HEADER.startswith(header.rstrip(b"\0")):
                raise KeyMissing(f"{path} is not a file of request keys.", "Restore it from the backup of LETHE_HOME.")

    def get(self, request_id: UUID, slot: KeySlot | None) -> bytes | None:
        """Return the key of a request whose slot is known; None when it is not there (any more)."""
        if slot is None:
            return None
        with self._opened(slot.file) as descriptor:
            return None if descriptor is None else slots.key_in(descriptor, slot.place, request_id)

    def lacking(self, wanted: Mapping[UUID, KeySlot | None]) -> set[UUID]:
        """Return the requests whose keys are not in the slots where they should be."""
        lacking = {request_id for request_id, slot in wanted.items() if slot is None}
        for number, keys in _by_file({one: slot for one, slot in wanted.items() if slot is not None}):
            with self._opened(number) as descriptor:
                lacking |= {
                    request_id
                    for request_id, place in keys
                    if descriptor is None or slots.key_in(descriptor, place, request_id) is None
                }
        return lacking

    def destroy(self, keys: Mapping[UUID, KeySlot]) -> None:
        """Overwrite the keys of requests with zeros; gone from the files on return. Unknown ones are ignored.

        Raises `OSError` when the disk refuses; calling again repeats the whole overwrite.
        """
        for number, doomed in _by_file(keys):
            self._empty(number, doomed)

    def clear_torn(self) -> int:
        """Overwrite slots that were cut off by a crash, whose keys nobody can use; returns how many there were."""
        cleared = 0
        for number in self._numbers():
            with self._opened(number) as descriptor:
                found = [] if descriptor is None else list(slots.used_slots(descriptor))
            torn = [(None, place) for place, request_id in found if request_id is None]
            if torn:
                self._empty(number, torn)
            cleared += len(torn)
        return cleared

    def held(self) -> Iterator[dict[UUID, KeySlot]]:
        """The requests that have keys, with their slots, some thousands at a time.

        One that has two, in a copy of a file beside it, is named twice.
        """
        for number in self._numbers():
            page: dict[UUID, KeySlot] = {}
            with self._opened(number) as descriptor:
                for place, request_id in () if descriptor is None else slots.used_slots(descriptor):
                    if request_id is None:
                        continue
                    page[request_id] = KeySlot(number, place)
                    if len(page) == _PAGE:
                        yield page
                        page = {}
            if page:
                yield page

    def count(self) -> int:
        """How many requests have a key."""
        return sum(map(len, self.held()))

    def _empty(self, number: int, doomed: list[tuple[UUID, int]] | list[tuple[None, int]]) -> None:
        with self._opened(number, os.O_RDWR) as descriptor:
            if descriptor is None:
                return
            with slots.writing(self.folder):
                for request_id, place in doomed:
                    slots.empty(descriptor, place, request_id)
            os.fdatasync(descriptor)

    def _numbers(self) -> list[int]:
        stems = (path.stem for path in self.folder.glob(f"*{slots.SUFFIX}"))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}{slots.SUFFIX}"

    @contextmanager
    def _opened(self, number: int, flags: int = os.O_RDONLY) -> Iterator[int | None]:
        """A descriptor of a file, None where there is none."""
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
    """The files that keys are in, each with the requests and their places in it."""
    ordered = sorted(keys.items(), key=lambda one: one[1])
    for number, group in groupby(ordered, key=lambda one: one[1].file):
        yield number, [(request_id, slot.place) for request_id, slot in group]
