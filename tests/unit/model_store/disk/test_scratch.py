"""Rows kept in a temporary file."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.disk.scratch import ScratchRows, scratch_rows
from projector.errors import DeviceError


@given(rows=st.integers(0, 7), widths=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_rows_read_are_the_columns_written(rows: int, widths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, sum(widths)))
    starts = np.concatenate([[0], np.cumsum(widths)])
    with scratch_rows(*matrix.shape) as scratch:
        for part in rng.permutation(len(widths)):
            columns = slice(int(starts[part]), int(starts[part + 1]))
            scratch.write_columns(columns.start, matrix[:, columns])
        order = rng.permutation(np.arange(rows, dtype=np.int64))
        assert np.array_equal(scratch.read(order), matrix[order])


def test_the_file_has_no_name_that_a_crash_could_leave_behind(tmp_path: Path) -> None:
    with scratch_rows(3, 2, tmp_path) as scratch:
        scratch.write_columns(0, np.ones((3, 2)))
        assert list(tmp_path.iterdir()) == []


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_file_is_closed_when_the_work_fails(tmp_path: Path) -> None:
    before = open_descriptors()

    def work() -> None:
        with scratch_rows(3, 2, tmp_path):
            assert open_descriptors() == before + 1
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert open_descriptors() == before


def test_errors_of_the_work_itself_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(BrokenPipeError), scratch_rows(3, 2, tmp_path):
        raise BrokenPipeError


def test_a_disk_too_small_is_refused_with_the_bytes_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with (
        pytest.raises(DeviceError, match=r"8,000,000 bytes.*No space left") as refused,
        scratch_rows(1000, 1000, tmp_path),
    ):
        pytest.fail("the work started")
    assert "--batch-size 0" in refused.value.remedy


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="No such file"), scratch_rows(1, 1, tmp_path / "missing"):
        pytest.fail("the work started")


def test_a_file_shorter_than_it_should_be_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "rows").open("w+b") as file:
        scratch = ScratchRows(file.fileno(), 2, 2, tmp_path)
        file.truncate(16)
        with pytest.raises(DeviceError, match="0 of 16 bytes"):
            scratch.read(np.array([1]))
