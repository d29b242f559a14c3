"""The search that proves an erasure: it finds existing data anywhere, without false alarms."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from service.cli import byte_search
from service.cli.byte_search import Pattern, Search, files_below, patterns_of_ids, patterns_of_rows

ID = "3f1c9a7be2d84d0f9a6b1c2d3e4f5a6b"


@pytest.mark.parametrize("offset", [0, 1, 15, 16, 17, 31, 40, 63, 64 - len(ID)])
def test_a_pattern_is_found_once_at_any_offset_also_across_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    monkeypatch.setattr(byte_search, "_BLOCK", 16)
    file = tmp_path / "file"
    file.write_bytes(b"x" * offset + ID.encode() + b"y" * 40)
    search = Search([Pattern(ID.encode(), "id"), Pattern(b"absent from it", "other"), Pattern(b"xxxxyyyy", "third")])
    assert [(one.path, one.offset, one.what) for one in search.file(file)] == [(file, offset, "id")]


def test_random_patterns_are_found_as_pythons_own_search_finds_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    # Few different bytes, so that heads collide and patterns overlap.
    data = rng.integers(0, 3, size=50_000, dtype=np.uint8).tobytes()
    patterns = [data[start : start + size] for start, size in rng.integers((0, 8), (49_000, 14), size=(40, 2))]
    patterns += [rng.integers(0, 3, size=12, dtype=np.uint8).tobytes() for _ in range(20)]
    file = tmp_path / "file"
    file.write_bytes(data)
    found = {(one.offset, one.what) for one in Search([Pattern(one, one.hex()) for one in patterns]).file(file)}
    expected = {
        (place, one.hex())
        for one in patterns
        for place in range(len(data) - len(one) + 1)
        if data.startswith(one, place)
    }
    assert found == expected


@pytest.mark.parametrize(
    "written",
    [
        ID.encode(),
        ID.upper().encode(),
        ID.encode("utf-16-le"),
        bytes.fromhex(ID),
    ],
)
def test_an_id_is_found_in_every_encoding(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "file").write_bytes(b"\0\1" + written)
    [finding] = Search(patterns_of_ids(["something else", ID]).patterns).file(tmp_path / "file")
    assert (finding.offset, finding.what.startswith("id on line 2")) == (2, True)
    assert ID not in finding.what


def test_an_id_that_is_no_ascii_is_found_in_json_and_in_a_url(tmp_path: Path) -> None:
    search = Search(patterns_of_ids(["ålesund/39 öst"]).patterns)
    for written in (b'"\\u00e5lesund/39 \\u00f6st"', b"/predict/%C3%A5lesund%2F39%20%C3%B6st HTTP"):
        (tmp_path / "file").write_bytes(written)
        assert list(search.file(tmp_path / "file"))


def test_ids_too_short_to_distinguish_from_chance_are_counted() -> None:
    made = patterns_of_ids(["12", ID, "1234567"])
    assert made.indistinct == 2
    assert all("line 2" in one.what or "UTF-16" in one.what or "URL" in one.what for one in made.patterns)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_a_part_of_a_row_is_found_in_either_precision(tmp_path: Path, dtype: str) -> None:
    rows = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    file = tmp_path / "file"
    # The first 20 values of the second row alone: the rest was overwritten.
    file.write_bytes(b"abc" + rows[1, :20].astype(dtype).tobytes())
    found = list(Search(patterns_of_rows(rows).patterns).file(file))
    assert found
    assert {one.what for one in found} == {f"features of row 1 as {np.dtype(dtype).name}"}


def test_a_sparse_row_is_found_by_its_columns_and_by_its_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    columns = np.sort(rng.choice(1000, size=20, replace=False))
    values = rng.standard_normal(20).astype(np.float32)
    row = sp.csr_array((values, (np.zeros(20, dtype=int), columns)), shape=(1, 1000))
    search = Search(patterns_of_rows(row).patterns)
    for written in (columns.astype("<i4"), columns.astype("<i8"), values, values.astype("<f8")):
        (tmp_path / "file").write_bytes(written.tobytes())
        assert list(search.file(tmp_path / "file"))


def test_rows_of_zeros_and_ones_are_counted_and_not_searched_for() -> None:
    rows = np.zeros((2, 64), dtype=np.float32)
    rows[0, :7] = 1.0
    made = patterns_of_rows(rows)
    assert (made.patterns, made.indistinct) == ((), 2)


def test_every_file_is_searched_once_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a" / ".hidden").mkdir(parents=True)
    (tmp_path / "a" / ".hidden" / "file").write_text("x")
    (tmp_path / "a" / "ids").write_text("x")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / ".hidden" / "file")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    files = list(files_below([tmp_path / "a", tmp_path / "a" / ".hidden"], but=[tmp_path / "a" / "ids"]))
    assert files == [tmp_path / "a" / ".hidden" / "file"]
