"""Read the arrays of `base/` chunk by chunk, verifying digests, and rewrite them."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.base.index import DIGEST, Generation, Index, StoredArray, Table
from model_store.disk.durable import DurableChanges, damaged, read_range

#: The slots of one chunk as stored on disk, (slots, slot_bytes).
Raw = NDArray[np.uint8]


#: Prefix of the tables that hold what joined after the import. They grow at their end.
LATE = "late_"
#: Relative time per byte of unordered slots, which must be sorted, against rows. [20 million slots.]
_SORTED = 9


@dataclass(frozen=True, eq=False)
class NewArray:
    """An array to write: the value of each slot and the byte that blanks it."""

    #: (slots,) or (slots, width).
    values: NDArray[Any]
    blank: int


@dataclass(frozen=True, eq=False)
class NewTable:
    """A table to write."""

    #: First slot of each chunk, then the total number of slots, (chunks + 1,).
    starts: NDArray[np.int64]
    arrays: Mapping[str, NewArray]


class BaseArrays:
    """The arrays of `base/` as one index describes them.

    While slots are being blanked (`Table.erasing`), only some of their bytes may be overwritten. They always read as
    blank, and their chunks are verified against the digests they are about to have. So a crash midway is not damage,
    and damage next to it is still detected.
    """

    def __init__(self, folder: Path, index: Index, count: Callable[[float], None] | None = None) -> None:
        """`count` receives, chunk by chunk, how much of `reading_work` has been read."""
        self.folder = folder
        self.index = index
        self._count = count

    def read(self, table_name: str, array_name: str, chunks: range) -> NDArray[Any]:
        """Return verified slots of consecutive chunks, (slots, width). Raises StoreDamaged naming file and chunk."""
        array = self.index.tables[table_name].arrays[array_name]
        return self.read_raw(table_name, array_name, chunks).view(array.dtype)

    def read_all(self, table_name: str, array_name: str) -> NDArray[Any]:
        """Return all verified slots of an array, (slots, width)."""
        return self.read(table_name, array_name, range(self.index.tables[table_name].chunks))

    def read_raw(self, table_name: str, array_name: str, chunks: range, out: Raw | None = None) -> Raw:
        """Return the verified bytes of consecutive chunks, (slots, slot_bytes), in `out` if given."""
        table = self.index.tables[table_name]
        array = table.arrays[array_name]
        first, last = int(table.starts[chunks.start]), int(table.starts[chunks.stop])
        path = self.folder / array.file
        raw = np.empty((last - first, array.slot_bytes), dtype=np.uint8) if out is None else out
        _read_slots(path, raw, first, table, table_name, array)
        if table.erasing.size:
            left, right = np.searchsorted(table.erasing, [first, last])
            raw[table.erasing[left:right] - first] = array.blank
        weight = _weight(table)
        for chunk in chunks:
            part = raw[table.starts[chunk] - first : table.starts[chunk + 1] - first]
            if digest_of(part) != array.digest(chunk):
                raise damaged(path, f"does not match the digest of its chunk {chunk}")
            if self._count is not None:
                self._count(weight * part.nbytes)
        return raw

    def reading_work(self) -> int:
        """Return the work of reading all arrays, in bytes of rows."""
        return sum(_weight(table) * _bytes_of(table) for table in self.index.tables.values())

    @property
    def bytes(self) -> int:
        """Total bytes of all arrays."""
        return sum(map(_bytes_of, self.index.tables.values()))

    def path_of(self, table_name: str, array_name: str) -> Path:
        """Return the file of an array, for errors."""
        return self.folder / self.index.tables[table_name].arrays[array_name].file

    def check_sizes(self) -> None:
        """Raise StoreDamaged naming the array file that is missing, too short or too long."""
        nothing = np.empty((0, 1), dtype=np.uint8)
        for name, table in self.index.tables.items():
            for array in table.arrays.values():
                _read_slots(self.folder / array.file, nothing, 0, table, name, array)


def _read_slots(path: Path, raw: Raw, first: int, table: Table, table_name: str, array: StoredArray) -> None:
    """Fill `raw` with the slots from `first`. A crash may have left more slots in a table that grows."""
    size = array.slot_bytes
    read_range(path, raw, offset=first * size, file_bytes=table.slots * size, grows=table_name.startswith(LATE))


def _bytes_of(table: Table) -> int:
    return sum(table.slots * array.slot_bytes for array in table.arrays.values())


def _weight(table: Table) -> int:
    return _SORTED if "rows" in table.arrays else 1


def slots_within(slots: NDArray[np.int64], table: Table, chunk: int) -> NDArray[np.int64]:
    """Return the sorted `slots` that lie in a chunk, counted from its first slot."""
    first, last = table.starts[chunk], table.starts[chunk + 1]
    left, right = np.searchsorted(slots, [first, last])
    return np.asarray(slots[left:right] - first, dtype=np.int64)


def digest_of(part: Raw) -> str:
    """Return the hex SHA-256 of a chunk's bytes."""
    return hashlib.sha256(part.data).hexdigest()


def write_table(
    folder: Path,
    name: str,
    new: NewTable,
    generation: Generation,
    changes: DurableChanges,
    count: Callable[[float], None] | None = None,
) -> Table:
    """Write the files `<name>.<array>-<generation>` of a table, and return its description.

    `count` receives half of a chunk's bytes when they are written, and half when their digest is computed.
    """
    arrays = {}
    for array_name, array in new.arrays.items():
        file = f"{name}.{array_name}-{generation}"
        width = 1 if array.values.ndim == 1 else array.values.shape[1]
        slot_bytes = array.values.itemsize * width
        raw = np.ascontiguousarray(array.values).reshape(-1).view(np.uint8)
        bounds = zip((new.starts[:-1] * slot_bytes).tolist(), (new.starts[1:] * slot_bytes).tolist(), strict=True)
        chunks = [raw[first:last] for first, last in bounds]
        changes.write(folder / file, (chunk.data for chunk in _counted(chunks, count)))
        arrays[array_name] = StoredArray(
            file=file,
            dtype=array.values.dtype.str,
            width=width,
            blank=array.blank,
            digests="".join(map(digest_of, _counted(chunks, count))),
        )
    return Table(new.starts, arrays)


def _counted(chunks: Iterable[Raw], count: Callable[[float], None] | None) -> Iterator[Raw]:
    for chunk in chunks:
        yield chunk
        if count is not None:
            count(chunk.nbytes / 2)


def extend_table(
    base: BaseArrays, name: str, added: NewTable, generation: Generation, changes: DurableChanges
) -> Table:
    """Append slots to every array of a table and return its description; `added.starts` are those of all slots.

    Each writer appends only to files that it created, because a writer that lost its lease may still be appending.
    Slots from another writer are first copied to new files of `generation`, without what is being blanked.
    """
    table, starts = base.index.tables[name], added.starts
    # The last chunk may become longer.
    kept = table.chunks - 1 if table.chunks and starts[table.chunks] != table.slots else table.chunks
    arrays = {}
    for array_name, array in table.arrays.items():
        values = np.ascontiguousarray(added.arrays[array_name].values)
        new = values.reshape(-1).view(np.uint8).reshape(-1, array.slot_bytes)
        tail = np.concatenate([base.read_raw(name, array_name, range(kept, table.chunks)), new])
        bounds = (starts[kept:] - table.starts[kept]).tolist()
        digests = [digest_of(tail[first:end]) for first, end in itertools.pairwise(bounds)]
        file = array.file
        if array.generation.fencing == generation.fencing:
            changes.append(base.folder / file, [new.reshape(-1).data], offset=table.slots * array.slot_bytes)
        else:
            file = f"{name}.{array_name}-{generation}"
            earlier = (
                base.read_raw(name, array_name, range(chunk, chunk + 1)).reshape(-1).data for chunk in range(kept)
            )
            changes.write(base.folder / file, itertools.chain(earlier, [tail.reshape(-1).data]))
        arrays[array_name] = replace(array, file=file, digests=array.digests[: kept * DIGEST] + "".join(digests))
    return Table(starts, arrays, table.erasing)
