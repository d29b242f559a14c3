"""Downloads: what a copy holds, that it is of one version, and that its file reveals nothing."""

import csv
import io
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow.parquet
import pytest

from model_store.versions import VersionRef
from service.domain.snapshot import Snapshot
from service.errors import Conflict, MalformedCursor, Unavailable
from service.predictions import downloads
from service.predictions.downloads import Copy, Downloads, Wanted
from service.predictions.encodings import FileFormat, encoded
from service.predictions.reader import Prediction, Reader
from service.predictions.writer import Publisher
from tests.support.service import publications
from tests.support.service.publications import admitted

IDS = ("a", "sixteen bytes ok", 'ålesund, "39"', "user/38 " + "x" * 40, "e")
CLASSES = ("red", "green,er", "blue")


def snapshot(version: int, *dead: int) -> Snapshot:
    rng = np.random.default_rng(version)
    return publications.snapshot(version, rng.dirichlet(np.ones(len(CLASSES)), len(IDS)), (), dead)


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    publisher = Publisher(tmp_path, tmp_path / "share")
    shown = snapshot(1)
    model = publications.published_model(IDS, shown, classes=CLASSES)
    publications.load(publisher, VersionRef(1, 1), model, shown)
    return publisher


@pytest.fixture
def reader(publisher: Publisher, tmp_path: Path) -> Reader:
    return admitted(tmp_path)


@pytest.fixture(params=[downloads._PART_NODES, 2])
def made(request: pytest.FixtureRequest, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Downloads:
    """Downloads of the reader, in one part or in several."""
    monkeypatch.setattr(downloads, "_PART_NODES", request.param)
    return Downloads(reader, tmp_path)


def forget(publisher: Publisher, version: int, *dead: int) -> None:
    shown = snapshot(version, *dead)
    publisher.write(VersionRef(version, 1), shown, publications.version_facts(shown), of=VersionRef(version - 1, 1))
    assert publisher.show(VersionRef(version, 1), 1)


def read(form: FileFormat, copy: Copy) -> list[dict[str, Any]]:
    """Return the rows of a file, with the names and types of the columns in it."""
    data = io.BytesIO(b"".join(encoded(form, copy.facts, copy)))
    match form:
        case FileFormat.PARQUET:
            table = pyarrow.parquet.read_table(data)
            assert table.schema.metadata[b"lethe.model_version"] == str(copy.head.version).encode()
            return list(table.to_pylist())
        case FileFormat.ARROW:
            return polars.read_ipc(data).to_dicts()
        case FileFormat.CSV:
            rows = csv.DictReader(io.StringIO(data.getvalue().decode(), newline=""))
            return [
                {name: value if name in ("node", "label") else float(value) for name, value in row.items()}
                for row in rows
            ]
    lines = [json.loads(line) for line in data.getvalue().splitlines()]
    assert {line.pop("model_version") for line in lines} <= {copy.head.version}
    return [
        {"node": line["node"], "label": line["label"]}
        | {f"probability_{name}": value for name, value in line["probabilities"].items()}
        for line in lines
    ]


@pytest.mark.parametrize("form", FileFormat)
@pytest.mark.parametrize("decimals", [None, 2])
def test_a_file_has_the_prediction_of_every_live_node(
    form: FileFormat, decimals: int | None, made: Downloads, reader: Reader, publisher: Publisher
) -> None:
    forget(publisher, 2, 1, 4)
    with closing(made.copy(Wanted(decimals=decimals))) as copy:
        found = read(form, copy)
    version, predictions, missing = reader.predict_many(IDS, decimals)
    assert (version, missing) == (2, [IDS[1], IDS[4]])
    expected = [one for one in predictions if isinstance(one, Prediction)]
    assert found == [
        {"node": one.node, "label": one.label}
        | {f"probability_{name}": value for name, value in one.probabilities.items()}
        for one in expected
    ]


def test_pages_together_are_the_file_and_a_cursor_of_another_version_is_refused(
    made: Downloads, publisher: Publisher
) -> None:
    forget(publisher, 2, 2)
    seen, wanted = list[str](), Wanted(limit=3)
    while True:
        with closing(made.copy(wanted)) as copy:
            page = [row["node"] for row in read(FileFormat.NDJSON, copy)]
            assert (copy.nodes, made.rows(wanted)[1].size) == (len(page), len(page))
            seen += page
        if copy.next_cursor is None:
            break
        wanted = replace(wanted, cursor=copy.next_cursor)
    assert (seen, wanted.cursor) == ([IDS[0], IDS[1], IDS[3], IDS[4]], "2.3")
    forget(publisher, 3, 2)
    with pytest.raises(Conflict, match="version 2 of the model; version 3"):
        made.copy(wanted)
    for cursor in ("", "3", "3.", ".3", "3.-1", "3.1.1", "x.y", "3.²"):
        with pytest.raises(MalformedCursor):
            made.copy(Wanted(cursor=cursor))
    with closing(made.copy(Wanted(cursor="3.99"))) as copy:
        assert (copy.nodes, read(FileFormat.CSV, copy)) == (0, [])


def test_a_copy_is_not_of_a_version_that_was_replaced_while_it_was_made(
    made: Downloads, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, versions = list[Copy](), iter(range(2, 100))
    fill = Copy._fill

    def replaced(copy: Copy, *given: Any) -> None:
        fill(copy, *given)
        opened.append(copy)
        if len(opened) <= most:
            forget(publisher, version := next(versions), version % len(IDS))
            # As step 9 does, while the reader still holds the older version.
            publisher.remove_older(VersionRef(version, 1))

    monkeypatch.setattr(Copy, "_fill", replaced)
    most = 2
    with closing(made.copy(Wanted())) as copy:
        assert copy.head.version == 3
        assert len(read(FileFormat.NDJSON, copy)) == len(IDS) - 1
    opened.clear()
    most = 100
    with pytest.raises(Unavailable, match="changed 5 times"):
        made.copy(Wanted())
    assert all(one._file.closed for one in opened)


def test_the_file_has_no_name_and_none_of_its_bytes_are_readable(made: Downloads, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    with closing(made.copy(Wanted())) as copy:
        assert set(tmp_path.rglob("*")) == before
        path = Path(f"/proc/self/fd/{copy._file.fileno()}")
        assert path.stat().st_nlink == 0
        held = path.read_bytes()
        assert len(held) > 8 * len(IDS) * len(CLASSES)
        assert not [node for node in IDS if len(node) > 8 and node.encode() in held]
        assert not [row for row in snapshot(1).probabilities if row.tobytes()[:8] in held]


def test_no_more_downloads_run_at_once_than_there_are_places(made: Downloads) -> None:
    with made.place(), made.place(), pytest.raises(Unavailable, match="2 downloads"), made.place():
        pass
    with made.place():
        pass


def test_a_disk_without_room_is_reported(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be copied"):
        Downloads(reader, tmp_path / "missing").copy(Wanted())
