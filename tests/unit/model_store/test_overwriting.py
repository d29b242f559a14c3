"""Blanking slots of a file in place."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import StoreDamaged
from model_store.files import overwrite


@given(
    st.integers(1, 9),
    st.sampled_from([0, 255]),
    st.lists(st.integers(0, 99), unique=True),
    st.binary(min_size=900, max_size=900),
)
def test_the_named_slots_are_filled_and_no_other_byte_changes(
    tmp_path_factory: pytest.TempPathFactory, slot_bytes: int, fill: int, slots: list[int], content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "slots"
    path.write_bytes(content[: 100 * slot_bytes])
    overwrite(path, np.array(sorted(slots), dtype=np.int64), slot_bytes=slot_bytes, fill=fill)
    wanted = bytearray(content[: 100 * slot_bytes])
    for slot in slots:
        wanted[slot * slot_bytes : (slot + 1) * slot_bytes] = bytes([fill]) * slot_bytes
    assert path.read_bytes() == bytes(wanted)


def test_a_file_that_is_too_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    path.write_bytes(bytes(30))
    with pytest.raises(StoreDamaged, match="slots is too short"):
        overwrite(path, np.array([10], dtype=np.int64), slot_bytes=3, fill=0)
    assert path.read_bytes() == bytes(30)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreDamaged, match="slots is missing"):
        overwrite(tmp_path / "slots", np.array([1], dtype=np.int64), slot_bytes=3, fill=0)
