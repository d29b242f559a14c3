"""External ids in arrays against a list and a dict of strings, also with equal hashes and while ids are forgotten."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from projector.graph.external_ids import SLOT_BYTES, NodeIds

#: Zero slots, one, one to the last byte, and several; also with trailing zeros and halves of surrogates.
NAMES = st.text(max_size=6) | st.text("ab\0", max_size=40) | st.sampled_from(["a" * 16, "a" * 32, "é" * 8, "\ud800"])
LISTS = st.lists(NAMES, max_size=30)


@pytest.fixture
def two_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    def hashes(ids: NodeIds, rows: NDArray[np.int64], key: np.uint64) -> NDArray[np.uint64]:
        return ids.lengths[rows] % key % np.uint64(2)

    monkeypatch.setattr(NodeIds, "_hashes", hashes)


@given(LISTS)
def test_the_names_are_those_given_row_by_row(names: list[str]) -> None:
    ids = NodeIds.of(iter(names))
    assert list(ids) == [ids[row] for row in range(len(ids))] == names
    assert ids[1:-1] == tuple(names[1:-1])
    assert ids == names == ids
    assert ids != [*names, "a"]
    assert names == [] or ids != [*names[:-1], names[-1] + "a"]
    assert ids.named.tolist() == [name != "" for name in names]
    assert ids.are_text() == all("\ud800" not in name for name in names)
    order = np.arange(len(names))[::-2]
    assert ids.take(order) == [names[row] for row in order]
    with pytest.raises(IndexError):
        ids[len(names)]


def test_ids_are_found_as_in_a_dict_until_they_are_forgotten() -> None:
    random = np.random.default_rng(0)
    pool = ["", "\0", *("".join(random.choice(list("abé\0"), size)) for size in random.integers(0, 40, 400))]
    names = list(dict.fromkeys(pool[:300]))
    rows, ids = {name: row for row, name in enumerate(names) if name}, NodeIds.of(names)
    assert ids.rows_of(pool).tolist() == [rows.get(name, -1) for name in pool]
    assert ids.rows_of([]).shape == (0,)
    assert [name in ids for name in pool[250:]] == [name in rows for name in pool[250:]]
    assert list(ids.repeated()) == []
    for gone in np.array_split(random.permutation(len(names)), 9):
        ids.forget(gone)
        for row in gone.tolist():
            rows.pop(names[row], None)
        assert ids.rows_of(pool).tolist() == [rows.get(name, -1) for name in pool]
        assert not ids.utf8[np.repeat(~ids.named, np.diff(ids.starts))].any()
    assert list(ids) == [""] * len(names)


@pytest.mark.usefixtures("two_hashes")
def test_ids_are_found_as_in_a_dict_when_others_have_their_hash() -> None:
    test_ids_are_found_as_in_a_dict_until_they_are_forgotten()


def test_of_a_forgotten_id_nothing_is_left_where_ids_are_looked_up() -> None:
    ids = NodeIds.of(map(str, range(500)))
    first = ids._by_hash()
    hashes, rows = (part.copy() for part in first)
    order = np.random.default_rng(1).permutation(500)
    ids.forget(order[:200])
    second = ids._by_hash()
    ids.forget(order[200:450])
    kept = np.isin(rows, order[450:])
    assert [part.tolist() for part in ids._by_hash()] == [hashes[kept].tolist(), rows[kept].tolist()]
    assert not any(part.any() for part in (*first, *second))


def test_an_id_is_found_while_another_thread_forgets_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, forgotten = NodeIds.of(map(str, range(500))), iter((0, 1, 2))
    found = NodeIds._found

    def interrupted(*given: Any) -> NDArray[np.int64]:
        for part in forgotten:
            ids.forget(np.arange(part, 480, 3))
            break
        return found(*given)

    monkeypatch.setattr(NodeIds, "_found", interrupted)
    assert ids.rows_of(["495", "470", "none"]).tolist() == [495, -1, -1]


@given(LISTS)
def test_a_copy_without_some_leaves_the_others_and_what_it_is_a_copy_of(names: list[str]) -> None:
    ids = NodeIds.of(names)
    gone = np.arange(0, len(names), 2)
    assert ids.without(gone) == [name if row % 2 else "" for row, name in enumerate(names)]
    assert ids == names


@pytest.mark.usefixtures("two_hashes")
def test_the_repeated_are_distinguished_from_those_of_the_same_hash() -> None:
    names = ["a", "c", "b", "a", "d", "b", "e", "b"]
    assert sorted(NodeIds.of(names).repeated()) == ["a", "b"]


def test_bytes_that_are_no_text_are_detected_also_where_the_next_id_would_complete_them() -> None:
    halves = ("a" * (SLOT_BYTES - 1)).encode() + "é".encode() + b"b"
    raw = np.frombuffer(halves.ljust(2 * SLOT_BYTES, b"\0"), dtype=np.uint8).reshape(2, SLOT_BYTES)
    assert not NodeIds(raw, np.ones(2, dtype=np.uint32), np.array([16, 2], dtype=np.uint32)).are_text()
    assert NodeIds(raw, np.array([2], dtype=np.uint32), np.array([18], dtype=np.uint32)).are_text()
