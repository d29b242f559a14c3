"""Tables of ids and edges against a dict and a set, while entries disappear."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projector.graph.external_ids import SLOT_BYTES, NodeIds
from service.predictions.mapped import BLANK_BYTE, EdgeIndex, IdIndex, Places, edge_entries, edge_places, id_places

IDS = st.lists(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20), unique=True, max_size=60
)
PAIRS = st.sets(st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda pair: pair[0] < pair[1]))


def id_index(ids: NodeIds, table: Places) -> IdIndex:
    return IdIndex(ids.utf8.tobytes(), (ids.starts * SLOT_BYTES).data, table.places.data, table.hashing)


@given(IDS, IDS, st.data())
def test_ids_are_found_as_in_a_dict_and_none_that_stays_is_missed_while_others_vanish(
    ids: list[str], others: list[str], data: st.DataObject
) -> None:
    rows, held = {node: row for row, node in enumerate(ids)}, NodeIds.of(ids)
    table = id_places(held)
    assert all(id_index(held, table).find(node) == rows.get(node) for node in [*ids, *others])
    gone = set(data.draw(st.lists(st.sampled_from(ids), max_size=20))) if ids else set()
    # Torn: any bytes of a place may already be blank.
    raw = table.places.view(np.uint8).reshape(-1, 4)
    for node in gone:
        [at] = np.flatnonzero(table.places == rows[node])
        torn = data.draw(st.lists(st.integers(0, 3), min_size=1, unique=True))
        raw[at, torn] = BLANK_BYTE
        index = id_index(held, table)
        assert all(index.find(other) == rows[other] for other in ids if other not in gone)
        raw[at] = BLANK_BYTE
    kept = {node: row for node, row in rows.items() if node not in gone}
    assert all(id_index(held, table).find(node) == kept.get(node) for node in [*ids, *others])


@given(PAIRS, PAIRS, st.data())
def test_edges_are_found_as_in_a_set_and_none_that_stays_is_missed_while_others_vanish(
    edges: set[tuple[int, int]], others: set[tuple[int, int]], data: st.DataObject
) -> None:
    table = edge_places(edge_entries(np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)))
    asked = [*edges, *others, *((second, first) for first, second in edges), (3, 3)]

    def found() -> dict[tuple[int, int], bool]:
        index = EdgeIndex(np.asarray(table.places, dtype=np.int64), table.hashing)
        return dict(zip(asked, index.contain(np.array(asked)).tolist(), strict=True))

    assert found() == {pair: tuple(sorted(pair)) in edges for pair in asked}
    gone = set(data.draw(st.lists(st.sampled_from(sorted(edges)), max_size=10))) if edges else set()
    raw = table.places.view(np.uint8).reshape(-1, 8)
    for pair in gone:
        [at] = np.flatnonzero(table.places == edge_entries(np.array([pair]))[0])
        torn = data.draw(st.lists(st.integers(0, 7), min_size=1, unique=True))
        raw[at, torn] = BLANK_BYTE
        answers = found()
        assert all(answers[other] for other in edges if other not in gone)
        raw[at] = BLANK_BYTE
    left = edges - gone
    assert found() == {pair: tuple(sorted(pair)) in left for pair in asked}


@settings(max_examples=20)
@given(st.integers(0, 400))
def test_a_place_that_was_blanked_looks_like_many_that_were_blank_from_the_start(entries: int) -> None:
    table = id_places(NodeIds.of(f"node {row}" for row in range(entries)))
    blank = np.int32(np.frombuffer(bytes([BLANK_BYTE]) * 4, dtype=np.int32)[0])
    live, decoys = int((table.places >= 0).sum()), int((table.places == blank).sum())
    free = len(table.places) - live
    assert live == entries
    # A fair coin for each free place, with a failure probability of 1e-9 by Hoeffding's bound.
    assert abs(decoys - free / 2) <= (free * np.log(2e9) / 2) ** 0.5 + 1


@pytest.mark.parametrize("name", ["u{:06}", "{}", "user-{}@example.org", "{:x}", "https://example.org/{}/profile"])
def test_many_ids_are_found_by_few_steps_each(name: str) -> None:
    """Numbered ids, whose hashes are the least random."""
    ids = NodeIds.of(map(name.format, range(30_000)))
    table = id_places(ids)
    occupied = table.places != -1
    ends = np.flatnonzero(~np.append(occupied, False))
    longest = int(np.diff(np.append(-1, ends)).max())
    assert id_index(ids, table).find(name.format(29_999)) == 29_999
    # Chains of places in a table with 5 in 6 occupied: see Knuth, volume 3, section 6.4.
    assert longest < 1_000
