"""Additions to a stored model are complete, can be erased like other data, and leave nothing of what they replace."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base import span_chunks
from model_store.base.arrays import BaseArrays
from model_store.base.base import Base
from model_store.base.edit import Edit
from model_store.base.erasure import Erasure
from model_store.base.index import Index
from model_store.errors import NotAStore, StoreDamaged
from model_store.store import Store
from model_store.untrusted_folder import copy_model
from model_store.versions import VersionRef
from projector.graph.external_ids import NodeIds
from tests.support.models.failing_disk import FailingDisk
from tests.support.models.store_growth import a_version, an_edit, carry_out, commit, joined, regression, weighted
from tests.support.models.store_models import SmallModel, assert_same, small_model, without
from tests.support.models.store_states import everything_in, read_everything, rows, some_edges

pytestmark = pytest.mark.usefixtures("quick_disk")

LAYOUTS = pytest.mark.parametrize("layout", ["dense", "csr"])
MODELS = {
    "dense": lambda: small_model("dense"),
    "csr": lambda: small_model("csr"),
    "float64": lambda: small_model("csr", "float64", label_hops=0),
    "dense64": lambda: small_model("dense", "float64", label_hops=2),
    "targets": lambda: regression(small_model("csr")),
    "weights": lambda: weighted(small_model("csr")),
}


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest) -> SmallModel:
    made = MODELS[request.param]()
    assert isinstance(made, SmallModel)
    return made


@pytest.mark.ci
@pytest.mark.parametrize("chunk_rows", [1, 5, 512])
def test_growth_and_erasure_in_any_order_leave_what_is_expected(
    tmp_path: Path, model: SmallModel, chunk_rows: int
) -> None:
    random = np.random.default_rng(chunk_rows)
    store = model.create(tmp_path / "m", chunk_rows=chunk_rows)
    expected = model.base
    # Some writers make several versions, others one.
    for version, (fencing, new) in enumerate([(1, 3), (1, 0), (1, 7), (2, 1), (4, 5), (4, 2)], start=1):
        gone = random.permutation(np.flatnonzero(expected.graph.node_ids.named))[:4]
        erased = Erasure(nodes=gone[:2], feature_rows=gone[2:])
        edit = an_edit(without(expected, erased), random, new=new)
        erased = replace(erased, feature_rows=np.setdiff1d(erased.feature_rows, edit.feature_rows))
        ref = VersionRef(version, fencing)
        grown = commit(store, ref, expected, edit, erased)
        assert store.is_ungrown(ref)
        assert_same(Store.open(tmp_path / "m").load_base(), joined(expected, edit))
        carry_out(store, ref, grown, erased)
        assert not store.is_ungrown(ref)
        assert not store.is_erasing()
        expected = without(grown, erased)
        assert_same(Store.open(tmp_path / "m").load_base(), expected)
        assert store.nodes == expected.graph.nodes


def grow(store: Store, base: Base, edit: Edit, ref: VersionRef, erased: Erasure | None = None) -> Base:
    expected = commit(store, ref, base, edit, erased)
    carry_out(store, ref, expected, erased)
    return expected if erased is None else without(expected, erased)


def traces_of(base: Base, gone: NDArray[np.int64]) -> set[bytes]:
    """The bytes of ids, features and weights of edges of some nodes, as they are stored."""
    found = {base.graph.node_ids[row].encode() for row in gone}
    for row in gone:
        held = base.graph.features[[row]]
        found |= {value.tobytes() for value in (held.ravel() if isinstance(held, np.ndarray) else held.data) if value}
    if base.graph.weighted:
        found |= {weight.tobytes() for weight in base.graph.adjacency[gone].data}
    return found


@LAYOUTS
@pytest.mark.parametrize("fencing", [1, 2])
def test_no_byte_of_an_erased_node_that_had_joined_is_left_in_any_file(
    tmp_path: Path, layout: str, fencing: int
) -> None:
    random = np.random.default_rng(3)
    model = weighted(small_model(layout, "float64"))
    store = model.create(tmp_path / "m")
    base = grow(store, model.base, an_edit(model.base, random, new=6, edges=30), VersionRef(1, 1))
    # The next writer copies the additions.
    base = grow(store, base, an_edit(base, random, new=2), VersionRef(2, fencing))
    gone = rows(23, 25, 28)
    traces = traces_of(base, gone)
    before = everything_in(tmp_path / "m")
    assert all(trace in before for trace in traces)
    edit = an_edit(without(base, Erasure(nodes=gone)), random)
    grow(store, base, edit, VersionRef(3, fencing), Erasure(nodes=gone))
    after = everything_in(tmp_path / "m")
    assert [trace for trace in traces if trace in after] == []
    entries = BaseArrays(tmp_path / "m" / "base", Index.latest(tmp_path / "m" / "base"))
    for name in ("late_labels", "late_features", "late_adjacency"):
        assert not np.isin(entries.read_all(name, "rows"), gone).any()
    assert not np.isin(entries.read_all("late_adjacency", "columns"), gone).any()


@LAYOUTS
def test_features_and_labels_that_were_corrected_leave_no_byte(tmp_path: Path, layout: str) -> None:
    random = np.random.default_rng(4)
    model = small_model(layout, "float64")
    store = model.create(tmp_path / "m")
    base = grow(store, model.base, an_edit(model.base, random), VersionRef(1, 1))
    # Of the import, corrected before, and joined.
    first = an_edit(base, random, new=0, corrected=26, labelled=0)
    old = traces_of(replace(base, graph=replace(base.graph, node_ids=NodeIds.of(["x"] * 26))), np.arange(26)) - {b"x"}
    base = grow(store, base, first, VersionRef(2, 1))
    after = everything_in(tmp_path / "m")
    assert [trace for trace in old if trace in after] == []
    labels = Edit(26, label_rows=np.arange(26), labels_of_rows=np.full(26, -1), masks_of_rows=np.zeros(26, np.uint8))
    base = grow(store, base, labels, VersionRef(3, 1))
    arrays = BaseArrays(tmp_path / "m" / "base", Index.latest(tmp_path / "m" / "base"))
    for name in ("labels", "late_labels"):
        assert (arrays.read_all(name, "labels") == -1).all()
        assert not arrays.read_all(name, "masks").any()


def test_an_edit_is_overwritten_when_its_version_goes(tmp_path: Path) -> None:
    model = small_model("csr", "float64")
    store = model.create(tmp_path / "m")
    edit = an_edit(model.base, np.random.default_rng(0))
    base = grow(store, model.base, edit, VersionRef(1, 1))
    path = tmp_path / "m" / "versions" / "1-1" / "edit.safetensors"
    with path.open("rb") as held:
        assert edit.ids[0].encode() in held.read()
        grow(store, base, Edit(base.graph.nodes, edges=rows(0, 25)[None]), VersionRef(2, 1))
        assert not path.exists()
        held.seek(0)
        assert not any(held.read())


@LAYOUTS
def test_chunks_of_rows_and_slots_of_features_cover_what_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(span_chunks, "_SPAN_BYTES", 1)
    random = np.random.default_rng(6)
    model = small_model(layout)
    store = model.create(tmp_path / "m")
    base = model.base
    for version in (1, 2):
        base = grow(store, base, an_edit(base, random, new=4, corrected=5), VersionRef(version, version))
    n = base.graph.nodes
    features, beta, seen = np.zeros((n, 6), dtype=np.float32), np.zeros((2, n, 3)), np.zeros(n, dtype=int)
    for chunk in store.span_chunks(np.ones(n, dtype=np.bool_))[0]:
        features[chunk.rows] = chunk.X if isinstance(chunk.X, np.ndarray) else chunk.X.toarray()
        beta[:, chunk.rows] = chunk.beta
        seen[chunk.rows] += 1
    stored = base.graph.features
    assert (seen == 1).all()
    assert np.array_equal(features, stored if isinstance(stored, np.ndarray) else stored.toarray())
    assert np.array_equal(beta, base.beta)
    parts = [chunk.X for chunk in store.label_span_chunks(np.ones(n, dtype=np.bool_))]
    labels = sp.vstack(parts).toarray()
    assert np.array_equal(labels, np.eye(3)[base.graph.labels] * base.graph.train_mask[:, None])


@LAYOUTS
def test_every_slot_of_features_is_found_with_its_row(tmp_path: Path, layout: str) -> None:
    random = np.random.default_rng(6)
    model = small_model(layout)
    store = model.create(tmp_path / "m")
    edit = an_edit(model.base, random, new=4, corrected=5)
    base = grow(store, model.base, edit, VersionRef(1, 1))
    stored = base.graph.features
    dense = stored if isinstance(stored, np.ndarray) else stored.toarray()
    in_base: dict[int, list[float]] = {row: [] for row in range(base.graph.nodes)}
    in_edit: dict[int, set[bytes]] = {row: set() for row in edit.feature_rows.tolist()}
    for slots in store.feature_slots():
        stop = slots.offset + slots.row_of_slot.size * slots.slot_bytes
        content = np.frombuffer(slots.file.read_bytes()[slots.offset : stop], dtype="<f4")
        content = content.reshape(-1, slots.slot_bytes // 4)
        for row in np.unique(slots.row_of_slot[slots.row_of_slot >= 0]).tolist():
            values = content[slots.row_of_slot == row]
            if "base" in slots.file.parts:
                in_base[row] += values[values != 0].tolist()
            else:
                in_edit[row].add(values.tobytes())
    for row, values in in_base.items():
        assert sorted(values) == sorted(dense[row][dense[row] != 0].tolist())
    for row, found in in_edit.items():
        values, columns = dense[row], np.flatnonzero(dense[row]).astype("<i4")
        parts = {values.tobytes()} if layout == "dense" else {values[columns].tobytes(), columns.tobytes()}
        assert found == parts - {b""}


def test_an_edge_that_left_and_joined_again_in_one_version_stays(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    [edge] = some_edges(model, 1)
    ref, erased = VersionRef(1, 1), Erasure(edges=edge[None])
    edit = Edit(23, edges=edge[None])
    expected = commit(store, ref, model.base, edit, erased)
    assert_same(store.load_base(), model.base)
    carry_out(store, ref, expected, erased)
    # As after a crash, when nobody knows how far it had come.
    carry_out(store, ref, expected, erased)
    assert_same(store.load_base(), expected)
    assert store.load_base().graph.edges == model.graph.edges


def test_an_edge_that_joins_again_with_another_weight_leaves_no_byte_of_the_old_one(tmp_path: Path) -> None:
    model = weighted(small_model())
    store = model.create(tmp_path / "m")
    assert store.weighted
    [edge] = some_edges(model, 1)
    old = model.graph.adjacency[edge[0], edge[1]].tobytes()
    assert old in everything_in(tmp_path / "m")
    ref, erased = VersionRef(1, 1), Erasure(edges=edge[None])
    expected = commit(store, ref, model.base, Edit(23, edges=edge[None], edge_weight=np.array([0.7])), erased)
    assert_same(store.load_base(), joined(model.base, Edit(23, edges=edge[None], edge_weight=np.array([0.7]))))
    carry_out(store, ref, expected, erased)
    assert_same(store.load_base(), expected)
    assert old not in everything_in(tmp_path / "m")


def test_a_graph_without_weights_stores_none_and_takes_none(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    assert not store.weighted
    grow(store, model.base, an_edit(model.base, np.random.default_rng(0)), VersionRef(1, 1))
    tables = Index.latest(tmp_path / "m" / "base").tables
    assert [sorted(tables[name].arrays) for name in ("adjacency", "late_adjacency")] == [["columns", "rows"]] * 2


def test_the_bytes_written_by_a_growth_do_not_depend_on_earlier_ones(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    model = small_model("dense")
    store = model.create(tmp_path / "m")
    base, written = model.base, []
    for version in range(1, 13):
        edit = an_edit(base, random, new=2, corrected=0, labelled=0, edges=0)
        edit = replace(edit, labels=np.zeros(2, dtype=np.int64))
        base = commit(store, ref := VersionRef(version, 1), base, edit)
        store.write_beta(base.beta, base.label_beta, version=version, fencing=1)
        disk = FailingDisk()
        with disk.mounted():
            store.grow(ref, fencing=1)
        appended = [(Path(path).name, size) for operation, path, size in disk.log if operation == "pwrite"]
        assert all(name.startswith("late_") for name, _ in appended)
        written.append(sum(size for _, size in appended))
    # The first one makes the files.
    assert len(set(written[1:])) == 1


def test_edits_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    edit, ref = an_edit(model.base, np.random.default_rng(0)), VersionRef(1, 1)
    state = a_version(model.base, Erasure(), edit.nodes)
    wrong = {
        "begins at row 22": Edit(22, edges=rows(0, 1)[None]),
        "features as float64": replace(edit, features=np.asarray(edit.features, dtype=np.float64)),
        "csr features": replace(edit, features=sp.csr_array(edit.features)),
        "features that are not finite": replace(edit, features=np.full_like(edit.features, np.nan)),
        "labels outside of -1 to 2": replace(edit, labels=np.full(3, 3)),
        "edges that do not join rows below 26": replace(edit, edges=rows(0, 26)[None]),
        "label_rows that are not ascending": replace(edit, label_rows=edit.label_rows[::-1].copy()),
        "feature_rows that do not end in the new rows": replace(edit, feature_rows=np.arange(5)),
        "weights of edges in a graph without weights": replace(edit, edge_weight=np.ones(len(edit.edges))),
        "targets without need": replace(edit, targets=np.zeros((3, 3))),
        "masks as int64": replace(edit, masks=edit.masks.astype(np.int64)),
    }
    for said, one in wrong.items():
        with pytest.raises(ValueError, match=said):
            store.write_version(ref, state, edges=0, beta_version=1, edit=one)
    with pytest.raises(ValueError, match="span coefficients of rows that get features must be written"):
        store.write_version(ref, state, edges=0, edit=edit)
    with pytest.raises(ValueError, match="the state is about 23 nodes"):
        store.write_version(ref, a_version(model.base, Erasure(), 23), edges=0, beta_version=1, edit=edit)
    assert store.versions() == [VersionRef(0, 0)]
    commit(store, ref, model.base, edit)
    with pytest.raises(ValueError, match="span coefficients are those of 23 rows, not 26"):
        store.grow(ref, fencing=1)


def test_a_model_that_lacks_what_was_added_is_not_copied_and_one_that_has_it_is(tmp_path: Path) -> None:
    model = small_model("csr")
    store = model.create(tmp_path / "m")
    ref = VersionRef(1, 1)
    expected = commit(store, ref, model.base, an_edit(model.base, np.random.default_rng(0)))
    with pytest.raises(NotAStore, match="lacks data that was added"):
        copy_model(tmp_path / "m", tmp_path / "copy")
    carry_out(store, ref, expected)
    assert_same(copy_model(tmp_path / "m", tmp_path / "copy").load_base(), expected)


def test_a_graph_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    model = small_model("csr")
    store = model.create(tmp_path / "m")
    shutil.copytree(tmp_path / "m", tmp_path / "first")
    base = grow(store, model.base, an_edit(model.base, np.random.default_rng(0)), VersionRef(1, 1))
    shutil.copytree(tmp_path / "m", tmp_path / "second")
    grow(store, base, an_edit(base, np.random.default_rng(1)), VersionRef(2, 1))
    for earlier, parts, said in (
        ("first", ["base"], "holds 23 rows, but version 2 adds 3 to 26"),
        ("second", ["versions", "CURRENT"], "holds the graph of version 2, which is later than 1-1"),
    ):
        mixed = shutil.copytree(tmp_path / "m", tmp_path / f"m-{earlier}")
        for part in parts:
            shutil.move(mixed / part, mixed.parent / f"old-{part}")
            shutil.move(tmp_path / earlier / part, mixed / part)
        with pytest.raises(StoreDamaged, match=said):
            read_everything(mixed)
