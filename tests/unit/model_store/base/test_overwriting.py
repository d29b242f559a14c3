"""Blanking slots of a file in place."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model_store.disk.durable import at_once, durable_changes
from model_store.errors import StoreDamaged


def overwrite(path: Path, slots: NDArray[np.int64], *, slot_bytes: int, fill: int) -> None:
    with durable_changes() as changes:
        changes.overwrite(path, slots, slot_bytes=slot_bytes, fill=fill)


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


@pytest.mark.parametrize(("slot_bytes", "step"), [(4, 2), (3, 1), (5000, 3)])
def test_more_slots_than_one_call_takes_and_slots_longer_than_a_page_are_filled(
    tmp_path: Path, slot_bytes: int, step: int
) -> None:
    path = tmp_path / "slots"
    path.write_bytes(b"x" * (6000 * slot_bytes))
    slots = np.random.default_rng(0).permutation(np.arange(0, 6000, step))
    overwrite(path, slots, slot_bytes=slot_bytes, fill=255)
    wanted = np.full((6000, slot_bytes), ord("x"), dtype=np.uint8)
    wanted[slots] = 255
    assert path.read_bytes() == wanted.tobytes()


def test_a_page_that_the_file_system_does_not_give_is_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slots"
    path.write_bytes(b"x" * 3 * 4096)
    really = os.preadv

    def while_the_page_is_gone(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        os.truncate(path, 4096)
        return really(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", while_the_page_is_gone)
    for slots in ([0, 2], [2]):
        path.write_bytes(b"x" * 3 * 4096)
        with pytest.raises(OSError, match="no space left"):
            overwrite(path, np.array(slots), slot_bytes=4096, fill=0)


def test_a_file_that_is_too_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "slots"
    path.write_bytes(bytes(30))
    with pytest.raises(StoreDamaged, match="slots is too short"):
        overwrite(path, np.array([10], dtype=np.int64), slot_bytes=3, fill=0)
    assert path.read_bytes() == bytes(30)


def test_an_error_of_one_that_waits_is_raised_once_all_have_ended() -> None:
    raised = threading.Event()
    before: list[bool] = []

    def fail() -> None:
        raise OSError("a disk that fails")

    with pytest.raises(OSError, match="a disk that fails"):
        at_once([fail, lambda: before.append(not raised.wait(0.1))])
    raised.set()
    assert before == [True]
