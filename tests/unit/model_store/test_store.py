"""The store's promises: written data is read back, and nothing else is accepted as a store."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_store.errors import NotAStore
from model_store.store import Store
from model_store.versions import SpanArrays, VersionRef, VersionState
from projector.graph.node_ids import is_allowed
from tests.support.models.store_models import assert_same, small_model
from tests.support.models.store_states import same_state

pytestmark = pytest.mark.usefixtures("quick_disk")


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


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    node_ids=st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=40).filter(is_allowed),
        min_size=9,
        max_size=9,
        unique=True,
    )
)
def test_ids_may_be_any_line_of_text(tmp_path: Path, node_ids: list[str]) -> None:
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    store = small_model(nodes=9, node_ids=tuple(node_ids)).create(tmp_path / "m")
    assert store.load_base().graph.node_ids == tuple(node_ids)


def test_only_the_owner_may_read_a_store(tmp_path: Path) -> None:
    small_model().create(tmp_path / "m")
    for path in [tmp_path / "m", *(tmp_path / "m").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_store_is_not_written_over_other_files(tmp_path: Path) -> None:
    model = small_model()
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.tex").write_text("irreplaceable")
    with pytest.raises(NotAStore, match="not an empty folder"):
        model.create(tmp_path / "m")
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotAStore, match="not an empty folder"):
        model.create(tmp_path / "file")
    model.create(tmp_path / "new" / "parents" / "m")
    with pytest.raises(NotAStore, match="not an empty folder"):
        model.create(tmp_path / "new" / "parents" / "m")


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
