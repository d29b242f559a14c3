"""A store's coefficients: read in chunks, replaced as a whole, never those of another version."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from model_store.base import span_chunks
from model_store.base.erasure import Erasure
from model_store.errors import StoreDamaged
from model_store.store import Store
from model_store.versions import StoreConflict, VersionRef
from tests.support.models.store_models import assert_same, small_model, without
from tests.support.models.store_states import a_state

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.parametrize("bytes_at_a_time", [1, 1000, 1 << 20])
def test_span_chunks_cover_all_rows_once_without_the_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, bytes_at_a_time: int
) -> None:
    monkeypatch.setattr(span_chunks, "_SPAN_BYTES", bytes_at_a_time)
    model = small_model(layout)
    store = model.create(tmp_path / "m")
    featured = np.arange(23) % 5 != 2
    features, beta, rows = np.zeros((23, 6), dtype=np.float32), np.zeros((2, 23, 3)), np.zeros(23, dtype=int)
    for chunk in store.span_chunks(featured)[0]:
        assert chunk.X.dtype == np.float64
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
    monkeypatch.setattr(span_chunks, "_SPAN_BYTES", bytes_at_a_time)
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
    trained = list((tmp_path / "m" / "base").glob("*beta.values-*"))
    assert len(trained) == 2
    store.erase(Erasure(nodes=np.array([4])), fencing=1)
    left = without(model.base, Erasure(nodes=np.array([4])))
    rebuilt = replace(left, beta=left.beta * 3, label_beta=left.label_beta * 5)
    store.write_beta(rebuilt.beta, rebuilt.label_beta, version=3, fencing=2)
    assert_same(Store.open(tmp_path / "m").load_base(), rebuilt)
    store.erase(Erasure(nodes=np.array([5])), fencing=2)
    assert not set(trained) & set((tmp_path / "m" / "base").iterdir())
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
    store.write_version(projected, a_state(model, 1), edges=0)
    assert not store.stale_coefficients(projected)
    store.write_version(repaired, a_state(model, 2), beta_version=2, edges=0)
    assert (store.beta_version(repaired), store.stale_coefficients(repaired)) == (2, True)

    store.write_beta(model.beta + 1, model.label_beta + 1, version=2, fencing=1)
    assert not Store.open(tmp_path / "m").stale_coefficients(repaired)
    store.erase(Erasure(nodes=np.array([4])), fencing=1)
    store.write_version(later, a_state(model, 3), beta_version=2, edges=0)
    assert not Store.open(tmp_path / "m").stale_coefficients(later)


def test_coefficients_that_no_crash_explains_are_refused_by_name(tmp_path: Path) -> None:
    model = small_model()
    store = model.create(tmp_path / "m")
    store.write_version(VersionRef(3, 1), a_state(model, 1), beta_version=2, edges=0)
    with pytest.raises(StoreDamaged, match=r"base holds the span coefficients of version 0, but version 3-1 needs"):
        store.stale_coefficients(VersionRef(3, 1))
    store.write_beta(model.beta, model.label_beta, version=3, fencing=1)
    for ref in (VersionRef(0, 0), VersionRef(3, 1)):
        with pytest.raises(StoreDamaged, match="coefficients of version 3"):
            store.stale_coefficients(ref)
    with pytest.raises(ValueError, match="version 3 cannot use coefficients of version 4"):
        store.write_version(VersionRef(3, 1), a_state(model, 1), beta_version=4, edges=0)
