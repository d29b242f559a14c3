"""Projection, coefficients and norms against explicit float64 recomputation, for every structure of features."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from projector.forgetting.batch import InputRows, ModelState, Projection, Removal, carried_columns, project_batch
from projector.forgetting.gram import factorise
from projector.forgetting.projection import Norms, SpanState
from projector.graph.features import FeatureMatrix
from projector.network.blocks import by_block, side_by_side
from tests.support.models.structures import STRUCTURES, Rows, oracle

BLOCKS, CLASSES = 2, 3


class Model:
    """A model with weights X^T beta, and an explicit copy: one effective coefficient per node."""

    def __init__(self, X: Rows, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.X = X
        self.live = np.ones(len(X), dtype=np.bool_)
        self.effective = rng.standard_normal((BLOCKS, len(X), CLASSES))
        self.W = np.einsum("nd,bnc->bdc", X, self.effective)
        rows = FeatureMatrix(X)
        self.input = InputRows(rows, torch.from_numpy(self.effective.copy()))
        gram = factorise(rows, self.live)
        W = side_by_side(torch.from_numpy(self.W))
        span = SpanState(W, W.clone(), torch.zeros_like(W), gram, self.live.copy())
        self.state = ModelState(0, span, None, self.live.copy(), CLASSES)
        self.cutoff = (gram.rank_tolerance * gram.sigma_ref_squared) ** 0.5
        self.scale = float(np.linalg.norm(self.W))

    def projected(self, requests: Sequence[NDArray[np.int64]], injected: Sequence[int] = ()) -> Projection:
        """Return the result of a deletion without changing anything."""
        removals = [Removal(nodes=rows) for rows in requests]
        columns = carried_columns(self.X, injected)
        return project_batch(self.state, self.input, None, removals, columns)

    def delete(self, requests: Sequence[NDArray[np.int64]]) -> Projection:
        """Delete in both, and return the measurements of the code under test."""
        projection = self.projected(requests)
        rows = np.concatenate(requests)
        self.live[rows] = False
        rank, M_pinv, basis = oracle(self.X[self.live], self.cutoff)
        share = M_pinv @ np.einsum("md,bmc->bdc", self.X[rows], self.effective[:, rows])
        self.effective += np.einsum("nd,bdc->bnc", self.X, share)
        self.effective[:, ~self.live] = 0.0
        self.W = basis @ (basis.T @ self.W)
        self.state = projection.state
        self.input.beta[:, torch.from_numpy(rows)] = 0.0
        assert self.state.features.gram.rank == rank
        return projection

    def assert_exact(self, tolerance: float = 1e-8) -> None:
        W = by_block(self.state.features.W, CLASSES).numpy()
        assert np.linalg.norm(W - self.W) <= tolerance * self.scale
        effective = side_by_side(self.input.beta).numpy() + self.X @ self.state.features.T.numpy()
        effective[~self.live] = 0.0
        assert np.linalg.norm(self.state.features.W.numpy() - self.X.T @ effective) <= tolerance * self.scale
        assert np.array_equal(self.state.live, self.live)


def injected(model: Model, rows: NDArray[np.int64]) -> float:
    return float(np.linalg.norm(model.effective[:, rows].sum(axis=1), axis=1).sum())


def random_batches(rng: np.random.Generator, nodes: int, largest: int) -> list[NDArray[np.int64]]:
    order, batches = rng.permutation(nodes), []
    while order.size:
        batch, order = np.split(order, [min(order.size, int(rng.integers(1, largest + 1)))])
        batches.append(batch)
    return batches


@pytest.mark.parametrize("structure", STRUCTURES)
def test_weights_coefficients_and_norms_stay_exact_until_nothing_is_left(
    structure: Callable[[np.random.Generator], Rows],
) -> None:
    rng = np.random.default_rng(11)
    model = Model(structure(rng))
    for batch in random_batches(rng, len(model.X), 8):
        requests = [part for part in np.array_split(batch, 2) if part.size]
        expected = [injected(model, rows) for rows in requests]
        projection = model.delete(requests)
        for norms, before in zip(projection.norms, expected, strict=True):
            assert norms.injected_before == pytest.approx(before, rel=1e-7, abs=1e-9 * model.scale)
            assert norms.injected_after == 0.0
        assert projection.coefficient_residual <= 1e-8
        model.assert_exact()
    assert model.state.features.gram.rank == 0
    assert np.linalg.norm(model.state.features.W.numpy()) <= 1e-9 * max(model.scale, 1.0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_single_deletions_in_any_order_equal_one_batch(structure: Callable[[np.random.Generator], Rows]) -> None:
    rng = np.random.default_rng(5)
    X = structure(rng)
    rows = rng.permutation(len(X))[: max(1, len(X) // 2)]
    batch, singles, backwards = Model(X), Model(X), Model(X)
    batch.delete([rows])
    for row in rows:
        singles.delete([np.array([row])])
    for row in rows[::-1]:
        backwards.delete([np.array([row])])
    for other in (singles, backwards):
        assert other.state.features.gram.rank == batch.state.features.gram.rank
        assert torch.linalg.norm(other.state.features.W - batch.state.features.W) <= 1e-8 * max(batch.scale, 1e-12)
        remaining = np.flatnonzero(batch.live)
        left: list[Any] = [m.projected([remaining]).norms[0].injected_before
                for m in (batch, other) if remaining.size]  # fmt: skip
        assert len({round(norm / max(batch.scale, 1e-12), 7) for norm in left}) <= 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    nodes=st.integers(1, 30),
    columns=st.integers(1, 20),
    density=st.sampled_from([0.1, 0.4, 1.0]),
    copies=st.integers(1, 3),
    largest=st.integers(1, 12),
)
def test_any_binary_features_can_be_deleted_in_any_batches(
    seed: int, nodes: int, columns: int, density: float, copies: int, largest: int
) -> None:
    rng = np.random.default_rng(seed)
    X = np.repeat((rng.random((nodes, columns)) < density).astype(np.float64), copies, axis=0)
    model = Model(X, seed)
    for batch in random_batches(rng, len(X), largest):
        model.delete([batch])
        model.assert_exact(1e-7)


def test_a_lost_direction_is_reported_with_its_norm_before_and_after() -> None:
    X = np.vstack([np.random.default_rng(0).standard_normal((30, 6)), np.zeros((1, 6))])
    X = np.hstack([X, np.zeros((31, 1))])
    X[30, 6] = 2.0
    model = Model(X)
    along = float(np.linalg.norm(model.W[:, 6]))
    projection = model.delete([np.array([30, 2])])
    assert projection.directions_removed == 1
    assert projection.lost_direction_norm_before == pytest.approx(along)
    assert projection.lost_direction_norm_after == pytest.approx(0.0, abs=1e-12 * along)
    assert projection.weight_change == pytest.approx(along / model.scale)


def test_no_lost_direction_leaves_the_weights_bit_for_bit() -> None:
    model = Model(np.random.default_rng(0).standard_normal((40, 5)))
    before = model.state.features.W.clone()
    projection = model.delete([np.array([3, 4])])
    assert projection.directions_removed == 0
    assert projection.lost_direction_norm_before is None
    assert projection.weight_change == 0.0
    assert torch.equal(projection.state.features.W, before)


def test_a_physical_channel_is_read_from_the_weights_and_equals_the_injected_norm() -> None:
    rng = np.random.default_rng(0)
    X = np.hstack([rng.standard_normal((40, 5)), np.zeros((40, 1))])
    carriers = np.array([1, 7, 9])
    X[carriers, 5] = 1.0
    model = Model(X)
    norms: Norms = model.projected([carriers], injected=[5]).norms[0]
    assert norms.channel_before == pytest.approx(norms.injected_before, rel=1e-12)
    assert norms.channel_after == pytest.approx(0.0, abs=1e-12)
    others: Norms = model.projected([np.array([2])], injected=[5]).norms[0]
    assert others.channel_before is None


def test_a_channel_is_measured_by_what_deletes_the_last_of_its_carriers() -> None:
    X = np.zeros((40, 7))
    X[:30, :5] = np.random.default_rng(0).standard_normal((30, 5))
    X[[30, 31, 32], 5] = X[[33, 34], 6] = 1.0
    model = Model(X)
    size = [float(np.linalg.norm(model.W[:, column], axis=1).sum()) for column in (5, 6)]
    parted = model.projected([np.array([30, 31])], injected=[5, 6])
    assert parted.norms[0].channel_before is None
    assert parted.norms[0].channel_after is None
    # Two requests of a batch remove the first column together, and each gets a record; the second is the last
    # request's.
    batch = [np.array([30, 0]), np.array([31, 32]), np.array([33, 34]), np.array([1])]
    together = model.projected(batch, injected=[5, 6])
    before = [norms.channel_before for norms in together.norms]
    assert before == [pytest.approx(size[0]), pytest.approx(size[0]), pytest.approx(size[1]), None]
    assert [norms.channel_after for norms in together.norms] == [
        *[pytest.approx(0.0, abs=1e-12 * min(size))] * 3,
        None,
    ]
    both = model.projected([np.arange(30, 35)], injected=[5, 6]).norms[0]
    assert both.channel_before == pytest.approx(sum(size))
    model.delete([np.array([30, 31])])
    last = model.projected([np.array([32])], injected=[5, 6]).norms[0]
    assert last.channel_before == pytest.approx(size[0])
    assert last.channel_after == pytest.approx(0.0, abs=1e-12 * size[0])


def test_coefficients_that_no_longer_match_the_weights_are_summed_afresh() -> None:
    model = Model(np.random.default_rng(0).standard_normal((40, 5)))
    spoiled = replace(model.state.features, B=model.state.features.B * (1 + 1e-5))
    model.state = replace(model.state, features=spoiled)
    assert model.projected([np.array([1])]).coefficient_residual <= 1e-12
