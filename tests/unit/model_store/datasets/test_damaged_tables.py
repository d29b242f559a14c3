"""Damaged tables: whatever is wrong with them, they are refused in words, or all that is not used is named."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from model_store.datasets.tables import TableFiles, load_tables
from projector.errors import ProjectorError
from projector.graph.tables import TableOptions
from tests.support.models.cora_tables import WRITERS
from tests.support.models.users import COLUMNS, users

pytestmark = pytest.mark.ci

Random = np.random.Generator
Damage = Callable[[pa.Table, Random], pa.Table]


def _column(table: pa.Table, rng: Random) -> int:
    return int(rng.integers(table.num_columns))


def _with(table: pa.Table, place: int, values: Any) -> pa.Table:
    return table.set_column(place, table.column_names[place], values)


def missing_column(table: pa.Table, rng: Random) -> pa.Table:
    return table.remove_column(_column(table, rng))


def repeated_name(table: pa.Table, rng: Random) -> pa.Table:
    names = list(table.column_names)
    names[_column(table, rng)] = names[0]
    return table.rename_columns(names)


def odd_name(table: pa.Table, rng: Random) -> pa.Table:
    names = list(table.column_names)
    names[_column(table, rng)] = str(rng.choice(["", "edge_weight", "train_mask", "node_id", "a.b", "ü\n", "x" * 9999]))
    return table.rename_columns(names)


def holes(table: pa.Table, rng: Random) -> pa.Table:
    place = _column(table, rng)
    values = table.column(place).to_pylist()
    return _with(table, place, pa.array([None if rng.random() < 0.1 else value for value in values]))


def other_values(table: pa.Table, rng: Random) -> pa.Table:
    count = table.num_rows
    makes: list[Callable[[], Any]] = [
        lambda: pa.nulls(count),
        lambda: pa.array(rng.integers(0, 3, count)),
        lambda: pa.array(rng.integers(2**53, 2**62, count)),
        lambda: pa.array(rng.choice([np.nan, np.inf, -1e300, 1.0], count)),
        lambda: pa.array(rng.choice(["", " ", "a", "b\n", "\u2028", "train", "7"], count)),
        lambda: pa.array([b"\xff\x00"] * count),
        lambda: pa.array([[1.0] * int(length) for length in rng.integers(0, 3, count)]),
        lambda: pa.array([["a"]] * count),
        lambda: pa.array([{"a": 1}] * count),
        lambda: pa.array(rng.integers(0, 10**6, count), pa.timestamp("s")),
        lambda: pa.array(rng.random(count) < 0.5),
        lambda: pa.array(rng.integers(0, 5, count), pa.uint64()),
        lambda: pa.array(rng.random(count).astype(np.float16)),
    ]
    return _with(table, _column(table, rng), makes[int(rng.integers(len(makes)))]())


def other_rows(table: pa.Table, rng: Random) -> pa.Table:
    return table.take(pa.array(rng.integers(0, table.num_rows, int(rng.integers(0, 2 * table.num_rows)))))


DAMAGES: list[Damage] = [missing_column, repeated_name, odd_name, holes, other_values, other_rows]


def bent(path: Path, rng: Random) -> None:
    """Change, cut or lengthen some bytes of a file."""
    data = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(1, 8))):
        place = int(rng.integers(len(data)))
        match int(rng.integers(3)):
            case 0:
                data[place] = int(rng.integers(256))
            case 1:
                del data[place : place + int(rng.integers(1, 100))]
            case _:
                data[place:place] = rng.bytes(int(rng.integers(1, 20)))
        if not data:
            break
    path.write_bytes(data)


def cases(seed: int) -> Iterator[Random]:
    number = 0
    while True:
        yield np.random.default_rng((seed, number))
        number += 1


def sweep(folder: Path, seconds: float, seed: int) -> tuple[int, int]:
    """Read damaged tables for some seconds. Returns how many were read and how many were refused."""
    until, read, refused = time.monotonic() + seconds, 0, 0
    for rng in cases(seed):
        if time.monotonic() > until:
            break
        tables = list(users(60, seed=int(rng.integers(5))))
        for _ in range(int(rng.integers(1, 4))):
            hurt = int(rng.integers(2))
            if tables[hurt].num_columns and tables[hurt].num_rows:
                tables[hurt] = DAMAGES[int(rng.integers(len(DAMAGES)))](tables[hurt], rng)
        suffix = list(WRITERS)[int(rng.integers(len(WRITERS)))]
        paths = [folder / f"{name}{suffix}" for name in ("nodes", "edges")]
        try:
            for table, path in zip(tables, paths, strict=True):
                WRITERS[suffix](table, path)
        except (pa.ArrowException, ValueError, KeyError, TypeError):
            # A CSV cannot hold lists; Arrow's writers refuse some names.
            continue
        is_bent = bool(rng.random() < 0.3)
        if is_bent:
            bent(paths[int(rng.integers(2))], rng)
        options = TableOptions(**COLUMNS, missing=str(rng.choice(["refuse", "zero"])), drop_invalid=rng.random() < 0.5)  # type: ignore[arg-type]
        try:
            graph, report = load_tables(TableFiles(paths[0], paths[1], options), undirected=True, dedupe=True)
        except ProjectorError:
            # Its words are a sentence and a remedy by its type; any other exception fails the test.
            refused += 1
            continue
        read += 1
        if not is_bent:
            assert graph.columns is not None
            assert report.nodes == tables[0].num_rows
            used = {*(column.name for column in graph.columns.columns), *report.unread_of_nodes}
            used |= {options.id, options.label, *([report.split] if report.split else [])}
            assert used == {*tables[0].column_names}, "every column is used or named"
        assert report.edges - report.unknown_ends - report.self_loops - report.merged == graph.edges
    return read, refused


def test_damaged_tables_are_refused_in_words_and_nothing_is_lost_in_silence(tmp_path: Path) -> None:
    assert sum(sweep(tmp_path, seconds=5, seed=0)) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_minutes_of_damaged_tables(tmp_path: Path) -> None:
    read, refused = sweep(tmp_path, seconds=600, seed=1)
    print(f"{read} read, {refused} refused")
    assert min(read, refused) > 100
