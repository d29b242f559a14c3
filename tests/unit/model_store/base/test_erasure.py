"""The promise of erasure: all of the data is removed, and nothing else."""

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_store.base.arrays import BaseArrays
from model_store.base.erasure import Erasure
from model_store.base.index import Index
from model_store.store import Store
from tests.support.models.failing_disk import FailingDisk
from tests.support.models.store_models import assert_same, random_ids, small_model, without
from tests.support.models.store_states import everything_in, rows, some_edges

pytestmark = pytest.mark.usefixtures("quick_disk")
LAYOUTS = pytest.mark.parametrize("layout", ["dense", "csr"])


# What is erased and what stays.


@LAYOUTS
@pytest.mark.parametrize("chunk_rows", [1, 5, 512])
def test_an_erased_node_is_gone_and_the_rest_is_as_it_was(tmp_path: Path, layout: str, chunk_rows: int) -> None:
    model = small_model(layout)
    store = model.create(tmp_path / "m", chunk_rows=chunk_rows)
    erasure = Erasure(nodes=rows(22, 3, 11, 3))
    store.erase(erasure, fencing=1)
    assert_same(Store.open(tmp_path / "m").load_base(), without(model.base, erasure))
    assert not store.is_erasing()


@LAYOUTS
def test_erased_features_take_their_coefficients_along_and_nothing_else(tmp_path: Path, layout: str) -> None:
    model = small_model(layout)
    store = model.create(tmp_path / "m")
    store.erase(Erasure(feature_rows=rows(0, 9)), fencing=1)
    base = store.load_base()
    assert_same(base, without(model.base, Erasure(feature_rows=rows(0, 9))))
    assert base.graph.node_ids == model.graph.node_ids
    assert (base.graph.adjacency != model.graph.adjacency).nnz == 0
    assert np.array_equal(base.graph.labels, model.graph.labels)
    assert np.array_equal(base.graph.train_mask, model.graph.train_mask)
    assert np.array_equal(base.label_beta, model.label_beta)


@LAYOUTS
@pytest.mark.parametrize("chunk_rows", [1, 5, 512])
def test_each_slot_of_the_features_tells_whose_values_it_holds(tmp_path: Path, layout: str, chunk_rows: int) -> None:
    model = small_model(layout)
    store = model.create(tmp_path / "m", chunk_rows=chunk_rows)
    store.erase(Erasure(feature_rows=rows(0, 9)), fencing=1)
    features = store.load_base().graph.features
    [found] = store.feature_slots()
    row_of_slot = found.row_of_slot
    slots = np.frombuffer(found.file.read_bytes(), dtype=features.dtype).reshape(row_of_slot.size, -1)
    assert (found.offset, found.slot_bytes) == (0, slots[0].nbytes)
    if isinstance(features, np.ndarray):
        assert np.array_equal(slots, features[row_of_slot])
        return
    assert not slots[row_of_slot < 0].any()
    for row in range(model.graph.nodes):
        held = features.data[features.indptr[row] : features.indptr[row + 1]]
        assert np.array_equal(np.sort(slots[row_of_slot == row, 0]), np.sort(held))


def test_an_erased_edge_is_gone_in_both_directions(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    (left, right), other = some_edges(model, 2)
    store.erase(Erasure(edges=np.array([[right, left], other])), fencing=1)
    base = store.load_base()
    assert base.graph.edges == model.graph.edges - 2
    assert base.graph.adjacency[[left, right], [right, left]].tolist() == [0, 0]
    assert_same(base, without(model.base, Erasure(edges=np.array([[left, right], other]))))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data(), layout=st.sampled_from(["dense", "csr"]), chunk_rows=st.integers(1, 12), seed=st.integers(0, 99))
def test_any_series_of_erasures_leaves_what_no_one_asked_to_forget(
    tmp_path: Path, data: st.DataObject, layout: str, chunk_rows: int, seed: int
) -> None:
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    model = small_model(layout, "float64", nodes=13, edges=30, seed=seed)
    store = model.create(tmp_path / "m", chunk_rows=chunk_rows)
    expected = model.base
    node = st.integers(0, 12)
    for fencing in range(1, 4):
        erasure = Erasure(
            nodes=rows(*data.draw(st.lists(node, max_size=4))),
            feature_rows=rows(*data.draw(st.lists(node, max_size=3))),
            edges=rows(*data.draw(st.lists(node, max_size=6).map(lambda ends: ends[: len(ends) // 2 * 2]))).reshape(
                -1, 2
            ),
        )
        store.erase(erasure, fencing=fencing)
        expected = without(expected, erasure)
        assert_same(store.load_base(), expected)


@pytest.mark.parametrize(
    "erasure", [Erasure(nodes=rows(23)), Erasure(feature_rows=rows(-1)), Erasure(edges=rows(0, 23).reshape(1, 2))]
)
def test_rows_that_do_not_exist_are_refused_and_nothing_is_erased(tmp_path: Path, erasure: Erasure) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    with pytest.raises(IndexError, match="rows to erase"):
        store.erase(erasure, fencing=1)
    assert_same(store.load_base(), model.base)


# No byte is left.


@LAYOUTS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_byte_of_an_erased_node_is_left_in_any_file(tmp_path: Path, layout: str, dtype: str) -> None:
    random = np.random.default_rng(1)
    ids = tuple(f"{name}-é\N{SNOWMAN}" for name in random_ids(random, 40))
    model = small_model(layout, dtype, nodes=40, edges=90, node_ids=ids)
    store = model.create(tmp_path / "m")
    gone = rows(0, 7, 8, 39)
    personal = {ids[row].encode() for row in gone}
    for row in gone:
        personal |= {model.beta[block, row].tobytes() for block in range(2)}
        personal |= {model.label_beta[0, row].tobytes()}
        dense = model.graph.features[[row]]
        values = dense.ravel() if isinstance(dense, np.ndarray) else dense.data
        for value in values:
            personal |= {struct.pack("<f", value), struct.pack("<d", value)}
        if layout == "dense":
            personal |= {values.tobytes()}
    before = everything_in(tmp_path / "m")
    stored = [piece for piece in personal if piece in before]
    assert len(stored) >= 4 * (1 + 2 + 1 + 1)
    store.erase(Erasure(nodes=gone), fencing=1)
    after = everything_in(tmp_path / "m")
    assert [piece for piece in personal if piece in after] == []
    kept = ids[1].encode()
    assert kept in after


@LAYOUTS
def test_no_byte_of_erased_features_is_left_in_any_file_and_all_else_of_the_node_is(
    tmp_path: Path, layout: str
) -> None:
    model = small_model(layout, "float64", nodes=40, edges=90)
    store = model.create(tmp_path / "m")
    gone, personal, kept = rows(0, 7, 39), set(), set()
    for row in gone:
        personal |= {model.beta[block, row].tobytes() for block in range(2)}
        dense = model.graph.features[[row]]
        personal |= {value.tobytes() for value in (dense.ravel() if isinstance(dense, np.ndarray) else dense.data)}
        kept |= {model.graph.node_ids[row].encode(), model.label_beta[0, row].tobytes()}
    before = everything_in(tmp_path / "m")
    assert all(piece in before for piece in personal | kept)
    store.erase(Erasure(feature_rows=gone), fencing=1)
    after = everything_in(tmp_path / "m")
    assert [piece for piece in personal if piece in after] == []
    assert all(piece in after for piece in kept)


def test_no_slot_of_the_adjacency_joins_the_ends_of_an_erased_edge(tmp_path: Path) -> None:
    model = small_model(nodes=40, edges=90)
    store = model.create(tmp_path / "m")
    gone = some_edges(model, 4)
    store.erase(Erasure(edges=gone), fencing=1)
    base = BaseArrays(tmp_path / "m" / "base", Index.latest(tmp_path / "m" / "base"))
    table = base.index.tables["adjacency"]
    local, columns = base.read_all("adjacency", "rows")[:, 0], base.read_all("adjacency", "columns")[:, 0]
    stored = np.repeat(np.arange(table.chunks) * base.index.chunk_rows, np.diff(table.starts)) + local
    left = {frozenset(pair) for pair in zip(stored.tolist(), columns.tolist(), strict=True)}
    assert not left & {frozenset(pair) for pair in gone.tolist()}
    assert (columns == -1).sum() == 2 * len({frozenset(pair) for pair in gone.tolist()})


def test_no_slot_of_the_adjacency_names_an_erased_node_or_tells_whose_it_was(tmp_path: Path) -> None:
    model = small_model(nodes=40, edges=90)
    store = model.create(tmp_path / "m")
    gone = rows(2, 17)
    store.erase(Erasure(nodes=gone), fencing=1)
    base = BaseArrays(tmp_path / "m" / "base", Index.latest(tmp_path / "m" / "base"))
    table = base.index.tables["adjacency"]
    local, columns = base.read_all("adjacency", "rows")[:, 0], base.read_all("adjacency", "columns")[:, 0]
    stored_rows = np.repeat(np.arange(table.chunks) * base.index.chunk_rows, np.diff(table.starts)) + local
    blank = columns == -1
    assert np.array_equal(blank, local == 0xFFFF)
    assert blank.sum() == model.graph.adjacency.nnz - store.load_base().graph.adjacency.nnz
    assert not np.isin(columns, gone).any()
    assert not np.isin(stored_rows[~blank], gone).any()


def test_edges_lie_in_no_order_that_a_gap_could_betray(tmp_path: Path) -> None:
    model = small_model(nodes=40, edges=90)
    orders = set()
    for name in ("a", "b"):
        model.create(tmp_path / name, chunk_rows=40)
        base = BaseArrays(tmp_path / name / "base", Index.latest(tmp_path / name / "base"))
        orders.add(base.read_all("adjacency", "rows").tobytes())
    assert len(orders) == 2
    assert model.graph.adjacency.tocoo().row.astype("<u2").tobytes() not in orders


def test_no_trace_of_an_erased_edge_is_left_beside_the_arrays(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    store.erase(Erasure(edges=some_edges(model, 3)), fencing=1)
    assert not [path.name for path in (tmp_path / "m" / "base").iterdir() if "erasing" in path.name]
    assert len([path for path in (tmp_path / "m" / "base").iterdir() if path.name.startswith("index")]) == 1


# Cost.


@LAYOUTS
def test_only_the_slots_of_what_is_erased_are_written_and_each_file_is_synced_once(tmp_path: Path, layout: str) -> None:
    model = small_model(layout, nodes=300, edges=600, features=6)
    store = model.create(tmp_path / "m", chunk_rows=10)
    gone = rows(4, 150, 299)
    written = FailingDisk()
    with written.mounted():
        store.erase(Erasure(nodes=gone), fencing=1)
    in_place = sum(size for operation, _, size in written.log if operation == "pwrite")
    degrees = np.diff(model.graph.adjacency.indptr)[gone].sum()
    between = model.graph.adjacency[gone][:, gone].nnz
    adjacency = (2 * degrees - between) * (2 + 4)
    stored_values = model.graph.features[gone]
    assert isinstance(stored_values, np.ndarray) == (layout == "dense")
    features = stored_values.size * 4 if isinstance(stored_values, np.ndarray) else stored_values.nnz * (2 + 4 + 4)
    coefficients = 3 * (2 + 1) * 3 * 8
    # The last of them has neither label nor mask.
    assert in_place == 3 * (4 + 32) + 2 * (8 + 1) + coefficients + adjacency + features
    synced = [path for operation, path, _ in written.log if operation == "fsync"]
    files = [path for path in synced if Path(path).name != "base"]
    assert len(files) == len(set(files))
    assert len(synced) - len(files) <= 3
