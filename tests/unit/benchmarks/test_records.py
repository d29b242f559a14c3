"""Results files: sorted lines, replaced by key, whole at every moment."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.records import RecordError, put, read, read_all

pytestmark = pytest.mark.ci

KEY = ("method", "seed")


def record(method: str | None, seed: int, figure: float = 0.0) -> dict[str, object]:
    return {"method": method, "seed": seed, "figure": figure}


def test_lines_are_sorted_by_key_and_a_record_replaces_that_of_its_key(tmp_path: Path) -> None:
    file = tmp_path / "cora" / "closeness.ndjson"
    for each in (record("b", 2), record("b", 10), record(None, 3), record("a", 7), record("b", 2, 0.1)):
        put(file, each, KEY)
    expected = [record(None, 3), record("a", 7), record("b", 2, 0.1), record("b", 10)]
    assert read(file) == expected
    assert [json.loads(line) for line in file.read_text().splitlines()] == expected
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [file.name]
    other = tmp_path / "amazon_photo" / "closeness.ndjson"
    put(other, record("z", 0), KEY)
    assert read_all([file, other]) == [record("z", 0), *expected]


def test_writers_at_the_same_time_lose_no_record(tmp_path: Path) -> None:
    file = tmp_path / "closeness.ndjson"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: put(file, record("a", seed), KEY), range(40)))
    assert [each["seed"] for each in read(file)] == list(range(40))


@pytest.mark.parametrize("line", ["{", "[1]"])
def test_a_damaged_file_is_named_and_never_overwritten(tmp_path: Path, line: str) -> None:
    file = tmp_path / "closeness.ndjson"
    put(file, record("a", 0), KEY)
    file.write_text(damaged := file.read_text() + line)
    with pytest.raises(RecordError, match="line 2 is not a JSON object"):
        put(file, record("a", 1), KEY)
    assert file.read_text() == damaged
