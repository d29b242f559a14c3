"""Deleting cohorts of canaries: their columns' rows of W become zero, and everything else is as without them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model_store.build import BuiltModel
from model_store.datasets.load import load_dataset
from projector.forgetting.batch import Removal
from projector.forgetting.projection import Norms
from projector.graph.graph import Graph
from projector.network.spec import Combine, ModelSpec, SolverKind
from projector.training.fit import train
from service.domain.states import RepairPolicy
from tests.support.models.stored import SMALL, Oracle, Outcome, StoredModel, built

SMALLER = "synthetic:n=150,d=60,classes=4,seed=3"
#: A column's norm below this is rounding.
GONE = 1e-12


def cohort_rows(model: BuiltModel, cohort: int) -> NDArray[np.int64]:
    assert model.manifest.canaries is not None
    ids = model.manifest.canaries.cohort_ids(cohort)
    return np.array([model.graph.node_ids.index(name) for name in ids], dtype=np.int64)


def assert_fallen(norms: Norms, model: BuiltModel, *cohorts: int) -> None:
    assert model.manifest.canaries is not None
    columns = [model.manifest.canaries.column(cohort) for cohort in cohorts]
    assert norms.channel_before is not None
    assert norms.channel_after is not None
    assert norms.channel_before > 1e-3 * float(np.linalg.norm(model.weights)) / len(model.weights[0])
    assert norms.channel_after <= GONE * norms.channel_before
    trained = float(np.linalg.norm(model.weights[:, columns], axis=2).sum())
    assert norms.channel_before == pytest.approx(trained, rel=1e-9)


def assert_exact(model: StoredModel, oracle: Oracle, outcome: Outcome) -> None:
    """Check weights, rank and predictions against the same deletions from scratch, in float64."""
    W = model.store.read_version(model.ref).features.weights
    assert np.linalg.norm(W - oracle.W) <= 1e-9 * np.linalg.norm(oracle.W)
    assert outcome.prepared.projection.state.features.gram.rank == oracle.rank
    assert np.abs(outcome.prepared.snapshot.probabilities[oracle.live] - oracle.probabilities()).max() <= 1e-9
    assert outcome.span_residual <= 1e-8


def test_a_drill_is_exact_and_leaves_nothing_in_the_column(tmp_path: Path, graph: Graph) -> None:
    drilled = built(graph, cohorts=3)
    model, oracle = StoredModel(tmp_path / "model", drilled), Oracle(drilled)
    first, second = cohort_rows(drilled, 1), cohort_rows(drilled, 2)
    erased = np.concatenate([first, second])
    outcome = model.delete(first.tolist(), second.tolist())
    oracle.delete(erased.tolist())
    projection = outcome.prepared.projection
    assert projection.directions_removed == 2
    for norms, cohort in zip(projection.norms, (1, 2), strict=True):
        assert_fallen(norms, drilled, cohort)
    assert_exact(model, oracle, outcome)
    base = model.store.load_base()
    assert not base.graph.features[erased].count_nonzero()
    assert not base.beta[:, erased].any()
    assert {base.graph.node_ids[row] for row in erased} == {""}


@pytest.mark.parametrize(
    ("spec", "dense"),
    [
        (ModelSpec(combine=Combine.CONCAT), False),
        (ModelSpec(combine=Combine.CONCAT), True),
        (ModelSpec(combine=Combine.CONCAT, label_hops=2), False),
        (ModelSpec(solver=SolverKind.SGD, batch_size=32, epochs=20, learning_rate=0.2), False),
        (ModelSpec(mlp_width=40), False),
    ],
    ids=["concat", "dense features", "label reuse", "minibatches", "MLP"],
)
def test_drills_between_other_deletions_are_exact_whatever_the_model(
    tmp_path: Path, spec: ModelSpec, dense: bool
) -> None:
    graph = load_dataset(SMALLER, data_dirs=[])
    if dense:
        assert isinstance(graph.features, sp.csr_array)
        graph = replace(graph, features=graph.features.toarray())
    public = [graph.node_ids[row] for row in np.flatnonzero(graph.train_mask)[:25]] if spec.mlp_width else []
    small = built(graph, spec, cohorts=3, public=public)
    model, oracle = StoredModel(tmp_path / "model", small), Oracle(small)
    order = np.random.default_rng(0).permutation(np.setdiff1d(np.arange(graph.nodes), np.flatnonzero(small.public)))
    for cohort in (1, 2, 3):
        real, order = np.split(order, [15])
        rows = cohort_rows(small, cohort)
        outcome = model.delete(rows.tolist(), real.tolist())
        oracle.delete([*rows.tolist(), *real.tolist()])
        drilled, ordinary = outcome.prepared.projection.norms
        assert drilled.channel_after is not None
        assert drilled.channel_before is not None
        assert drilled.channel_before > 0
        assert drilled.channel_after <= GONE * drilled.channel_before
        assert ordinary.channel_before is None
        assert_exact(model, oracle, outcome)
        model.resident = model.reloaded()
        assert model.store.manifest.canaries == small.manifest.canaries


def test_a_diffused_model_forgets_its_canaries(tmp_path: Path) -> None:
    small = built(load_dataset(SMALLER, data_dirs=[]), ModelSpec(diffusion=True, combine=Combine.CONCAT), cohorts=2)
    model = StoredModel(tmp_path / "model", small)
    for cohort in (1, 2):
        outcome = model.delete(cohort_rows(small, cohort).tolist())
        assert_fallen(outcome.prepared.projection.norms[0], small, cohort)
        assert outcome.span_residual <= 1e-8
        # No other row of W depends on the cohort's direction.
        W = model.store.read_version(model.ref).features.weights
        left = np.delete(np.arange(W.shape[1]), [small.graph.num_features - 2, small.graph.num_features - 1][:cohort])
        assert np.linalg.norm((W - small.weights)[:, left]) <= GONE * np.linalg.norm(W)


def test_a_repaired_drill_ends_in_the_weights_of_training_without_the_cohort(tmp_path: Path) -> None:
    graph = load_dataset(SMALL, data_dirs=[])
    small = built(graph, cohorts=2)
    assert small.manifest.canaries is not None
    model = StoredModel(tmp_path / "model", small, RepairPolicy.ALWAYS)
    for cohort in (1, 2):
        norms = model.delete(cohort_rows(small, cohort).tolist()).prepared.projection.norms[0]
        assert norms.channel_before is not None
        assert norms.channel_after is not None
        assert norms.channel_before > 0
        assert norms.channel_after <= GONE * norms.channel_before
    W = model.store.read_version(model.ref).features.weights
    never_had_any = train(small.manifest.spec, graph).weights.numpy()
    own = graph.num_features
    assert np.linalg.norm(W[:, :own] - never_had_any) <= 1e-7 * np.linalg.norm(never_had_any)
    assert np.linalg.norm(W[:, own:]) <= GONE * np.linalg.norm(W)


def test_a_cohort_that_goes_in_parts_is_measured_with_its_last_part(tmp_path: Path) -> None:
    small = built(load_dataset(SMALL, data_dirs=[]), cohorts=2)
    model = StoredModel(tmp_path / "model", small)
    first, second = cohort_rows(small, 1), cohort_rows(small, 2)
    parted = model.delete(first[:3].tolist(), second.tolist()).prepared.projection.norms
    assert (parted[0].channel_before, parted[0].channel_after) == (None, None)
    assert_fallen(parted[1], small, 2)
    model.resident = model.reloaded()
    last = model.remove(Removal(features=first[3:])).prepared.projection.norms[0]
    assert_fallen(last, small, 1)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_order_of_cohorts_and_real_nodes_is_exact(
    tmp_path_factory: pytest.TempPathFactory, small: BuiltModel, data: st.DataObject
) -> None:
    model, oracle = StoredModel(tmp_path_factory.mktemp("any") / "model", small), Oracle(small)
    left = data.draw(st.permutations(range(small.graph.nodes)))
    cohorts = {cohort: set(cohort_rows(small, cohort).tolist()) for cohort in (1, 2, 3)}
    for _ in range(data.draw(st.integers(1, 4))):
        whole = data.draw(st.sets(st.sampled_from((1, 2, 3)), max_size=2))
        size = data.draw(st.integers(1, 60))
        requests = [left[:size], *(sorted(cohorts[one] & set(left[size:])) for one in sorted(whole))]
        requests = [request for request in requests if request]
        gone = {row for request in requests for row in request}
        left = [row for row in left if row not in gone]
        outcome = model.delete(*requests)
        if not left:
            assert outcome.prepared.projection.state.features.gram.rank == 0
            break
        oracle.delete(sorted(gone))
        assert_exact(model, oracle, outcome)
        for request, norms in zip(requests, outcome.prepared.projection.norms, strict=True):
            emptied = [rows for rows in cohorts.values() if rows & set(request) and not rows & set(left)]
            assert (norms.channel_before is not None) == bool(emptied)
            if norms.channel_before is not None and norms.channel_after is not None:
                assert norms.channel_after <= GONE * norms.channel_before


@pytest.fixture(scope="module")
def small() -> BuiltModel:
    return built(load_dataset("synthetic:n=120,d=40,classes=3,seed=5", data_dirs=[]), cohorts=3)
