"""What erasing promises: all of it goes, nothing else does, and no crash or second writer changes that."""

import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from failing_disk import FailingDisk, Loss, stops
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import SmallModel, assert_same, difference, random_ids, small_model, without

from model_store import base_arrays
from model_store.base_arrays import BaseArrays
from model_store.base_index import Index
from model_store.base_store import Base
from model_store.erasure import Erasure
from model_store.errors import ModelStoreError, StoreDamaged, StoreForeign
from model_store.store import Store
from model_store.versions import StoreConflict

pytestmark = pytest.mark.usefixtures("quick_disk")
LAYOUTS = pytest.mark.parametrize("layout", ["dense", "csr"])


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def everything_in(path: Path) -> bytes:
    """All bytes of all files of a store, and their names."""
    return b"\0\0".join(file.name.encode() + file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())


def some_edges(model: SmallModel, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    stored = model.graph.adjacency.tocoo()
    return np.stack([stored.row, stored.col], axis=1)[:: stored.nnz // count][:count].astype(np.int64)


# What goes and what stays.


@LAYOUTS
@pytest.mark.parametrize("chunk_rows", [1, 5, 512])
def test_an_erased_node_is_gone_and_the_rest_is_as_it_was(tmp_path: Path, layout: str, chunk_rows: int) -> None:
    model = small_model(layout)
    store = model.create(tmp_path / "m", chunk_rows=chunk_rows)
    erasure = Erasure(nodes=rows(22, 3, 11, 3))
    store.erase(erasure, fencing=1)
    assert_same(Store.open(tmp_path / "m").load_base(), without(model.base, erasure))
    assert store.pending_erasure() is None


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


def test_an_erased_edge_is_gone_in_both_directions(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    (left, right), other = some_edges(model, 2)
    store.erase(Erasure(edges=np.array([[right, left], other])), fencing=1)
    base = store.load_base()
    assert base.graph.edges == model.graph.edges - 2
    assert base.graph.adjacency[[left, right], [right, left]].tolist() == [0, 0]
    assert_same(base, without(model.base, Erasure(edges=np.array([[left, right], other]))))


def test_an_edge_that_does_not_exist_changes_nothing(tmp_path: Path) -> None:
    model = small_model(edges=0)
    store = model.create(tmp_path / "m")
    store.erase(Erasure(edges=np.array([[1, 2]])), fencing=1)
    assert_same(store.load_base(), model.base)


@LAYOUTS
def test_everything_can_be_erased(tmp_path: Path, layout: str) -> None:
    model = small_model(layout)
    store = model.create(tmp_path / "m")
    store.erase(Erasure(nodes=np.arange(23)), fencing=1)
    base = store.load_base()
    assert base.graph.adjacency.nnz == 0
    assert not base.beta.any()
    assert not base.label_beta.any()
    assert not base.public.any()
    assert not (base.graph.features != 0).any() if layout == "dense" else base.graph.features.nnz == 0
    assert set(base.graph.node_ids) == {""}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


# What it costs.


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
    features = stored_values.size * 4 if layout == "dense" else stored_values.nnz * (2 + 4 + 4)
    coefficients = 3 * (2 + 1) * 3 * 8
    assert in_place == 3 * (8 + 1 + 4 + 32) + coefficients + adjacency + features
    synced = [path for operation, path, _ in written.log if operation == "fsync"]
    files = [path for path in synced if Path(path).name != "base"]
    assert len(files) == len(set(files))
    assert len(synced) - len(files) <= 3


def test_an_erasure_repeated_writes_nothing(tmp_path: Path) -> None:
    store = small_model("csr").create(tmp_path / "m")
    erasure = Erasure(nodes=rows(1, 5), feature_rows=rows(7), edges=some_edges(small_model("csr"), 3))
    store.erase(erasure, fencing=1)
    before = everything_in(tmp_path / "m")
    again = FailingDisk()
    with again.mounted():
        store.erase(erasure, fencing=2)
        store.erase(Erasure(), fencing=2)
    assert again.log == []
    assert everything_in(tmp_path / "m") == before


# Crashes.


@pytest.fixture(scope="module", params=["dense", "csr"])
def half_erased(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Base, Path]:
    """A store from which a node and an edge have been erased already; not to be changed."""
    path = tmp_path_factory.mktemp("half") / "m"
    model = small_model(request.param, nodes=11, features=3, edges=12, seed=3)
    store = model.create(path, chunk_rows=4)
    first = Erasure(nodes=rows(6), edges=some_edges(model, 1))
    store.erase(first, fencing=1)
    return without(model.base, first), path


SECOND = Erasure(nodes=rows(2, 9), feature_rows=rows(4), edges=np.array([[0, 1]]))


def copied(original: Path, tmp_path: Path) -> Path:
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    shutil.copytree(original, tmp_path / "m", copy_function=shutil.copyfile)
    return tmp_path / "m"


def names_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.rglob("*"))


def erases(path: Path, erasure: Erasure = SECOND, fencing: int = 2) -> Callable[[], None]:
    return lambda: Store.open(path).erase(erasure, fencing=fencing)


def all_stops(
    action: Callable[[Path], Callable[[], None]], original: Path, tmp_path: Path, loss: Loss
) -> Iterator[tuple[Path, FailingDisk]]:
    """For each change that `action` makes to files: a copy of the store on which it was stopped there.

    On the last one it was not stopped, and what was not synced by then is lost.
    """
    random = np.random.default_rng(0)
    for stop_at in range(1000):
        path = copied(original, tmp_path)
        disk = FailingDisk(stop_at, loss)
        stopped = stops(action(path), disk)
        disk.lose(random)
        yield path, disk
        if not stopped:
            assert stop_at > 20
            return
    pytest.fail("the action never ended")


@pytest.mark.parametrize("loss", [Loss.TORN, Loss.ALL, pytest.param(Loss.SOME, marks=pytest.mark.slow)])
def test_a_crash_anywhere_in_an_erasure_is_no_damage_and_repeating_it_ends_the_same(
    half_erased: tuple[Base, Path], tmp_path: Path, loss: Loss
) -> None:
    before, original = half_erased
    after = without(before, SECOND)
    finished = copied(original, tmp_path / "finished")
    erases(finished)()
    pending = 0
    for path, disk in all_stops(erases, original, tmp_path, loss):
        store = Store.open(path)
        interrupted = store.pending_erasure()
        found = store.load_base()
        if interrupted is None:
            assert difference(found, before) is None or difference(found, after) is None, disk.log
        else:
            pending += 1
            assert sorted(interrupted.nodes) == [2, 9]
            assert difference(found, after) is None, disk.log
        if not disk.stopped:
            assert names_in(path) == names_in(finished)
            assert difference(found, after) is None
        store.erase(SECOND, fencing=2)
        assert_same(Store.open(path).load_base(), after)
        assert store.pending_erasure() is None
        assert everything_in(path / "versions") == everything_in(finished / "versions")
        assert names_in(path) == names_in(finished), disk.log
    assert pending > 10


@pytest.mark.parametrize("loss", [pytest.param(Loss.TORN, marks=pytest.mark.slow), Loss.SOME])
def test_a_crash_while_an_interrupted_erasure_is_resumed_is_no_damage_either(
    half_erased: tuple[Base, Path], tmp_path: Path, loss: Loss
) -> None:
    before, original = half_erased
    interrupted = copied(original, tmp_path / "interrupted")
    disk = FailingDisk(stop_at=12)
    assert stops(erases(interrupted), disk)
    assert Store.open(interrupted).pending_erasure() is not None
    more = Erasure(nodes=rows(10))
    final = without(without(before, SECOND), more)
    for path, _ in all_stops(lambda path: erases(path, more, fencing=3), interrupted, tmp_path, loss):
        Store.open(path).load_base()
        Store.open(path).erase(more, fencing=3)
        assert_same(Store.open(path).load_base(), final)


def test_no_byte_is_left_after_a_crash_and_its_resumption(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    ids = random_ids(random, 20)
    model = small_model(nodes=20, node_ids=ids)
    model.create(tmp_path / "original")
    personal = [ids[4].encode(), model.graph.features[4].tobytes()]
    personal += [model.beta[1, 4].tobytes(), model.label_beta[0, 4].tobytes()]
    erasure = Erasure(nodes=rows(4))
    for path, _ in all_stops(lambda path: erases(path, erasure), tmp_path / "original", tmp_path, Loss.SOME):
        Store.open(path).erase(erasure, fencing=3)
        left = everything_in(path)
        assert not [piece for piece in personal if piece in left]


def interrupted_store(original: Path, tmp_path: Path) -> Path:
    """A store in the middle of overwriting what `SECOND` names."""
    path = copied(original, tmp_path)
    whole = FailingDisk()
    uninterrupted = erases(copied(original, tmp_path / "whole"))
    with whole.mounted():
        uninterrupted()
    overwriting = [place for place, (operation, _, _) in enumerate(whole.log) if operation == "pwrite"]
    assert stops(erases(path), FailingDisk(stop_at=overwriting[len(overwriting) // 2]))
    return path


def refused(action: Callable[[], object]) -> str | None:
    """Why the store refuses to be read, or None when it does not."""
    try:
        action()
    except (StoreDamaged, StoreForeign) as error:
        return error.detail
    return None


def resumed(path: Path, tmp_path: Path) -> Base:
    """The base of a copy of the store after its interrupted erasure was finished."""
    store = Store.open(copied(path, tmp_path / "copy"))
    store.erase(SECOND, fencing=2)
    return store.load_base()


def test_damage_beside_an_open_erasure_is_still_found(half_erased: tuple[Base, Path], tmp_path: Path) -> None:
    _, original = half_erased
    path = interrupted_store(original, tmp_path)
    after = Store.open(path).load_base()
    random = np.random.default_rng(2)
    found = healed = 0
    for file in sorted((path / "base").iterdir()):
        content = file.read_bytes()
        for place in set(random.integers(0, len(content), 15).tolist()):
            altered = bytearray(content)
            altered[place] ^= 0x10
            file.write_bytes(altered)
            refusal = refused(lambda: Store.open(path).load_base())
            if refusal is None:
                healed += 1
                assert_same(Store.open(path).load_base(), after)
            else:
                found += 1
                assert file.name.split("-")[0] in refusal
                assert refused(lambda: resumed(path, tmp_path)) is not None
        file.write_bytes(content)
    assert found > healed > 0
    assert_same(resumed(path, tmp_path), after)


def test_an_erasure_that_was_interrupted_is_finished_before_the_next(
    half_erased: tuple[Base, Path], tmp_path: Path
) -> None:
    before, original = half_erased
    path = interrupted_store(original, tmp_path)
    Store.open(path).erase(Erasure(nodes=rows(10)), fencing=3)
    assert_same(Store.open(path).load_base(), without(without(before, SECOND), Erasure(nodes=rows(10))))
    path = interrupted_store(original, tmp_path)
    store = Store.open(path)
    after = without(before, SECOND)
    rebuilt = replace(after, beta=after.beta * 2, label_beta=after.label_beta * 3)
    store.write_beta(rebuilt.beta, rebuilt.label_beta, version=1, fencing=3)
    assert_same(store.load_base(), rebuilt)


# A second writer.


def test_a_writer_whose_fencing_number_was_overtaken_erases_nothing(tmp_path: Path) -> None:
    store = small_model().create(tmp_path / "m")
    store.erase(Erasure(nodes=rows(1)), fencing=5)
    before = everything_in(tmp_path / "m")
    with pytest.raises(StoreConflict, match="fencing number 5, above this writer's 4"):
        store.erase(Erasure(nodes=rows(2)), fencing=4)
    assert everything_in(tmp_path / "m") == before


def rewrites_beta(path: Path) -> Callable[[], None]:
    store = Store.open(path)

    def rewrite() -> None:
        base = store.load_base()
        store.write_beta(base.beta, base.label_beta, version=1, fencing=2)

    return rewrite


@pytest.mark.parametrize("action", [erases, rewrites_beta])
@pytest.mark.parametrize("rewrites", [False, True])
def test_a_writer_that_goes_on_after_its_successor_took_over_does_no_harm(
    half_erased: tuple[Base, Path], tmp_path: Path, action: Callable[[Path], Callable[[], None]], rewrites: bool
) -> None:
    before, original = half_erased
    later = Erasure(nodes=rows(0, 5))
    expected = without(without(before, SECOND), later)
    for stop_at in range(1000):
        path = copied(original, tmp_path)

        def successor(path: Path = path) -> None:
            store = Store.open(path)
            store.erase(SECOND, fencing=3)
            store.erase(later, fencing=3)
            if rewrites:
                base = store.load_base()
                store.write_beta(base.beta, base.label_beta, version=1, fencing=3)

        disk = FailingDisk(stop_at, at_stop=successor)
        overtaken = action(path)
        try:
            with disk.mounted():
                overtaken()
        except (ModelStoreError, FileNotFoundError):
            assert disk.stop_at is None
        if disk.stop_at is not None:
            assert stop_at > 10
            return
        assert_same(Store.open(path).load_base(), expected)
        Store.open(path).erase(Erasure(nodes=rows(1)), fencing=3)
        assert_same(Store.open(path).load_base(), without(expected, Erasure(nodes=rows(1))))
        assert not [name for name in names_in(path) if name.startswith((".", "erasing"))]
    pytest.fail("the writer never ended")


@pytest.mark.parametrize("read_at", range(9))
def test_an_erasure_in_the_middle_of_a_read_does_not_show(
    half_erased: tuple[Base, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_at: int
) -> None:
    before, original = half_erased
    path = copied(original, tmp_path)
    store = Store.open(path)
    reads = []
    really_read = base_arrays.read_range

    def read_range(*args: Any, **kwargs: Any) -> None:
        reads.append(args)
        if len(reads) == read_at + 1:
            store.erase(SECOND, fencing=2)
        really_read(*args, **kwargs)

    monkeypatch.setattr(base_arrays, "read_range", read_range)
    found = store.load_base()
    assert len(reads) > read_at
    assert difference(found, before) is None or difference(found, without(before, SECOND)) is None


def test_a_reader_beside_an_erasure_sees_the_base_before_or_after_it(
    half_erased: tuple[Base, Path], tmp_path: Path
) -> None:
    before, original = half_erased
    after = without(before, SECOND)
    for stop_at in range(1000):
        path = copied(original, tmp_path)
        seen: list[Base] = []
        disk = FailingDisk(stop_at, at_stop=lambda path=path, seen=seen: seen.append(Store.open(path).load_base()))
        with disk.mounted():
            erases(path)()
        if not seen:
            assert stop_at > 20
            return
        assert difference(seen[0], before) is None or difference(seen[0], after) is None
    pytest.fail("the erasure never ended")
