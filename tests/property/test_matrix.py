"""Every configuration of the model and every kind of request, including drills, against a recomputation from scratch.

The everyday run takes a few configurations that cover each pair of choices; the slow run takes all of them.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model_store.build import BuiltModel
from projector.forgetting.batch import Removal
from projector.forgetting.canaries import PREFIX
from projector.forgetting.projection import Norms
from projector.network.blocks import by_block
from projector.network.spec import LossKind, SolverKind
from tests.support.mathematics.configurations import Configuration, every, pairwise
from tests.support.mathematics.matrix import build, of_kind, oracle_of, removals_of
from tests.support.mathematics.oracle import Oracle
from tests.support.models.stored import StoredModel

TOLERANCE = 1e-8


def assert_trained(configuration: Configuration, model: BuiltModel, oracle: Oracle) -> None:
    """Check that the dual variable spans the weights, and so do the coefficients."""
    limit = 1e-12 if configuration.solver is SolverKind.SGD else 1e-8
    assert model.manifest.training.identity_error <= limit
    H = oracle.H()[model.graph.train_mask]
    stacked = np.vstack([side.W[block] for _, side, block in oracle.blocks()])
    assert np.linalg.norm(stacked - H.T @ model.dual) <= 10 * limit * np.linalg.norm(stacked)
    for side in (oracle.features, oracle.label_side):
        if side is not None:
            spanned = np.einsum("nk,bnc->bkc", side.X, side.effective)
            assert np.linalg.norm(side.W - spanned) <= 10 * limit * np.linalg.norm(side.W)


def drill(configuration: Configuration, model: BuiltModel, cohort: int) -> list[Removal]:
    """Return a cohort of canaries, or its features; none if only edges are deleted, or the cohort does not exist."""
    canaries = model.manifest.canaries
    kinds = [kind for kind in configuration.kinds if kind != "edge"]
    if canaries is None or not kinds or not 1 <= cohort <= canaries.cohorts:
        return []
    rows = [model.graph.node_ids.index(name) for name in canaries.cohort_ids(cohort)]
    return [of_kind(kinds[0], np.array(rows, dtype=np.int64))]


def assert_drilled(model: BuiltModel, cohort: int, norms: Norms, W: NDArray[np.float64]) -> None:
    """Check that the norm was that of the cohort's column of `W` (blocks, d, C), the old weights, and is now zero."""
    assert model.manifest.canaries is not None
    before = float(np.linalg.norm(W[:, model.manifest.canaries.column(cohort)], axis=1).sum())
    assert before > 0.0
    assert norms.channel_before == pytest.approx(before, rel=1e-6)
    assert norms.channel_after is not None
    assert norms.channel_after <= 1e-12 * before


def assert_equal(stored: StoredModel, oracle: Oracle) -> None:
    """Check weights, rank, coefficients, the representation and every prediction against the oracle."""
    resident = stored.resident
    state = resident.committed.state
    pairs = [(state.features, resident.committed.features, oracle.features)]
    if state.labels is not None:
        assert resident.committed.labels is not None
        assert oracle.label_side is not None
        pairs.append((state.labels, resident.committed.labels, oracle.label_side))
    for span, given, side in pairs:
        W = by_block(span.W, state.classes).numpy()
        scale = max(float(np.linalg.norm(side.W)), 1e-9)
        assert np.linalg.norm(W - side.W) <= TOLERANCE * scale
        assert np.array_equal(span.in_span, side.in_span)
        effective = (given.beta + by_block(given.rows.matmul(span.T), state.classes)).numpy()
        error = np.abs(effective[:, side.in_span] - side.effective[:, side.in_span]).max(initial=0.0)
        assert error <= TOLERANCE * max(np.abs(side.effective).max(), 1e-9)
    if side_changed := oracle.features.rank:
        assert state.features.gram.rank == side_changed
    images = []
    for each, span in zip(resident.committed.live_graph.inputs, state.spans, strict=True):
        rows = each.rows.matmul(torch.eye(each.rows.num_features, dtype=torch.float64))
        images += list(each.operators.images(rows * torch.from_numpy(span.in_span)[:, None]))
    training = oracle.training & oracle.live
    assert np.abs(torch.cat(images, dim=1).numpy() - oracle.H())[training].max(initial=0.0) <= TOLERANCE
    predicted = resident.committed.predictions().probabilities
    assert np.abs(predicted - oracle.probabilities()).max() <= TOLERANCE


def check(configuration: Configuration, path: Path) -> None:
    model = build(configuration)
    oracle = oracle_of(model)
    assert_trained(configuration, model, oracle)
    stored = StoredModel(path, model)
    rng = np.random.default_rng(3)
    deletable = ~model.public & ~np.char.startswith(np.array(model.graph.node_ids), PREFIX)
    for step in range(4):
        drilled = drill(configuration, model, cohort=step)
        removals = [*drilled, *removals_of(configuration, oracle, rng, deletable)]
        expected = [
            np.linalg.norm(oracle.features.effective[:, removal.rows].sum(axis=1), axis=1).sum() for removal in removals
        ]
        outcome = stored.remove(*removals)
        for norms, removal, before in zip(outcome.prepared.projection.norms, removals, expected, strict=True):
            if removal.edges.size:
                assert norms.injected_before is None
            else:
                assert norms.injected_before == pytest.approx(before, rel=1e-6, abs=1e-9)
                assert norms.injected_after == 0.0
        for place, norms in enumerate(outcome.prepared.projection.norms):
            if place < len(drilled):
                assert_drilled(model, step, norms, oracle.features.W)
            else:
                assert (norms.channel_before, norms.channel_after) == (None, None)
        prepared = outcome.prepared
        oracle.remove(prepared.nodes, prepared.feature_rows, prepared.edges)
        assert_equal(stored, oracle)
        assert outcome.span_residual <= TOLERANCE
        if step == 1:
            stored.resident = stored.reloaded()
            assert_equal(stored, oracle)


@pytest.mark.parametrize("configuration", pairwise(), ids=str)
def test_a_configuration_equals_its_recomputation(configuration: Configuration, tmp_path: Path) -> None:
    check(configuration, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("configuration", every(), ids=str)
def test_all_configurations_equal_their_recomputation(configuration: Configuration, tmp_path: Path) -> None:
    check(configuration, tmp_path / "model")


def test_the_few_configurations_hold_every_pair_of_choices() -> None:
    few = pairwise()
    assert len(few) < 40
    for loss in LossKind:
        assert {c.solver for c in few if c.loss is loss} == (
            {SolverKind.SGD} if loss is LossKind.PLAIN_HINGE else set(SolverKind)
        )
        assert {c.kinds for c in few if c.loss is loss} == {c.kinds for c in few}
