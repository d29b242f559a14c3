"""What the store of a model promises: nothing read that was not written, nothing half written that is read."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from failing_disk import FailingDisk, Loss, stops
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import SmallModel, assert_same, difference, small_model, without

from model_store import base_store
from model_store import store as store_module
from model_store.base_store import Base
from model_store.erasure import Erasure
from model_store.errors import GraphError, StoreDamaged, StoreForeign
from model_store.sealed import seal
from model_store.store import Store
from model_store.versions import SpanArrays, StoreConflict, VersionRef, VersionState


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the platter: what is durable is up to `FailingDisk`."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


REFUSED = (StoreDamaged, StoreForeign)


def read_everything(path: Path) -> tuple[Base, VersionState]:
    store = Store.open(path)
    return store.load_base(), store.read_version(store.current())


def a_state(model: SmallModel, seed: int) -> VersionState:
    random = np.random.default_rng(seed)

    def span(shape: tuple[int, ...]) -> SpanArrays:
        return SpanArrays(*(random.standard_normal(shape) for _ in range(3)))

    live = random.random(model.graph.nodes) < 0.8
    return VersionState(
        features=span(model.weights.shape),
        labels=span(model.label_weights.shape),
        live=live,
        featured=live & (random.random(model.graph.nodes) < 0.9),
        rank=seed,
    )


def same_state(left: VersionState, right: VersionState) -> bool:
    parts = ("weights", "B", "T")
    spans = ((left.features, right.features), (left.labels, right.labels))
    masks = ((left.live, right.live), (left.featured, right.featured))
    pairs = [(getattr(a, part), getattr(b, part)) for a, b in spans for part in parts] + list(masks)
    return left.rank == right.rank and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def everything_of(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def names_in(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


# What is written is read back.


@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("chunk_rows", "label_hops"), [(1, 1), (5, 3), (23, 0), (512, 2)])
def test_a_model_is_read_back_as_it_was_stored(
    tmp_path: Path, layout: str, dtype: str, chunk_rows: int, label_hops: int
) -> None:
    model = small_model(layout, dtype, label_hops=label_hops)
    model.create(tmp_path / "m", chunk_rows=chunk_rows)
    store = Store.open(tmp_path / "m")
    assert store.manifest == model.manifest
    assert_same(store.load_base(), model.base)


@pytest.mark.parametrize("label_hops", [0, 2])
def test_a_new_store_holds_its_first_version(tmp_path: Path, label_hops: int) -> None:
    model = small_model(label_hops=label_hops)
    store = model.create(tmp_path / "m")
    assert store.current() == VersionRef(0, 0)
    assert store.versions() == [VersionRef(0, 0)]
    state = store.read_version(VersionRef(0, 0), digest=store.version_digest(VersionRef(0, 0)))
    expected = VersionState(
        features=SpanArrays(model.weights, model.weights, np.zeros((2, 6, 3))),
        labels=SpanArrays(model.label_weights, model.label_weights, np.zeros((label_hops, 3, 3))),
        live=np.ones(23, dtype=np.bool_),
        featured=np.ones(23, dtype=np.bool_),
        rank=6,
    )
    assert same_state(state, expected)
    weights = model.weights.tobytes() + model.label_weights.tobytes()
    assert store.weights_sha256(VersionRef(0, 0)) == hashlib.sha256(weights).hexdigest()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    node_ids=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), min_size=9, max_size=9, unique=True
    )
)
def test_ids_may_be_any_text(tmp_path: Path, node_ids: list[str]) -> None:
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    store = small_model(nodes=9, node_ids=tuple(node_ids)).create(tmp_path / "m")
    assert store.load_base().graph.node_ids == tuple(node_ids)


def test_a_graph_without_edges_and_with_empty_feature_rows_is_kept(tmp_path: Path) -> None:
    model = small_model("csr", edges=0)
    features = model.graph.features
    features.data[:] = 0
    features.eliminate_zeros()
    store = model.create(tmp_path / "m")
    assert store.load_base().graph.edges == 0
    assert_same(store.load_base(), model.base)


def test_stored_zeros_of_sparse_features_are_kept(tmp_path: Path) -> None:
    model = small_model("csr")
    model.graph.features.data[::3] = 0
    assert_same(model.create(tmp_path / "m").load_base(), model.base)


def test_only_the_owner_may_read_a_store(tmp_path: Path) -> None:
    small_model().create(tmp_path / "m")
    for path in [tmp_path / "m", *(tmp_path / "m").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_store_is_not_written_over_other_files(tmp_path: Path) -> None:
    model = small_model()
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.tex").write_text("irreplaceable")
    with pytest.raises(StoreForeign, match="not an empty folder"):
        model.create(tmp_path / "m")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreForeign, match="not an empty folder"):
        model.create(tmp_path / "file")
    model.create(tmp_path / "new" / "parents" / "m")
    with pytest.raises(StoreForeign, match="not an empty folder"):
        model.create(tmp_path / "new" / "parents" / "m")


def test_a_store_may_be_made_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    small_model().create(tmp_path / "m")
    assert Store.open(tmp_path / "m").current() == VersionRef(0, 0)


def test_arrays_that_contradict_the_manifest_are_refused(tmp_path: Path) -> None:
    model = small_model()
    with pytest.raises(ValueError, match=r"nodes: 24 .* 23 given.*beta"):
        replace(model, manifest=replace(model.manifest, nodes=24)).create(tmp_path / "m")
    with pytest.raises(ValueError, match=r"^weights: \(2, 6, 3\)"):
        replace(model, weights=model.weights[:1]).create(tmp_path / "m")
    with pytest.raises(ValueError, match=r"label_beta: \(1, 23, 3\).*label_weights: \(1, 3, 3\)"):
        replace(model, label_weights=model.label_weights[:0], label_beta=model.label_beta[:0]).create(tmp_path / "m")
    with pytest.raises(ValueError, match="public"):
        replace(model, public=~model.public).create(tmp_path / "m")
    with pytest.raises(ValueError, match="public"):
        replace(model, manifest=replace(model.manifest, mlp=None)).create(tmp_path / "m")
    with pytest.raises(ValueError, match="feature_layout"):
        replace(model, graph=small_model("csr").graph).create(tmp_path / "m")
    with pytest.raises(ValueError, match="chunk_rows"):
        model.create(tmp_path / "m", chunk_rows=70_000)
    assert not (tmp_path / "m").exists()


def test_a_graph_with_one_way_edges_is_not_stored(tmp_path: Path) -> None:
    model = small_model()
    one_way = sp.csr_array(sp.triu(model.graph.adjacency))
    with pytest.raises(GraphError, match="one direction"):
        replace(model, graph=replace(model.graph, adjacency=one_way)).create(tmp_path / "m")


# Damage is refused by name.


@pytest.fixture(scope="module", params=["dense", "csr"])
def intact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has seen a version and an erasure; not to be changed."""
    path = tmp_path_factory.mktemp("intact") / "m"
    model = small_model(request.param)
    store = model.create(path)
    store.write_version(VersionRef(1, 2), a_state(model, 1))
    store.set_current(VersionRef(1, 2))
    store.erase(Erasure(nodes=np.array([3, 7]), edges=np.array([[1, 2]])), fencing=2)
    return path


def copied(intact: Path, tmp_path: Path) -> Path:
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    shutil.copytree(intact, tmp_path / "m", copy_function=shutil.copyfile)
    return tmp_path / "m"


def needed_files(path: Path) -> list[Path]:
    """Every file of a store but those of versions that CURRENT does not name."""
    return sorted(file for file in path.rglob("*") if file.is_file() and "0-0" not in file.parts)


def assert_refused(path: Path, file: Path) -> None:
    with pytest.raises(REFUSED) as caught:
        read_everything(path)
    named = file.name if not file.name.startswith("index-") else "index-"
    assert named in caught.value.detail
    assert caught.value.remedy


def test_an_intact_store_is_read(intact: Path, tmp_path: Path) -> None:
    read_everything(copied(intact, tmp_path))


def test_any_missing_file_is_refused_by_name(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    for file in needed_files(path):
        content = file.read_bytes()
        file.unlink()
        assert_refused(path, file)
        file.write_bytes(content)
    read_everything(path)


def test_any_missing_folder_is_refused_by_name(intact: Path, tmp_path: Path) -> None:
    for name in ("base", "versions", "versions/1-2"):
        path = copied(intact, tmp_path)
        shutil.rmtree(path / name)
        with pytest.raises(REFUSED, match=name):
            read_everything(path)


def test_any_truncated_or_longer_file_is_refused_by_name(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    for file in needed_files(path):
        content = file.read_bytes()
        for altered in (b"", content[: len(content) // 2], content[:-1], content + b"\n", content + content):
            if altered != content:
                file.write_bytes(altered)
                assert_refused(path, file)
        file.write_bytes(content)
    read_everything(path)


def test_a_flipped_bit_in_any_file_is_refused_by_name(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    random = np.random.default_rng(5)
    for file in needed_files(path):
        content = file.read_bytes()
        for place in {0, len(content) - 1, *random.integers(0, len(content), 12).tolist()} if content else ():
            altered = bytearray(content)
            altered[place] ^= 1 << int(random.integers(8))
            file.write_bytes(altered)
            assert_refused(path, file)
        file.write_bytes(content)
    read_everything(path)


def test_a_flipped_bit_in_any_byte_of_current_is_noticed(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    current = (path / "CURRENT").read_bytes()
    for place in range(len(current)):
        altered = bytearray(current)
        altered[place] ^= 1 << (place % 8)
        (path / "CURRENT").write_bytes(altered)
        with pytest.raises(REFUSED, match=r"CURRENT|versions"):
            Store.open(path)


def test_a_damaged_chunk_is_named(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    beta = path / "base" / "beta.values-0-0"
    content = bytearray(beta.read_bytes())
    content[-1] ^= 1
    beta.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"beta\.values-0-0 does not match the digest of its chunk 9\."):
        Store.open(path).load_base()
    with pytest.raises(StoreDamaged, match="chunk 9"):
        list(Store.open(path).span_chunks(np.ones(23, dtype=np.bool_)))


def reseal(file: Path, **changes: object) -> None:
    document = json.loads(file.read_text()) | changes
    del document["sha256"]
    file.write_bytes(seal(document))


def test_documents_of_another_format_are_refused_naming_both_numbers(intact: Path, tmp_path: Path) -> None:
    for name in ("manifest.json", "base/index-1-2.json", "versions/1-2/manifest.json"):
        path = copied(intact, tmp_path)
        reseal(path / name, format=1)
        with pytest.raises(StoreForeign, match=rf"{name} has format 1; .* reads format 2"):
            read_everything(path)


@pytest.mark.parametrize("name", ["manifest.json", "base/index-1-2.json", "versions/1-2/manifest.json"])
def test_documents_with_other_fields_are_refused_by_name(intact: Path, tmp_path: Path, name: str) -> None:
    path = copied(intact, tmp_path)
    reseal(path / name, favourite_colour="blue")
    with pytest.raises(StoreForeign, match=rf"{name}.*favourite_colour"):
        read_everything(path)


def test_files_of_another_model_are_refused(intact: Path, tmp_path: Path) -> None:
    other = small_model(seed=9)
    replace(other, manifest=replace(other.manifest, name="other")).create(tmp_path / "other")
    for name in ("manifest.json", "base", "versions"):
        path = copied(intact, tmp_path)
        if (path / name).is_dir():
            shutil.rmtree(path / name)
            shutil.copytree(tmp_path / "other" / name, path / name)
        else:
            shutil.copy(tmp_path / "other" / name, path / name)
        with pytest.raises(REFUSED):
            read_everything(path)


def test_a_version_in_the_place_of_another_is_refused(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    small_model(seed=9).create(tmp_path / "other")
    shutil.copytree(path / "versions" / "1-2", path / "versions" / "2-2")
    store = Store.open(path)
    with pytest.raises(StoreDamaged, match=r"2-2/manifest\.json is that of version 1-2"):
        store.read_version(VersionRef(2, 2))
    reseal(tmp_path / "other" / "versions" / "0-0" / "manifest.json", manifest_sha256="0" * 64)
    shutil.rmtree(path / "versions" / "0-0")
    shutil.copytree(tmp_path / "other" / "versions" / "0-0", path / "versions" / "0-0")
    with pytest.raises(StoreForeign, match=r"0-0/manifest\.json belongs to another model"):
        store.read_version(VersionRef(0, 0))


def test_an_older_index_under_a_newer_name_is_refused(intact: Path, tmp_path: Path) -> None:
    path = copied(intact, tmp_path)
    shutil.copy(path / "base" / "index-1-2.json", path / "base" / "index-5-7.json")
    with pytest.raises(StoreDamaged, match=r"index-5-7\.json holds the index that belongs in index-1-2\.json"):
        Store.open(path)


@pytest.mark.parametrize("name", ["base/features.values.bak", "versions/old", "versions/1-2.copy"])
def test_files_that_erasure_would_not_reach_are_refused_by_name(intact: Path, tmp_path: Path, name: str) -> None:
    path = copied(intact, tmp_path)
    (path / name).write_bytes(b"a copy of personal data")
    with pytest.raises(StoreForeign, match=name):
        Store.open(path)


def test_a_folder_without_a_model_is_foreign(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StoreForeign, match="holds no model"):
            Store.open(path)
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(StoreForeign, match=r"manifest\.json was not written by Lethe"):
        Store.open(tmp_path)


# Versions.


def test_versions_are_read_back_and_digests_checked(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    state = a_state(model, 4)
    digest = store.write_version(VersionRef(1, 3), state)
    assert digest == store.version_digest(VersionRef(1, 3))
    assert same_state(store.read_version(VersionRef(1, 3), digest=digest), state)
    assert store.current() == VersionRef(0, 0)
    with pytest.raises(StoreDamaged, match=r"1-3/manifest\.json does not have the expected digest"):
        store.read_version(VersionRef(1, 3), digest="0" * 64)
    with pytest.raises(StoreDamaged, match=r"2-3/manifest\.json is missing"):
        store.read_version(VersionRef(2, 3))


def test_a_version_nobody_committed_may_be_written_again(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    store.write_version(VersionRef(1, 1), a_state(model, 1))
    digest = store.write_version(VersionRef(1, 1), a_state(model, 2))
    assert same_state(store.read_version(VersionRef(1, 1), digest=digest), a_state(model, 2))
    assert store.versions() == [VersionRef(0, 0), VersionRef(1, 1)]


def test_a_committed_version_is_not_written_over(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    store.write_version(VersionRef(1, 1), a_state(model, 1))
    store.set_current(VersionRef(1, 1))
    for ref in (VersionRef(1, 1), VersionRef(0, 5)):
        with pytest.raises(StoreConflict, match="not later than 1-1"):
            store.write_version(ref, a_state(model, 2))
    assert same_state(store.read_version(VersionRef(1, 1)), a_state(model, 1))


def test_current_moves_forward_only_and_only_to_what_is_there(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    with pytest.raises(StoreDamaged, match="1-1"):
        store.set_current(VersionRef(1, 1))
    store.write_version(VersionRef(1, 1), a_state(model, 1))
    store.write_version(VersionRef(2, 1), a_state(model, 2))
    store.set_current(VersionRef(2, 1))
    store.set_current(VersionRef(2, 1))
    with pytest.raises(StoreConflict, match="2-1, which is later than 1-1"):
        store.set_current(VersionRef(1, 1))
    assert Store.open(tmp_path / "m").current() == VersionRef(2, 1)


def test_versions_above_ones_own_fencing_number_are_never_removed(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    for ref in (VersionRef(1, 1), VersionRef(2, 2), VersionRef(2, 3), VersionRef(3, 4)):
        store.write_version(ref, a_state(model, ref.fencing))
    for name in (".tmp-2-2", ".tmp-4-4"):
        (tmp_path / "m" / "versions" / name).mkdir()
        (tmp_path / "m" / "versions" / name / "state.safetensors").write_bytes(b"unfinished")
    store.set_current(VersionRef(2, 2))
    removed = store.remove_versions(keep=VersionRef(2, 2), below_fencing=3)
    assert removed == [VersionRef(0, 0), VersionRef(1, 1), VersionRef(2, 3)]
    left = sorted(path.name for path in (tmp_path / "m" / "versions").iterdir())
    assert left == [".tmp-4-4", "2-2", "3-4"]
    assert store.remove_versions(keep=VersionRef(2, 2), below_fencing=3) == []


def test_nothing_is_removed_when_current_names_another_version(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    store.write_version(VersionRef(1, 1), a_state(model, 1))
    with pytest.raises(StoreConflict, match="CURRENT names version 0-0, not 1-1"):
        store.remove_versions(keep=VersionRef(1, 1), below_fencing=1)
    assert store.versions() == [VersionRef(0, 0), VersionRef(1, 1)]


@pytest.mark.parametrize("caught_at", ["write_file", "rename"])
def test_a_writer_that_was_overtaken_while_it_set_current_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caught_at: str
) -> None:
    """It stands still just before it writes, or renames, what is to become CURRENT; its successor goes on."""
    model = small_model()
    slow = model.create(tmp_path / "m")
    slow.write_version(VersionRef(1, 1), a_state(model, 1))
    step = getattr(store_module, caught_at)

    def overtaken(*arguments: object) -> None:
        monkeypatch.setattr(store_module, caught_at, step)
        successor = Store.open(tmp_path / "m")
        successor.set_current(VersionRef(1, 1))
        successor.write_version(VersionRef(2, 2), a_state(model, 2))
        successor.set_current(VersionRef(2, 2))
        step(*arguments)

    monkeypatch.setattr(store_module, caught_at, overtaken)
    with pytest.raises(StoreConflict, match="CURRENT names version 2-2, which is later than 1-1"):
        slow.set_current(VersionRef(1, 1))
    assert Store.open(tmp_path / "m").current() == VersionRef(2, 2)
    assert not list((tmp_path / "m").glob(".*"))


def test_current_stays_when_one_that_was_overtaken_sets_it_in_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked at CURRENT before its successor wrote it, and renames its own right after."""
    model = small_model()
    store = model.create(tmp_path / "m")
    for version in (1, 2):
        store.write_version(VersionRef(version, version), a_state(model, version))
    store.set_current(VersionRef(1, 1))
    late = tmp_path / "m" / ".CURRENT-1-1"
    late.write_bytes((tmp_path / "m" / "CURRENT").read_bytes())

    def rename(source: Path, target: Path) -> None:
        monkeypatch.setattr(store_module, "rename", file_rename)
        file_rename(source, target)
        file_rename(late, target)

    file_rename = store_module.rename
    monkeypatch.setattr(store_module, "rename", rename)
    store.set_current(VersionRef(2, 2))
    assert store.current() == VersionRef(2, 2)


def test_what_an_overtaken_writer_has_written_since_is_removed(tmp_path: Path) -> None:
    model = small_model()
    slow = model.create(tmp_path / "m")
    store = Store.open(tmp_path / "m")
    store.write_version(VersionRef(1, 2), a_state(model, 1))
    store.set_current(VersionRef(1, 2))
    store.write_beta(model.beta, model.label_beta, version=1, fencing=2)
    store.remove_versions(keep=VersionRef(1, 2), below_fencing=2)
    before = everything_of(tmp_path / "m")
    shutil.copytree(tmp_path / "m" / "versions" / "1-2", tmp_path / "m" / "versions" / "1-1")
    with pytest.raises(StoreConflict):
        slow.write_beta(model.beta, model.label_beta, version=1, fencing=1)
    for name in ("erasing-1-1.json", "beta.values-1-1"):
        (tmp_path / "m" / "base" / name).write_bytes(b"late")
    assert everything_of(tmp_path / "m") != before

    store.tidy(keep=VersionRef(1, 2), fencing=2)
    assert everything_of(tmp_path / "m") == before


# Coefficients.


@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.parametrize("bytes_at_a_time", [1, 1000, 1 << 20])
def test_span_chunks_cover_all_rows_once_without_the_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, bytes_at_a_time: int
) -> None:
    monkeypatch.setattr(base_store, "_SPAN_BYTES", bytes_at_a_time)
    model = small_model(layout)
    store = model.create(tmp_path / "m")
    featured = np.arange(23) % 5 != 2
    features, beta, rows = np.zeros((23, 6), dtype=np.float32), np.zeros((2, 23, 3)), np.zeros(23, dtype=int)
    for chunk in store.span_chunks(featured):
        assert chunk.X.dtype == np.float32
        features[chunk.rows] = chunk.X if isinstance(chunk.X, np.ndarray) else chunk.X.toarray()
        beta[:, chunk.rows] = chunk.beta
        rows[chunk.rows] += 1
    assert (rows == 1).all()
    expected = without(model.base, Erasure(feature_rows=np.flatnonzero(~featured)))
    stored = expected.graph.features
    assert np.array_equal(features, stored if isinstance(stored, np.ndarray) else stored.toarray())
    assert np.array_equal(beta, expected.beta)


@pytest.mark.parametrize("bytes_at_a_time", [1, 300, 1 << 20])
@pytest.mark.parametrize("label_hops", [0, 2])
def test_label_span_chunks_hold_the_live_training_labels_and_nothing_of_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_at_a_time: int, label_hops: int
) -> None:
    monkeypatch.setattr(base_store, "_SPAN_BYTES", bytes_at_a_time)
    model = small_model(label_hops=label_hops)
    store = model.create(tmp_path / "m")
    live = np.arange(23) % 5 != 2
    labels, beta, rows = np.full((23, 3), -1.0), np.full((label_hops, 23, 3), -1.0), np.zeros(23, dtype=int)
    for chunk in store.label_span_chunks(live):
        assert isinstance(chunk.X, sp.csr_array)
        assert chunk.X.dtype == np.float64
        labels[chunk.rows] = chunk.X.toarray()
        beta[:, chunk.rows] = chunk.beta
        rows[chunk.rows] += 1
    assert (rows == 1).all()
    used = live & model.graph.train_mask
    assert np.array_equal(labels, np.eye(3)[model.graph.labels] * used[:, None])
    assert np.array_equal(beta, model.label_beta * used[:, None])


def test_rebuilt_coefficients_replace_the_old_ones_and_can_be_erased(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    store.erase(Erasure(nodes=np.array([4])), fencing=1)
    left = without(model.base, Erasure(nodes=np.array([4])))
    rebuilt = replace(left, beta=left.beta * 3, label_beta=left.label_beta * 5)
    store.write_beta(rebuilt.beta, rebuilt.label_beta, version=3, fencing=2)
    assert_same(Store.open(tmp_path / "m").load_base(), rebuilt)
    assert not (tmp_path / "m" / "base" / "beta.values-0-0").exists()
    assert not (tmp_path / "m" / "base" / "label_beta.values-0-0").exists()
    store.erase(Erasure(nodes=np.array([5])), fencing=2)
    assert_same(store.load_base(), without(rebuilt, Erasure(nodes=np.array([5]))))
    with pytest.raises(ValueError, match=r"^beta must be"):
        store.write_beta(rebuilt.beta[:, 1:], rebuilt.label_beta, version=3, fencing=2)
    with pytest.raises(ValueError, match=r"^label_beta must be"):
        store.write_beta(rebuilt.beta, rebuilt.label_beta[:0], version=3, fencing=2)
    with pytest.raises(StoreConflict, match="fencing number 2"):
        store.write_beta(rebuilt.beta, rebuilt.label_beta, version=3, fencing=1)


def test_a_repaired_version_finds_the_coefficients_before_it_stale_until_they_are_written(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    assert (store.beta_version(VersionRef(0, 0)), store.stale_coefficients(VersionRef(0, 0))) == (0, False)
    projected, repaired, later = VersionRef(1, 1), VersionRef(2, 1), VersionRef(3, 1)
    store.write_version(projected, a_state(model, 1))
    assert not store.stale_coefficients(projected)
    store.write_version(repaired, a_state(model, 2), beta_version=2)
    assert (store.beta_version(repaired), store.stale_coefficients(repaired)) == (2, True)

    store.write_beta(model.beta + 1, model.label_beta + 1, version=2, fencing=1)
    assert not Store.open(tmp_path / "m").stale_coefficients(repaired)
    store.erase(Erasure(nodes=np.array([4])), fencing=1)
    store.write_version(later, a_state(model, 3), beta_version=2)
    assert not Store.open(tmp_path / "m").stale_coefficients(later)


def test_coefficients_that_no_crash_explains_are_refused_by_name(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    store.write_version(VersionRef(3, 1), a_state(model, 1), beta_version=2)
    with pytest.raises(StoreDamaged, match=r"base holds the span coefficients of version 0, and version 3-1 goes"):
        store.stale_coefficients(VersionRef(3, 1))
    store.write_beta(model.beta, model.label_beta, version=3, fencing=1)
    for ref in (VersionRef(0, 0), VersionRef(3, 1)):
        with pytest.raises(StoreDamaged, match="coefficients of version 3"):
            store.stale_coefficients(ref)
    with pytest.raises(ValueError, match="version 3 cannot go with coefficients of version 4"):
        store.write_version(VersionRef(3, 1), a_state(model, 1), beta_version=4)


# Crashes.


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[SmallModel, Path]:
    """A store with an uncommitted and an abandoned version; not to be changed."""
    path = tmp_path_factory.mktemp("before") / "m"
    model = small_model(nodes=9, edges=10)
    store = model.create(path)
    store.write_version(VersionRef(1, 1), a_state(model, 1))
    return model, path


def commit(model: SmallModel, path: Path) -> None:
    store = Store.open(path)
    store.write_version(VersionRef(1, 1), a_state(model, 2))
    store.set_current(VersionRef(1, 1))
    store.remove_versions(keep=VersionRef(1, 1), below_fencing=1)


def rewrite_beta(model: SmallModel, path: Path) -> None:
    Store.open(path).write_beta(model.beta + 1, model.label_beta + 1, version=1, fencing=1)


@pytest.mark.parametrize("loss", [Loss.TORN, Loss.ALL, Loss.SOME])
@pytest.mark.parametrize("action", [commit, rewrite_beta])
def test_a_crash_at_any_point_leaves_the_old_or_the_new_state_and_repeating_ends_the_same(
    before: tuple[SmallModel, Path], tmp_path: Path, action: Callable[[SmallModel, Path], None], loss: Loss
) -> None:
    model, original = before
    finished = copied(original, tmp_path / "finished")
    action(model, finished)
    allowed = [read_everything(original), read_everything(finished)]
    random = np.random.default_rng(0)
    times_each = 5 if loss is Loss.SOME and action is rewrite_beta else 1
    for stop_at in np.repeat(range(1000), times_each).tolist():
        path = copied(original, tmp_path)
        disk = FailingDisk(stop_at, loss)
        stopped = stops(lambda: action(model, path), disk)  # noqa: B023
        disk.lose(random)
        base, state = read_everything(path)
        for ref in Store.open(path).versions():
            Store.open(path).read_version(ref)
        if not stopped:
            assert names_in(path) == names_in(finished)
        assert any(difference(base, b) is None and same_state(state, s) for b, s in allowed), disk.log
        if Store.open(path).current() < VersionRef(1, 1) or action is rewrite_beta:
            action(model, path)
        else:
            Store.open(path).remove_versions(keep=VersionRef(1, 1), below_fencing=1)
        if action is commit:
            assert everything_of(path) == everything_of(finished)
        else:
            assert_same(Store.open(path).load_base(), allowed[1][0])
            assert len(names_in(path)) == len(names_in(finished))
        if not stopped:
            assert stop_at > 10
            return
    pytest.fail("the action never ended")


@pytest.mark.parametrize("loss", [Loss.TORN, Loss.ALL, Loss.SOME])
def test_a_crash_while_a_store_is_created_leaves_none_or_all_of_it(tmp_path: Path, loss: Loss) -> None:
    model = small_model(nodes=9, edges=10)
    random = np.random.default_rng(0)
    for stop_at in range(1000):
        shutil.rmtree(tmp_path / "models", ignore_errors=True)
        path = tmp_path / "models" / "m"
        disk = FailingDisk(stop_at, loss)
        stopped = stops(lambda: model.create(path), disk)  # noqa: B023
        disk.lose(random)
        if path.exists():
            assert_same(Store.open(path).load_base(), model.base)
        else:
            assert stopped
            model.create(path)
        assert [entry.name for entry in path.parent.iterdir()] == ["m"]
        if not stopped:
            assert stop_at > 30
            return
    pytest.fail("the creation never ended")
