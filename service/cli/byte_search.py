"""Byte-by-byte search of files for data that must be gone: external ids and rows of features.

Patterns must be distinctive, so that nothing else can have left them. A long id is distinctive. In a row of features,
any few consecutive values are, as float32 or float64, unless they are zeros and ones. Shorter or more common data is
counted instead of searched, because finding it everywhere, or nowhere, would prove nothing.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base.edit import FeatureSlots
from model_store.work import Work

#: Shorter byte strings occur by chance in any large file.
LEAST_BYTES = 8
#: Bytes of consecutive values that make one pattern.
_WINDOW_BYTES = 16
#: Consecutive column numbers of a sparse row per pattern; unrelated rows share shorter runs.
_INDEX_WINDOW = 8
#: Bytes read at a time.
_BLOCK = 8 << 20


@dataclass(frozen=True)
class Pattern:
    """A byte string to search for."""

    content: bytes
    #: Describes the traced data, such as "id on line 3"; never contains the id itself.
    what: str


@dataclass(frozen=True)
class Trace:
    """A pattern in a file."""

    path: Path
    #: Offset of its first byte.
    offset: int
    what: str
    #: Length of the pattern in bytes.
    size: int


@dataclass(frozen=True)
class Patterns:
    """Patterns to search for, and the number of inputs without a distinctive pattern."""

    patterns: tuple[Pattern, ...]
    #: Number of ids or rows that are too short or too common.
    indistinct: int


def patterns_of_ids(ids: Sequence[str]) -> Patterns:
    """Return patterns for every encoding of an id; line numbers refer to `ids`, from 1."""
    patterns: list[Pattern] = []
    indistinct = 0
    for line, node in enumerate(ids, start=1):
        encodings = {
            "": node.encode(),
            " in UTF-16": node.encode("utf-16-le"),
            " in JSON": json.dumps(node)[1:-1].encode(),
            " in a URL": quote(node, safe="").encode(),
            " in upper case": node.upper().encode(),
            " as bytes": _from_hex(node),
        }
        long = {content: how for how, content in reversed(encodings.items()) if len(content) >= LEAST_BYTES}
        patterns += [Pattern(content, f"id on line {line}{how}") for content, how in long.items()]
        indistinct += len(node.encode()) < LEAST_BYTES
    return Patterns(tuple(patterns), indistinct)


def patterns_of_rows(rows: NDArray[Any] | sp.csr_array) -> Patterns:
    """Return runs of values of each row (k, d) as float32 and float64 and, for sparse rows, runs of column numbers.

    If an erasure or page boundary cuts a run, another run still finds the row, unless the row is shorter than two
    runs.
    """
    patterns: list[Pattern] = []
    indistinct = 0
    for number in range(rows.shape[0]):
        sparse = sp.csr_array(rows[[number]])
        columns = np.asarray(sparse.indices)
        values = np.asarray(sparse.data) if sp.issparse(rows) else np.asarray(rows[number])
        found = [*_runs_of_values(values, number), *_runs_of_columns(columns, number)]
        patterns += found
        indistinct += not found
    return Patterns(tuple(patterns), indistinct)


class Search:
    """Searches files for all patterns at once."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        """Each pattern needs at least `LEAST_BYTES` bytes."""
        by_content = {pattern.content: pattern for pattern in patterns}
        self._patterns = sorted(by_content.values(), key=lambda pattern: pattern.content[:LEAST_BYTES])
        heads = [pattern.content[:LEAST_BYTES] for pattern in self._patterns]
        self._heads = np.array([int.from_bytes(head, "big") for head in heads], dtype=np.uint64)
        self._first_two = np.zeros(1 << 16, dtype=np.bool_)
        self._first_two[[int.from_bytes(head[:2], "big") for head in heads]] = True
        self._longest = max((len(pattern.content) for pattern in self._patterns), default=LEAST_BYTES)

    def __len__(self) -> int:
        return len(self._patterns)

    def file(self, path: Path, work: Work | None = None) -> Iterator[Trace]:
        """Yield every place where a pattern begins; `work` counts bytes. Raises OSError if a read fails."""
        with path.open("rb") as file:
            kept, start, work = b"", 0, work or Work()
            while block := file.read(_BLOCK):
                data = kept + block
                # Patterns that begin in the last bytes are searched again with the next block.
                whole = len(data) - self._longest + 1
                yield from (one for one in self._within(path, data, start) if one.offset - start < whole)
                kept = data[max(0, whole) :]
                start += len(data) - len(kept)
                work.count(len(block))
            yield from self._within(path, kept, start)

    def _within(self, path: Path, data: bytes, start: int) -> Iterator[Trace]:
        raw = np.frombuffer(data, dtype=np.uint8)
        if raw.size < LEAST_BYTES or not self._patterns:
            return
        pairs = (raw[:-1].astype(np.uint16) << 8) | raw[1:]
        places = np.flatnonzero(self._first_two[pairs[: raw.size - LEAST_BYTES + 1]])
        windows = np.lib.stride_tricks.sliding_window_view(raw, LEAST_BYTES)[places]
        heads = np.ascontiguousarray(windows).view(">u8")[:, 0].astype(np.uint64)
        first = np.searchsorted(self._heads, heads, side="left")
        last = np.searchsorted(self._heads, heads, side="right")
        for at in np.flatnonzero(last > first).tolist():
            offset = int(places[at])
            for pattern in self._patterns[first[at] : last[at]]:
                if data.startswith(pattern.content, offset):
                    yield Trace(path, start + offset, pattern.what, len(pattern.content))


@dataclass(frozen=True, eq=False)
class StoredRows:
    """Stored feature rows of nodes outside the search: these bytes are theirs, whatever they equal."""

    #: (n,) bool.
    own: NDArray[np.bool_]
    slots: Sequence[FeatureSlots]

    def explain(self, finding: Trace) -> bool:
        """Return whether a finding lies within these nodes' features, possibly across several nodes if sparse."""
        return any(self._hold(slots, finding) for slots in self.slots)

    def _hold(self, slots: FeatureSlots, finding: Trace) -> bool:
        begin = finding.offset - slots.offset
        last = (begin + finding.size - 1) // slots.slot_bytes
        # A crash may have left slots behind the last one.
        if begin < 0 or last >= slots.row_of_slot.size or finding.path.resolve() != slots.file.resolve():
            return False
        rows = slots.row_of_slot[begin // slots.slot_bytes : last + 1]
        return bool((rows >= 0).all() and self.own[rows].all())


def files_below(folders: Iterable[Path], *, but: Iterable[Path] = ()) -> Iterator[Path]:
    """Yield every regular file below `folders` once, including hidden ones, except `but`; does not follow links."""
    passed = {(one.stat().st_dev, one.stat().st_ino) for one in but if one.exists()}
    for folder in folders:
        for parent, children, names in os.walk(folder, onerror=_raise):
            children.sort()
            for name in sorted(names):
                path = Path(parent) / name
                try:
                    status = path.lstat()
                except FileNotFoundError:
                    continue
                if not path.is_file() or path.is_symlink() or (status.st_dev, status.st_ino) in passed:
                    continue
                passed.add((status.st_dev, status.st_ino))
                yield path


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _from_hex(node: str) -> bytes:
    try:
        return bytes.fromhex(node.replace("-", ""))
    except ValueError:
        return b""


def _runs_of_values(values: NDArray[Any], number: int) -> Iterator[Pattern]:
    for dtype in ("<f4", "<f8"):
        converted = values.astype(dtype)
        step = _WINDOW_BYTES // converted.itemsize
        for start in range(0, converted.size - step + 1, step):
            run = converted[start : start + step]
            # Zeros, ones and repetitions occur in every file.
            if np.unique(run[(run != 0) & (run != 1)]).size >= 2:
                yield Pattern(run.tobytes(), f"features of row {number} as {converted.dtype.name}")


def _runs_of_columns(columns: NDArray[Any], number: int) -> Iterator[Pattern]:
    for dtype in ("<i4", "<i8"):
        converted = columns.astype(dtype)
        for start in range(0, converted.size - _INDEX_WINDOW + 1, _INDEX_WINDOW):
            run = converted[start : start + _INDEX_WINDOW]
            # Consecutive numbers occur in dense rows and in any index.
            if np.any(np.diff(run) != 1):
                yield Pattern(run.tobytes(), f"columns of row {number} as {converted.dtype.name}")
