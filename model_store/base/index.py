"""The index of `base/`: its arrays, their chunks, and a digest per chunk.

A table is a set of arrays with one entry per slot, and the slots are cut into chunks. The slots of a chunk belong to
nodes of the same `chunk_rows` rows. Every array has its own file with equally sized slots, and a byte that blanks a
slot.

Each change of `base/` writes a new index under its own name, `index-<number>-<fencing>.json`. The current index has the
highest fencing number, then the highest number. So a writer that lost its lease cannot replace its successor's index.

An erasure first writes an *open* index. It names the slots being overwritten, and has their chunks' future digests.
After overwriting, the same index without these slots replaces it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.disk.checksummed import checksummed, read_checksummed, wrong
from model_store.disk.durable import damaged
from model_store.errors import NotAStore

#: Numbers with at most 18 digits fit the database's integers.
_LABELLED = re.compile(
    r"(?P<stem>.+)-(?P<number>0|[1-9]\d{0,17})-(?P<fencing>0|[1-9]\d{0,17})(?P<suffix>\.json)?", re.ASCII
)
_INDEX = "index"
#: Characters of a digest.
DIGEST = 64
#: Row of a blanked slot of a sparse table, counted within its chunk. So chunks must have fewer rows.
NO_ROW = 0xFFFF


@dataclass(frozen=True, order=True)
class Generation:
    """One state of `base/`, ordered by the fencing number of its writer, then by its own number."""

    fencing: int
    number: int

    def __str__(self) -> str:
        return f"{self.number}-{self.fencing}"

    @classmethod
    def parse(cls, text: str) -> "Generation":
        """Return the generation written as "<number>-<fencing>". Raises ValueError for other text."""
        found = _LABELLED.fullmatch(f"x-{text}")
        if found is None or found["stem"] != "x" or found["suffix"]:
            raise ValueError(f"{text!r} is not a generation")
        return cls(fencing=int(found["fencing"]), number=int(found["number"]))


@dataclass(frozen=True)
class StoredArray:
    """One file of `base/`."""

    file: str
    #: numpy name of the item type, such as "<f4".
    dtype: str
    #: Items per slot.
    width: int
    #: The byte that fills a blanked slot: 0 or 255.
    blank: int
    #: Hex SHA-256 of each chunk, concatenated.
    digests: str

    @property
    def slot_bytes(self) -> int:
        """Bytes per slot."""
        return int(np.dtype(self.dtype).itemsize) * self.width

    @property
    def generation(self) -> Generation:
        """The generation that created the file."""
        return Generation.parse(self.file.partition("-")[2])

    def digest(self, chunk: int) -> str:
        """Return the hex SHA-256 of a chunk."""
        return self.digests[DIGEST * chunk : DIGEST * (chunk + 1)]


@dataclass(frozen=True, eq=False)
class Table:
    """Arrays that share their slots."""

    #: First slot of each chunk, then the total number of slots, (chunks + 1,).
    starts: NDArray[np.int64]
    arrays: Mapping[str, StoredArray]
    #: Slots being blanked, sorted, (k,). Some may still hold their old content; the digests exclude it.
    erasing: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return int(self.starts.size) - 1

    @property
    def slots(self) -> int:
        """Number of slots in each array."""
        return int(self.starts[-1])

    def chunk_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the chunk of each slot, (k,)."""
        return np.asarray(np.searchsorted(self.starts, slots, side="right") - 1, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Index:
    """The contents of `base/`."""

    generation: Generation
    #: SHA-256, hex, of this base's manifest.json.
    manifest_sha256: str
    #: Rows of the graph: imported ones, then those that joined.
    nodes: int
    chunk_rows: int
    #: The model version of the last rebuild of the span coefficients; 0 for those of training.
    beta_version: int
    #: Rows of the span coefficients: `nodes`, or more until the new nodes have joined.
    beta_rows: int
    #: The last model version whose edit was applied; 0 for none.
    grown_version: int
    tables: Mapping[str, Table]

    @property
    def imported(self) -> int:
        """Number of imported rows."""
        return self.tables["nodes"].slots

    @property
    def weighted(self) -> bool:
        """Whether edges have weights."""
        return "adjacency" in self.tables and "values" in self.tables["adjacency"].arrays

    @property
    def row_chunks(self) -> int:
        """Number of chunks of rows."""
        return -(-self.nodes // self.chunk_rows)

    def rows(self, chunks: range) -> slice:
        """Return the rows of consecutive chunks."""
        return slice(chunks.start * self.chunk_rows, min(chunks.stop * self.chunk_rows, self.nodes))

    def imported_chunks(self, chunks: range) -> range:
        """Return the chunks that contain imported rows. The last one may also contain rows that joined."""
        count = -(-self.imported // self.chunk_rows)
        return range(min(chunks.start, count), min(chunks.stop, count))

    @property
    def file_name(self) -> str:
        """File name of this index in `base/`."""
        return f"{_INDEX}-{self.generation}.json"

    def files(self) -> frozenset[str]:
        """Return the names of all array files."""
        return frozenset(array.file for table in self.tables.values() for array in table.arrays.values())

    @property
    def is_open(self) -> bool:
        """Whether an erasure is in progress or was interrupted."""
        return any(table.erasing.size for table in self.tables.values())

    def closed(self) -> "Index":
        """Return the same index after the erasure is complete."""
        return replace(self, tables={name: Table(table.starts, table.arrays) for name, table in self.tables.items()})

    def with_table(self, name: str, table: Table) -> "Index":
        """Return the same index with one table replaced."""
        return replace(self, tables={**self.tables, name: table})

    def to_bytes(self) -> bytes:
        """Return the file content of the index."""
        tables = {
            name: _TableFile(tuple(table.starts.tolist()), dict(table.arrays), tuple(table.erasing.tolist()))
            for name, table in self.tables.items()
        }
        generation = str(self.generation)
        return checksummed(
            _IndexFile(
                generation,
                self.manifest_sha256,
                self.nodes,
                self.chunk_rows,
                self.beta_version,
                self.beta_rows,
                self.grown_version,
                tables,
            )
        )

    @classmethod
    def read(cls, path: Path) -> "Index":
        """Return the index in a file. Raises StoreDamaged or NotAStore naming the file if none exists."""
        found = read_checksummed(path, _IndexFile)
        try:
            generation = Generation.parse(found.generation)
        except ValueError as error:
            raise wrong(path, "generation", "a generation", found.generation) from error
        tables = {name: _table(path, name, table) for name, table in found.tables.items()}
        index = cls(**{**vars(found), "generation": generation, "tables": tables})
        if index.file_name != path.name:
            raise damaged(path, f"holds the index that belongs in {index.file_name}")
        return index

    @classmethod
    def latest(cls, folder: Path) -> "Index":
        """Return the current index of `base/`. Raises StoreDamaged if it is missing or unreadable."""
        return cls.read(folder / f"{_INDEX}-{cls.latest_generation(folder)}.json")

    @staticmethod
    def latest_generation(folder: Path) -> Generation:
        """Return the generation of the current index of `base/`. Raises StoreDamaged if none exists."""
        found = [generation for stem, generation, _ in labelled_files(folder) if stem == _INDEX]
        if not found:
            raise damaged(folder / f"{_INDEX}-….json", "is missing")
        return max(found)


def labelled_files(folder: Path) -> Iterator[tuple[str, Generation, Path]]:
    """Yield stem, generation and path of each file of `base/` whose name ends in a generation."""
    if not folder.is_dir():
        raise damaged(folder, "is missing")
    for path in sorted(folder.iterdir()):
        found = _LABELLED.fullmatch(path.name)
        if found is not None:
            yield found["stem"], Generation(int(found["fencing"]), int(found["number"])), path


def check_file_names(folder: Path) -> None:
    """Raise NotAStore for a file of `base/` that Lethe did not write, because erasure would miss it."""
    known = {path for _, _, path in labelled_files(folder)}
    for path in sorted(folder.iterdir()):
        if path not in known and not path.name.startswith("."):
            raise NotAStore(
                f"{path} is not a file of a model store, so erasure would not reach it.", "Move it out of the store."
            )


@dataclass(frozen=True)
class _TableFile:
    """A table in the index file."""

    starts: tuple[int, ...]
    arrays: dict[str, StoredArray]
    erasing: tuple[int, ...]


@dataclass(frozen=True)
class _IndexFile:
    """An index in its file."""

    generation: str
    manifest_sha256: str
    nodes: int
    chunk_rows: int
    beta_version: int
    beta_rows: int
    grown_version: int
    tables: dict[str, _TableFile]


def _table(path: Path, table_name: str, found: _TableFile) -> Table:
    """Return a table from its description in a file. Raises NotAStore if its parts do not fit together."""
    starts, slots = np.asarray(found.starts, dtype=np.int64), np.asarray(found.erasing, dtype=np.int64)
    end = int(starts[-1]) if starts.size else 0
    if slots.size and (slots[0] < 0 or slots[-1] >= end or (np.diff(slots) <= 0).any()):
        raise wrong(path, f"{table_name}.erasing", f"slots below {end}, one after the other", found.erasing)
    for name, array in found.arrays.items():
        stem, chunks = f"{table_name}.{name}", len(found.starts) - 1
        labelled = _LABELLED.fullmatch(array.file)
        # The file must be in this folder: a path could make reading, and worse, erasing, reach outside of the store.
        if labelled is None or labelled["stem"] != stem or labelled["suffix"] or "/" in array.file:
            raise wrong(path, f"{stem}.file", f"the name {stem}-<number>-<fencing>", array.file)
        if len(array.digests) != DIGEST * chunks:
            raise wrong(path, f"{stem}.digests", f"those of {chunks} chunks", array.digests)
    return Table(starts, found.arrays, slots)
