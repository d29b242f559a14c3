"""Tables in files: Parquet, Arrow (Feather) and CSV, for training and for additions."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_store.datasets.load import with_split
from model_store.datasets.table_names import ARROW, CSV, PARQUET, SUFFIXES, suffix_of
from model_store.errors import DatasetNotFound
from projector.errors import GraphError
from projector.graph.arrow import Source, pyarrow, readable
from projector.graph.graph import Graph, validate
from projector.graph.tables import TableOptions, TableReport, read_tables

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of a Parquet file, and bytes of a text, that are read at a time.
_ROWS, _BLOCK = 1 << 20, 1 << 26


@dataclass(frozen=True)
class TableFiles:
    """A dataset in two files of tables."""

    nodes: Path
    #: None for a graph without edges.
    edges: Path | None
    options: TableOptions

    @property
    def name(self) -> str:
        """What a manifest records as the dataset."""
        return str(self.nodes) if self.edges is None else f"{self.nodes} and {self.edges}"


def load_tables(
    files: TableFiles, *, seed: int = 0, dedupe: bool = False, undirected: bool = False
) -> tuple[Graph, TableReport]:
    """Return the graph in two files, checked by `validate`, and what was read.

    With a split column its training nodes train; without one, 60/20/20 is drawn with `seed`. With `dedupe` a repeated
    edge counts once, and `undirected` adds the other direction of edges; otherwise such tables are refused. Raises
    DatasetNotFound, GraphError and MissingPackage.
    """
    options = files.options
    weight = [] if options.weight is None else [options.weight]
    nodes = open_table(files.nodes, text=[options.id, *([options.split] if options.split else ["split"])])
    edges = None
    if files.edges is not None:
        edges = open_table(files.edges, text=[options.source, options.target], numbers=weight, in_parts=True)
    read = read_tables(nodes, edges, options, (str(files.nodes), str(files.edges)))
    raw = read.raw.in_both_directions() if undirected else read.raw
    graph = with_split(raw, "full" if raw.masks is None else "public", seed, dedupe=dedupe)
    validate(graph)
    directions = 2 if undirected else 1
    return graph, replace(read.report, merged=read.raw.edge_index.shape[1] - int(graph.adjacency.nnz) // directions)


def open_table(
    path: Path, *, text: Collection[str] = (), numbers: Collection[str] = (), in_parts: bool = False
) -> Source:
    """Return the table in a file. Raises DatasetNotFound, GraphError and MissingPackage.

    In a CSV, which has no types, the columns `text` are text and `numbers` are floats. It is read whole, because the
    types of other columns depend on all their values; `in_parts`, piece by piece, reads only these columns.
    """
    if not path.is_file():
        raise DatasetNotFound(f"The file {path} does not exist.", "Check the path.")
    pyarrow()
    suffix = suffix_of(path)
    with readable(str(path)):
        if suffix in PARQUET:
            return _Parquet(path)
        if suffix in ARROW:
            return _Arrow(path)
        if suffix in CSV:
            return _Csv(path, text, numbers, in_parts=in_parts)
    raise GraphError(f"{path} does not end in {', '.join(SUFFIXES)}.", "Name the file after its format.")


class _Parquet:
    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(path)
        self.schema: pa.Schema = self._file.schema_arrow

    def batches(self, columns: Sequence[str]) -> Iterator["pa.RecordBatch"]:
        # It gives them in the order of the file.
        return (batch.select(columns) for batch in self._file.iter_batches(_ROWS, columns=list(columns)))


class _Arrow:
    """An Arrow file, compressed or not, or an Arrow stream in one."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        source = pa.memory_map(str(path))
        try:
            self._reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            self._reader = pa.ipc.open_stream(source)
        self.schema: pa.Schema = self._reader.schema

    def batches(self, columns: Sequence[str]) -> Iterator["pa.RecordBatch"]:
        reader, batches = self._reader, self._reader
        if hasattr(reader, "num_record_batches"):
            batches = (reader.get_batch(place) for place in range(reader.num_record_batches))
        for batch in batches:
            # Nothing else checks the offsets of a file, and a damaged one would end the process.
            batch.validate(full=True)
            yield batch.select(columns)


class _Csv:
    """A CSV or, for `.tsv`, one with tabs. Only an empty field is missing."""

    def __init__(self, path: Path, text: Collection[str], numbers: Collection[str], *, in_parts: bool) -> None:
        from pyarrow import csv

        self._path, self._in_parts = path, in_parts
        self._types = {**dict.fromkeys(text, "string"), **dict.fromkeys(numbers, "double")}
        self._table = None if in_parts else csv.read_csv(path, **self._settings())
        self.schema: pa.Schema = self._open().schema if self._table is None else self._table.schema

    def batches(self, columns: Sequence[str]) -> Iterator["pa.RecordBatch"]:
        if self._table is None:
            yield from self._open(columns)
        else:
            yield from self._table.select(columns).to_batches()

    def _open(self, columns: Sequence[str] = ()) -> Any:
        from pyarrow import csv

        return csv.open_csv(self._path, **self._settings(columns))

    def _settings(self, columns: Sequence[str] = ()) -> dict[str, Any]:
        from pyarrow import csv

        return {
            "read_options": csv.ReadOptions(block_size=_BLOCK),
            "parse_options": csv.ParseOptions(
                delimiter="\t" if suffix_of(self._path) == ".tsv" else ",",
                newlines_in_values=not self._in_parts,
            ),
            "convert_options": csv.ConvertOptions(
                include_columns=list(columns), column_types=self._types, null_values=[""], strings_can_be_null=True,
            ),
        }  # fmt: skip
