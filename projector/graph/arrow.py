"""Tables of any library that exports Arrow streams, their columns as plain arrays. Needs the package pyarrow."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from projector.errors import GraphError, MissingPackage

if TYPE_CHECKING:
    import pyarrow as pa

#: Longest part of a message of pyarrow that an error repeats.
_REASON = 300
#: Names of columns that an error lists.
_LISTED = 10


class Source(Protocol):
    """A table of which some columns are read, once."""

    @property
    def schema(self) -> "pa.Schema":
        """All its columns."""

    def batches(self, columns: Sequence[str]) -> Iterable["pa.RecordBatch"]:
        """Read these columns."""


def pyarrow() -> Any:
    """Return the module. Raises MissingPackage."""
    try:
        import pyarrow as pa
        import pyarrow.compute
    except ModuleNotFoundError as error:
        raise MissingPackage(
            "Tables are read through pyarrow, which is not installed.",
            "Install it: `pip install pyarrow`. ./lethe does; with a wheel, it is the extra `tables`.",
        ) from error
    return pa


class StreamSource:
    """A table in memory: any object with the method `__arrow_c_stream__`."""

    def __init__(self, origin: str, table: object) -> None:
        """Raises GraphError for another object."""
        if not hasattr(table, "__arrow_c_stream__"):
            raise GraphError(
                f"{origin} is a {type(table).__name__}, which exports no Arrow stream.",
                "Give a table of polars, DuckDB, pandas (2.2 or later) or pyarrow.",
            )
        self._origin, self._table = origin, table

    @cached_property
    def _reader(self) -> Any:
        # Late, because a connection to DuckDB has one open result at a time.
        with readable(self._origin):
            return pyarrow().RecordBatchReader.from_stream(self._table)

    @property
    def schema(self) -> "pa.Schema":
        """All its columns."""
        return self._reader.schema

    def batches(self, columns: Sequence[str]) -> Iterator["pa.RecordBatch"]:
        """Read these columns."""
        return (batch.select(columns) for batch in self._reader)


@contextmanager
def readable(origin: str) -> Iterator[None]:
    """Turn errors of pyarrow inside the block into GraphError."""
    pa = pyarrow()
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError, OverflowError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise GraphError(
            f"{origin} cannot be read: {reason[:_REASON]}.", "Save the table again; text is read as UTF-8."
        ) from error


def read(origin: str, source: Source, columns: Sequence[str]) -> "pa.Table":
    """Return these columns of a table, whole. Raises GraphError."""
    pa = pyarrow()
    fields = [source.schema.field(name) for name in columns]
    with readable(origin):
        return pa.Table.from_batches(source.batches(columns), pa.schema(fields))


def check_names(origin: str, source: Source) -> list[str]:
    """Return the names of a table's columns. Raises GraphError if some are repeated or empty."""
    with readable(origin):
        names = list(source.schema.names)
    repeated = sorted({name for name in names if names.count(name) > 1}) if len({*names}) < len(names) else []
    if repeated or not all(names):
        raise GraphError(
            f"{origin} has columns without a name, or several of the same name{listed(repeated, ': ')}.",
            "Give each column a name of its own.",
        )
    return names


def listed(names: Sequence[str], before: str = "") -> str:
    """Return the first of `names`, quoted, after `before`; empty without names."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{before}{', '.join(map(repr, names[:_LISTED]))}{more}" if names else ""


def plain(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Return a column without dictionaries, extension types and views: text as `large_string`."""
    pa = pyarrow()
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain(pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type))
    if pa.types.is_dictionary(kind):
        return plain(column.cast(kind.value_type))
    if pa.types.is_run_end_encoded(kind):
        return plain(pa.chunked_array([pa.compute.run_end_decode(chunk) for chunk in column.chunks], kind.value_type))
    if is_text(kind):
        return column.cast(pa.large_string())
    return column


def is_text(kind: "pa.DataType") -> bool:
    """Return whether values of this type are text."""
    types = pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def require(origin: str, names: Sequence[str], roles: Iterable[tuple[str, str]]) -> None:
    """Raise GraphError unless every column of `roles`, (option, name), exists, and none has two roles."""
    taken: dict[str, str] = {}
    for role, name in roles:
        if name not in names:
            raise GraphError(
                f"{origin}: it has no column {name!r}; its columns are {listed(names)}.",
                f"Name the column with `{role}` (--{role}).",
            )
        if name in taken and role != "features":
            raise GraphError(f"{origin}: the column {name!r} is both {taken[name]} and {role}.", "Name another one.")
        taken[name] = role
