"""What joins a stored model: it is there whole, can be erased like anything else, and what it replaces is gone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.base.erasure import Erasure
from model_store.store import Store
from model_store.versions import VersionRef
from tests.support.models.store_growth import an_edit, carry_out, commit, joined, regression
from tests.support.models.store_models import SmallModel, assert_same, small_model, without

pytestmark = pytest.mark.usefixtures("quick_disk")

MODELS = {
    "dense": lambda: small_model("dense"),
    "csr": lambda: small_model("csr"),
    "float64": lambda: small_model("csr", "float64", label_hops=0),
    "dense64": lambda: small_model("dense", "float64", label_hops=2),
    "targets": lambda: regression(small_model("csr")),
}


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest) -> SmallModel:
    made = MODELS[request.param]()
    assert isinstance(made, SmallModel)
    return made


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
