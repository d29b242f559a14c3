"""Downloads: predictions of one version, copied, so that a slow caller receives all of them while the model changes.

A copy is a file without a name, encrypted under a key that only this process has, in memory. However this process ends,
the disk is left with bytes that nobody can decrypt, so no erasure has to wait for a caller or find the file.
"""

import os
import secrets
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from service.errors import Conflict, MalformedCursor, Unavailable
from service.predictions.facts import Facts
from service.predictions.heads import Head
from service.predictions.mapped import View
from service.predictions.reader import Reader

#: Most downloads at once in one process; each takes the disk space of a version.
_MOST = 2
#: How often to copy anew because another version became the head meanwhile.
_ATTEMPTS = 5
#: Seconds that a download has left once another version is the head.
_GRACE_S = 60.0
#: Bytes of probabilities in a part, and most nodes in it.
_PART_BYTES = 8 << 20
_PART_NODES = 1 << 17
#: Before the arrays of a part: number of nodes, bytes of their ids.
_HEAD = struct.Struct("<II")


@dataclass(frozen=True)
class Wanted:
    """Which predictions to copy. `cursor` is `<version>.<number of live nodes before the first>`, or None."""

    cursor: str | None = None
    #: Most nodes; None for all.
    limit: int | None = None
    #: Decimals of the probabilities; None for all.
    decimals: int | None = None

    def range_in(self, view: View) -> tuple[int, int]:
        """Return the first and the end, counted in live nodes.

        Raises MalformedCursor, and Conflict for a cursor of another version.
        """
        version, nodes = view.facts.served.version, view.facts.served.live_nodes
        first = 0
        if self.cursor is not None:
            named, _, position = self.cursor.partition(".")
            if not all(one.isascii() and one.isdecimal() and len(one) < 19 for one in (named, position)):
                raise MalformedCursor("The cursor is malformed.", "Send the `Lethe-Next-Cursor` of an earlier answer.")
            if int(named) != version:
                raise Conflict(
                    f"The cursor is of version {int(named)} of the model; version {version} is served now.",
                    "Start again without a cursor.",
                    model_version=version,
                )
            first = min(int(position), nodes)
        return first, nodes if self.limit is None else min(first + self.limit, nodes)


@dataclass(frozen=True, eq=False)
class Part:
    """Predictions of k successive nodes."""

    #: (k,) uint32: bytes of each id.
    lengths: NDArray[np.uint32]
    #: The ids in UTF-8, one after another.
    text: bytes
    #: (k,) uint32: the most probable class, by the exact probabilities.
    best: NDArray[np.uint32]
    #: (k, C) float64: probabilities or scores, rounded as wanted.
    values: NDArray[np.float64]

    def to_bytes(self) -> bytes:
        """Return the bytes that `from_bytes` reads."""
        arrays = (self.lengths.tobytes(), self.best.tobytes(), self.values.tobytes())
        return b"".join((_HEAD.pack(len(self.lengths), len(self.text)), *arrays, self.text))

    @classmethod
    def from_bytes(cls, data: bytes, columns: int) -> "Part":
        """Return the part that `to_bytes` wrote."""
        nodes, text = _HEAD.unpack_from(data)
        lengths = np.frombuffer(data, np.uint32, nodes, _HEAD.size)
        best = np.frombuffer(data, np.uint32, nodes, _HEAD.size + 4 * nodes)
        values = np.frombuffer(data, np.float64, nodes * columns, _HEAD.size + 8 * nodes)
        return cls(lengths, data[len(data) - text :], best, values.reshape(nodes, columns))


class Copy:
    """Predictions of one version, in the order of the model's nodes. Close it."""

    def __init__(self, view: View, wanted: Wanted, folder: Path) -> None:
        """Copy from a version; the caller makes sure that it was the head meanwhile.

        Raises MalformedCursor, Conflict, PublicationDamaged, and Unavailable without room on the disk.
        """
        self.head: Head = view.head
        self.facts: Facts = view.facts
        first, end = wanted.range_in(view)
        #: Number of nodes, and the cursor of those after them, if any.
        self.nodes = end - first
        self.next_cursor = f"{self.head.version}.{end}" if end < view.facts.served.live_nodes else None
        self._cipher = AESGCM(secrets.token_bytes(32))
        #: Offset and size of each encrypted part.
        self._places: list[tuple[int, int]] = []
        rows = np.flatnonzero(view.live)[first:end]
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise _no_room(error) from error
        try:
            self._fill(view, rows, wanted.decimals)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[Part]:
        """Yield the parts, each decrypted when it is wanted."""
        columns = len(self.facts.model.classes)
        for number, (offset, size) in enumerate(self._places):
            sealed = os.pread(self._file.fileno(), size, offset)
            yield Part.from_bytes(self._cipher.decrypt(_nonce(number), sealed, None), columns)

    def close(self) -> None:
        """Give the file back. Its key goes with this object."""
        self._file.close()

    def _fill(self, view: View, rows: NDArray[np.int64], decimals: int | None) -> None:
        step = max(1, min(_PART_NODES, _PART_BYTES // (8 * len(self.facts.model.classes))))
        offset = 0
        for number, start in enumerate(range(0, len(rows), step)):
            part = _part(view, rows[start : start + step], decimals)
            sealed = self._cipher.encrypt(_nonce(number), part.to_bytes(), None)
            try:
                self._file.write(sealed)
                self._file.flush()
            except OSError as error:
                raise _no_room(error) from error
            self._places.append((offset, len(sealed)))
            offset += len(sealed)


class Downloads:
    """Copies for one process."""

    def __init__(self, reader: Reader, folder: Path, *, grace_s: float = _GRACE_S) -> None:
        """`folder` is private, on a local disk. A download has `grace_s` left once its version is outdated."""
        self._reader = reader
        self._folder = folder
        self._running = 0
        self.grace_s = grace_s

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold one of the places for downloads. Raises Unavailable if all are taken. For the event loop."""
        if self._running >= _MOST:
            raise Unavailable(
                f"This process is sending {_MOST} downloads of predictions, the most at once.",
                "Try again in 10 seconds.",
                retry_after=10,
            )
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def rows(self, wanted: Wanted) -> tuple[int, NDArray[np.int64]]:
        """Return the version at the head, and the rows (k,) that are wanted of it. Raises the errors of `copy`."""

        def found(view: View) -> tuple[int, NDArray[np.int64]]:
            first, end = wanted.range_in(view)
            return view.facts.served.version, np.flatnonzero(view.live)[first:end]

        return self._reader.answer(found)

    def copy(self, wanted: Wanted) -> Copy:
        """Copy predictions of the version that is the head before and after.

        Raises MalformedCursor, Conflict, Unavailable, and PublicationDamaged.
        """
        copies: list[Copy] = []
        attempts = 0

        def copied(view: View) -> Copy | None:
            nonlocal attempts
            attempts += 1
            while copies:
                copies.pop().close()
            if attempts > _ATTEMPTS:
                return None
            copies.append(Copy(view, wanted, self._folder))
            return copies[-1]

        try:
            # Opens the head first: without it, the version that was answered from last would be copied for nothing.
            self._reader.answer(lambda view: None)
            copy = self._reader.answer(copied)
        except BaseException:
            while copies:
                copies.pop().close()
            raise
        if copy is None:
            raise Unavailable(
                f"The model changed {_ATTEMPTS} times while its predictions were copied.", "Try again in a moment."
            )
        return copy

    def is_current(self, copy: Copy) -> bool:
        """Return whether the copy's version is known to be the head."""
        return self._reader.newest() == copy.head


def _part(view: View, rows: NDArray[np.int64], decimals: int | None) -> Part:
    """Read the ids and predictions of some live rows, in ascending order and at least one."""
    first, end = int(rows[0]), int(rows[-1]) + 1
    exact = view.probabilities.rows(first, end)[rows - first]
    offsets = np.asarray(view.model.ids.offsets[first : end + 1])
    text = np.frombuffer(view.model.ids.ids, np.uint8, int(offsets[-1] - offsets[0]), int(offsets[0]))
    offsets = offsets - offsets[0]
    wanted = np.zeros(end - first, dtype=np.bool_)
    wanted[rows - first] = True
    # Ids are padded with zero bytes and contain none.
    kept = (text != 0) & np.repeat(wanted, np.diff(offsets))
    counted = np.concatenate([[0], np.cumsum(kept)])
    lengths = (counted[offsets[1:]] - counted[offsets[:-1]])[wanted]
    return Part(
        lengths=lengths.astype(np.uint32),
        text=text[kept].tobytes(),
        best=exact.argmax(axis=1).astype(np.uint32),
        values=exact if decimals is None else exact.round(decimals),
    )


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


def _no_room(error: OSError) -> Unavailable:
    return Unavailable(
        f"The predictions cannot be copied: {error.strerror}.",
        "Have the operator free space in LETHE_HOME, or request fewer with `limit`.",
    )
