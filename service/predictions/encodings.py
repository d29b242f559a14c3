"""File formats of predictions: Parquet, Arrow, CSV and NDJSON, each written part by part."""

import csv
import importlib.util
import io
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from service.errors import InvalidRequest
from service.predictions.downloads import Part
from service.predictions.facts import Facts

if TYPE_CHECKING:
    import pyarrow as pa

#: Nodes per line of text made at a time: as Python objects they take many times their size.
_LINES = 4096


class FileFormat(StrEnum):
    """The formats; the values are also the endings of file names."""

    PARQUET = "parquet"
    #: An Arrow IPC file, also known as Feather.
    ARROW = "arrow"
    CSV = "csv"
    NDJSON = "ndjson"

    @property
    def media_type(self) -> str:
        """Media type of a file."""
        return {
            FileFormat.PARQUET: "application/vnd.apache.parquet",
            FileFormat.ARROW: "application/vnd.apache.arrow.file",
            FileFormat.CSV: "text/csv",
            FileFormat.NDJSON: "application/x-ndjson",
        }[self]

    def require(self) -> None:
        """Raise InvalidRequest if this installation cannot write the format."""
        needs_pyarrow = self in (FileFormat.PARQUET, FileFormat.ARROW)
        if needs_pyarrow and importlib.util.find_spec("pyarrow") is None:
            raise InvalidRequest(
                f"This Lethe cannot write {self.value}: the package pyarrow is not installed.",
                "Request csv or ndjson, or have the operator install `lethe-service[tables]`.",
            )


def encoded(form: FileFormat, facts: Facts, parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield a file of the predictions, in pieces; the columns are those of docs/api.md."""
    match form:
        case FileFormat.NDJSON:
            return _ndjson(facts, parts)
        case FileFormat.CSV:
            return _csv(facts, parts)
        case _:
            return _arrow(form, facts, parts)


def _columns(facts: Facts) -> tuple[bool, list[str]]:
    """Return whether there is a label, and the names of the columns of values."""
    is_class = facts.model.regression is None
    return is_class, [f"{'probability' if is_class else 'score'}_{name}" for name in facts.model.classes]


def _rows(parts: Iterable[Part]) -> Iterator[list[tuple[str, int, list[float]]]]:
    """Yield id, best class and values of some nodes at a time."""
    for part in parts:
        ends = np.cumsum(part.lengths, dtype=np.int64)
        starts = ends - part.lengths
        for first in range(0, len(ends), _LINES):
            some = slice(first, first + _LINES)
            ids = [
                part.text[start:end].decode("utf-8", "surrogatepass")
                for start, end in zip(starts[some].tolist(), ends[some].tolist(), strict=True)
            ]
            yield list(zip(ids, part.best[some].tolist(), part.values[some].tolist(), strict=True))


def _ndjson(facts: Facts, parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield lines, each as the answer of `GET /predict/{node}`."""
    classes, version = facts.model.classes, facts.served.version
    is_class, _ = _columns(facts)

    def record(node: str, best: int, values: list[float]) -> dict[str, Any]:
        by_class = dict(zip(classes, values, strict=True))
        named = {"label": classes[best], "probabilities": by_class} if is_class else {"scores": by_class}
        return {"node": node, **named, "model_version": version}

    for rows in _rows(parts):
        yield b"".join(orjson.dumps(record(*row), option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def _csv(facts: Facts, parts: Iterable[Part]) -> Iterator[bytes]:
    classes = facts.model.classes
    is_class, names = _columns(facts)

    def table(rows: Iterable[Iterable[Any]]) -> bytes:
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        return text.getvalue().encode("utf-8", "surrogatepass")

    yield table([["node", *(["label"] if is_class else []), *names]])
    for rows in _rows(parts):
        yield table([node, *([classes[best]] if is_class else []), *values] for node, best, values in rows)


class _Sink(io.RawIOBase):
    """Collects what a writer writes until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._written = bytearray()
        self._taken = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Collect bytes."""
        self._written += data
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written so far, taken ones included."""
        return self._taken + len(self._written)

    def take(self) -> bytes:
        """Return the bytes that were written since the last time."""
        taken = bytes(self._written)
        self._taken += len(taken)
        self._written.clear()
        return taken


def _arrow(form: FileFormat, facts: Facts, parts: Iterable[Part]) -> Iterator[bytes]:
    """Yield a Parquet file of one row group for each part, or an Arrow file of one batch for each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    is_class, names = _columns(facts)
    fields = [("node", pa.string()), *([("label", pa.string())] if is_class else [])]
    metadata = {"lethe.model": facts.model.name, "lethe.model_version": str(facts.served.version)}
    schema = pa.schema([*fields, *((name, pa.float64()) for name in names)], metadata)
    sink = _Sink()
    opened = pq.ParquetWriter if form is FileFormat.PARQUET else pa.ipc.new_file
    with opened(sink, schema) as writer:
        for part in parts:
            writer.write_batch(_batch(part, schema, facts))
            if written := sink.take():
                yield written
    yield sink.take()


def _batch(part: Part, schema: "pa.Schema", facts: Facts) -> "pa.RecordBatch":
    import pyarrow as pa

    nodes = len(part.lengths)
    offsets = np.zeros(nodes + 1, dtype=np.int32)
    np.cumsum(part.lengths, out=offsets[1:])
    ids = pa.StringArray.from_buffers(nodes, pa.py_buffer(offsets), pa.py_buffer(part.text))
    label = []
    if facts.model.regression is None:
        classes = pa.array(facts.model.classes, pa.string())
        label = [classes.take(pa.array(part.best.astype(np.int32)))]
    return pa.record_batch([ids, *label, *(pa.array(column) for column in part.values.T.copy())], schema=schema)
