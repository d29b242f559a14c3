"""External ids of nodes, stored in arrays without a Python object per id, and looked up by row or by text."""

import operator
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from projector.graph.ranges import ranges

#: Size unit of stored ids: the length of a deleted id shows only as a multiple of it.
SLOT_BYTES = 16
#: Number of ids that are encoded, decoded or hashed at a time.
_BLOCK = 1 << 10
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class NodeIds(Sequence[str]):
    """External ids, one per row. Ids of erased nodes are blank, "", and never found.

    Each id is padded with zeros to whole slots, as in a store. Rows are looked up in a table of keyed hashes, built on
    first use, and confirmed by comparing bytes. Only `forget` changes anything.
    """

    def __init__(
        self, utf8: NDArray[np.uint8], slots: NDArray[np.unsignedinteger], lengths: NDArray[np.unsignedinteger]
    ) -> None:
        """`utf8` holds all slots, (s, 16); `slots` and `lengths`, (n,) each, the slots and bytes of each id."""
        self.utf8 = utf8
        #: First slot of each id, then the total number of slots, (n + 1,) int64.
        self.starts = np.zeros(slots.size + 1, dtype=np.int64)
        np.cumsum(slots, out=self.starts[1:])
        #: Bytes of each id, (n,) uint32; 0 if blank.
        self.lengths = lengths.astype(np.uint32, copy=False)
        self._key = np.uint64(secrets.randbits(64))
        self._sorted: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None

    @classmethod
    def of(cls, names: Iterable[str]) -> "NodeIds":
        """Return the ids `names`, arbitrary strings, row by row."""
        if isinstance(names, NodeIds):
            return names
        left, texts, lengths = iter(names), [b""], [np.empty(0, dtype=np.uint32)]
        while block := [name.encode("utf-8", "surrogatepass") for name in islice(left, _BLOCK)]:
            texts.append(b"".join(text.ljust(-(-len(text) // SLOT_BYTES) * SLOT_BYTES, b"\0") for text in block))
            lengths.append(np.fromiter(map(len, block), np.uint32, len(block)))
        bytes_of = np.concatenate(lengths)
        utf8 = np.frombuffer(bytearray().join(texts), dtype=np.uint8).reshape(-1, SLOT_BYTES)
        return cls(utf8, _slots(bytes_of), bytes_of)

    @property
    def named(self) -> NDArray[np.bool_]:
        """Mask of the rows that have an id, (n,)."""
        return self.lengths > 0

    def __len__(self) -> int:
        return self.lengths.size

    @overload
    def __getitem__(self, at: SupportsIndex) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...

    def __getitem__(self, at: SupportsIndex | slice) -> str | tuple[str, ...]:
        if isinstance(at, slice):
            return tuple(self[row] for row in range(*at.indices(len(self))))
        return next(self._texts(row := range(len(self))[at], row + 1))

    def __iter__(self) -> Iterator[str]:
        return self._texts(0, len(self))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self.rows_of([name])[0] >= 0)

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is a sequence of the same strings."""
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def rows_of(self, names: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each of `names`, (k,); -1 if no row has it."""
        wanted = NodeIds.of(names)
        if not len(wanted):
            return np.empty(0, dtype=np.int64)
        while True:
            table = self._by_hash()
            found = self._found(wanted, *table)
            # Otherwise `forget` overwrote the table in another thread: retry.
            if self._sorted is table:
                return found

    def _found(self, wanted: "NodeIds", hashes: NDArray[np.uint64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        found = np.full(len(wanted), -1, dtype=np.int64)
        sought = wanted._hashes(np.arange(len(wanted)), self._key)
        place, end = np.searchsorted(hashes, sought), np.searchsorted(hashes, sought, side="right")
        while (asked := np.flatnonzero(place < end)).size:
            candidates = rows[place[asked]]
            same = self._equal(candidates, wanted, asked)
            found[asked[same]] = candidates[same]
            place[asked] = np.where(same, end[asked], place[asked] + 1)
        return found

    def repeated(self) -> Iterator[str]:
        """Yield each id that several rows share, once."""
        hashes, rows = self._by_hash()
        for shared in np.unique(hashes[1:][hashes[1:] == hashes[:-1]]):
            first, end = np.searchsorted(hashes, shared), np.searchsorted(hashes, shared, side="right")
            times = Counter(self[row] for row in rows[first:end])
            yield from (name for name, count in times.items() if count > 1)

    def are_text(self) -> bool:
        """Return whether all ids are valid UTF-8."""
        doubtful = self.take(np.flatnonzero(~self.plain()))
        try:
            return all(True for _ in doubtful._texts(0, len(doubtful), "strict"))
        except UnicodeDecodeError:
            return False

    def plain(self) -> NDArray[np.bool_]:
        """Return which ids are printable ASCII without spaces, including rows without an id, (n,)."""
        found = np.empty(len(self), dtype=np.bool_)
        for block in range(0, len(self), _BLOCK):
            rows = slice(block, min(block + _BLOCK, len(self)))
            begin = self.starts[block]
            text = self.utf8[begin : self.starts[rows.stop]].reshape(-1)
            odd = np.append(0, np.cumsum((text <= 0x20) | (text > 0x7E)))
            firsts = (self.starts[rows] - begin) * SLOT_BYTES
            found[rows] = odd[firsts] == odd[firsts + self.lengths[rows]]
        return found

    def beginning_with(self, prefix: bytes) -> NDArray[np.bool_]:
        """Return which ids begin with `prefix`, of at most 16 bytes, (n,)."""
        found = self.lengths >= len(prefix)
        texts = self.utf8[self.starts[:-1][found], : len(prefix)]
        found[found] = (texts == np.frombuffer(prefix, dtype=np.uint8)).all(axis=1)
        return found

    def take(self, rows: NDArray[np.int64]) -> "NodeIds":
        """Return the ids of `rows` (k,), in their order."""
        starts, ends = self.starts[rows], self.starts[rows + 1]
        return NodeIds(self.utf8[ranges(starts, ends)], (ends - starts).astype(np.uint32), self.lengths[rows])

    def followed_by(self, others: "NodeIds") -> "NodeIds":
        """These ids, then `others`, in one."""
        slots = np.concatenate([np.diff(self.starts), np.diff(others.starts)]).astype(np.uint32)
        lengths = np.concatenate([self.lengths, others.lengths])
        return NodeIds(np.concatenate([self.utf8, others.utf8]), slots, lengths)

    def without(self, rows: NDArray[np.int64]) -> "NodeIds":
        """Return a copy in which `rows` (k,) are blank, with its lookup table already built."""
        copied = NodeIds(self.utf8.copy(), np.diff(self.starts).astype(np.uint32), self.lengths.copy())
        copied.forget(rows)
        # Build it now rather than during the first lookup.
        copied._by_hash()
        return copied

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Overwrite the ids of `rows` (k,). They become blank, and this object keeps nothing of them in memory."""
        self.lengths[rows] = 0
        self.utf8[ranges(self.starts[rows], self.starts[rows + 1])] = 0
        if self._sorted is not None:
            hashes, by_hash = self._sorted
            kept = self.named[by_hash]
            # Leave no gap: with the key it would reveal whose hash was removed.
            self._sorted = hashes[kept], by_hash[kept]
            hashes[:], by_hash[:] = 0, 0

    def _texts(self, first: int, end: int, errors: str = "surrogatepass") -> Iterator[str]:
        for block in range(first, end, _BLOCK):
            rows = slice(block, min(block + _BLOCK, end))
            begin = self.starts[block]
            text = self.utf8[begin : self.starts[rows.stop]].tobytes()
            firsts = (self.starts[rows] - begin) * SLOT_BYTES
            for at, until in zip(firsts.tolist(), (firsts + self.lengths[rows]).tolist(), strict=True):
                yield text[at:until].decode("utf-8", errors)

    def _by_hash(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the sorted hashes of all ids that are not blank, and the row of each."""
        if self._sorted is None:
            rows = np.flatnonzero(self.lengths)
            hashes = self._hashes(rows, self._key)
            order = np.argsort(hashes)
            self._sorted = hashes[order], rows[order]
        return self._sorted

    def _hashes(self, rows: NDArray[np.int64], key: np.uint64) -> NDArray[np.uint64]:
        """Return the hashes of the ids of `rows` (k,), (k,)."""
        hashes = self.lengths[rows] ^ key
        words = self.utf8.view(np.uint64)
        for block in range(0, rows.size, _BLOCK):
            part, mixed = rows[block : block + _BLOCK], hashes[block : block + _BLOCK]
            slots = _slots(self.lengths[part])
            for slot in range(int(slots.max())):
                longer = np.flatnonzero(slots > slot)
                for word in words[self.starts[part[longer]] + slot].T:
                    mixed[longer] = splitmix64(mixed[longer] ^ word) + key
        return hashes

    def _equal(self, rows: NDArray[np.int64], other: "NodeIds", others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the ids of `rows` (k,) equal those of the rows `others` (k,) in `other`."""
        slots = _slots(self.lengths[rows])
        same: NDArray[np.bool_] = self.named[rows] & (self.lengths[rows] == other.lengths[others])
        for slot in range(int(slots.max())):
            at = np.flatnonzero(same & (slots > slot))
            ours, theirs = self.utf8[self.starts[rows[at]] + slot], other.utf8[other.starts[others[at]] + slot]
            same[at] = (ours == theirs).all(axis=1)
        return same


def splitmix64(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `numbers` mixed so that the upper bits depend on all bits."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * _M1
    return (mixed ^ (mixed >> np.uint64(27))) * _M2


def _slots(lengths: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the number of slots that ids of these lengths fill."""
    return (lengths + np.uint32(SLOT_BYTES - 1)) // np.uint32(SLOT_BYTES)
