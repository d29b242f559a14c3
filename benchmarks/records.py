"""Results as NDJSON files: one record a line, sorted by key.

Sorted lines make the diff of a new measurement its own lines.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

Record: TypeAlias = dict[str, Any]

SUFFIX = ".ndjson"


class RecordError(ValueError):
    """A line of a results file is not a record."""

    def __init__(self, file: Path, line: int) -> None:
        super().__init__(f"{file}, line {line} is not a JSON object. Restore the file, or remove the line.")


def read(file: Path) -> list[Record]:
    """Return the records of a file in order, none if it is missing. Raises RecordError."""
    if not file.exists():
        return []
    records = []
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            raise RecordError(file, number) from None
        if not isinstance(record, dict):
            raise RecordError(file, number)
        records.append(record)
    return records


def read_all(files: Iterable[Path]) -> list[Record]:
    """Return the records of several files, in the order of their paths. Raises RecordError."""
    return [record for file in sorted(files) for record in read(file)]


def put(file: Path, record: Mapping[str, object], key: Sequence[str]) -> None:
    """Add a record, or replace the one with the same values of the fields `key`.

    Atomic: readers, and a run that is interrupted, see the file before or after. Writers wait for one another.
    Raises RecordError, and changes nothing, if the file is not one of records.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with _alone(file.parent):
        records = {_place(each, key): each for each in [*read(file), record]}
        partial = file.with_suffix(".partial")
        partial.write_text("".join(f"{json.dumps(records[place])}\n" for place in sorted(records)))
        partial.rename(file)


def _place(record: Mapping[str, object], key: Sequence[str]) -> tuple[tuple[bool, Any], ...]:
    """Return the values that sort a record; null comes first."""
    return tuple((record[field] is not None, record[field]) for field in key)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder`, which ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
