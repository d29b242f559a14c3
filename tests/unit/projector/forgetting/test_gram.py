"""The Gram factors against a fresh float64 singular value decomposition of the surviving rows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from projector.errors import RankError
from projector.forgetting.factors import whole
from projector.forgetting.gram import (
    Downdate,
    FactorMethod,
    Gram,
    accepted,
    downdate,
    factorise,
    pinv_residuals,
    rank_residual,
)
from projector.graph import features as features_module
from projector.graph.features import FeatureMatrix
from projector.training.scaling import well_scaled
from tests.support.mathematics.gram_forms import through_rows
from tests.support.models.small_graphs import dense
from tests.support.models.structures import STRUCTURES, Rows, exclusive_tiny_feature, nearly_supported_direction, oracle


def assert_exact(gram: Gram, rows: Rows, *, tolerance: float = 1e-8) -> None:
    rank, M_pinv, _ = oracle(rows, (gram.rank_tolerance * gram.sigma_ref_squared) ** 0.5)
    assert gram.rank == rank
    scale = max(float(np.linalg.norm(M_pinv)), 1e-300)
    assert np.linalg.norm(whole(gram.M_pinv).numpy() - M_pinv) <= tolerance * scale
    reference = max(gram.sigma_ref_squared, 1e-300)
    assert np.linalg.norm(whole(gram.M).numpy() - rows.T @ rows) <= 1e-12 * reference
    assert bool(whole(gram.M).isfinite().all())


@pytest.mark.parametrize("layout", ["dense", "csr", "through rows"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_factors_stay_exact_while_all_rows_are_deleted_in_random_batches(
    structure: Callable[[np.random.Generator], Rows], layout: str
) -> None:
    rng = np.random.default_rng(7)
    rows = structure(rng)
    features = FeatureMatrix(rows if layout == "dense" else sp.csr_array(rows))
    live = np.ones(len(rows), dtype=np.bool_)
    with through_rows(layout == "through rows"):
        gram = factorise(features, live)
    assert_exact(gram, rows)
    order = rng.permutation(len(rows))
    while order.size:
        batch, order = np.split(order, [min(order.size, int(rng.integers(1, 8)))])
        before = live.copy()
        live[batch] = False
        down = downdate(gram, features.dense_rows(batch), features, live)
        gram = down.gram
        assert_exact(gram, rows[live])
        assert rank_residual(gram) == pytest.approx(rank_residual(replace(gram, trace=None)), abs=1e-7)
        if order.size % 2:
            gram.settle()
        assert_lost_directions(down.lost_directions.numpy(), gram, rows[before], rows[live])
    assert gram.rank == 0
    assert torch.linalg.norm(gram.M_pinv @ whole(gram.M)) < 1e-9


def assert_lost_directions(Q: Rows, gram: Gram, before: Rows, surviving: Rows) -> None:
    """Check that Q is orthonormal, lies in the old span, and that no surviving row has a part along it."""
    assert np.allclose(Q.T @ Q, np.eye(Q.shape[1]), atol=1e-10)
    if Q.shape[1]:
        cutoff = (gram.rank_tolerance * gram.sigma_ref_squared) ** 0.5
        _, _, basis = oracle(before, cutoff)
        assert np.linalg.norm(basis @ (basis.T @ Q) - Q) <= 1e-8
        assert np.linalg.norm(surviving @ Q) <= cutoff * Q.shape[1]


def deleted(rows: Rows, *nodes: int, gram: Gram | None = None) -> tuple[Gram, Downdate]:
    """Return the factors of all rows, or `gram`, and what the deletion of some makes of them."""
    features, live = FeatureMatrix(rows), np.ones(len(rows), dtype=np.bool_)
    before = gram or factorise(features, live)
    live[[*nodes]] = False
    return before, downdate(before, features.dense_rows(np.array(nodes)), features, live)


def test_a_batch_larger_than_the_dimension_is_decomposed_at_once() -> None:
    rows = np.random.default_rng(0).standard_normal((50, 6))
    gram, down = deleted(rows, *range(48))
    assert down.method is FactorMethod.DECOMPOSE
    assert down.lost_directions.shape == (6, 4)
    assert_exact(down.gram, rows[48:])
    assert_lost_directions(down.lost_directions.numpy(), gram, rows, rows[48:])


def test_a_large_batch_that_leaves_the_rank_in_doubt_goes_back_to_the_rows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 6))
    rows[:44, 5] *= 100.0
    rows[44:, 5] = 1e-2
    _, down = deleted(rows, *range(44))
    assert down.method is FactorMethod.REFACTORISE
    assert_exact(down.gram, rows[44:])


def test_an_exclusive_direction_is_lost_by_downdate_and_not_by_recomputation() -> None:
    _, down = deleted(exclusive_tiny_feature(np.random.default_rng(0)), 7)
    assert down.method is FactorMethod.DOWNDATE
    assert abs(abs(down.lost_directions.numpy()[-1, 0]) - 1.0) < 1e-12


def test_a_direction_that_another_node_supports_faintly_is_kept() -> None:
    rows = nearly_supported_direction(np.random.default_rng(0))
    _, down = deleted(rows, 7)
    assert down.lost_directions.shape[1] == 0
    assert_exact(down.gram, np.delete(rows, 7, axis=0))


def test_a_direction_that_sinks_to_the_cutoff_with_few_left_counts_as_from_the_rows() -> None:
    """Only two rows support the last direction, and the remaining one does so faintly."""
    rng, weakened = np.random.default_rng(1), 0
    for _ in range(60):
        directions = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        rows = rng.normal(size=(40, 3)) @ directions[:, :-1].T
        parts = 10 ** rng.uniform((-5, -5.6), (-3.2, -5))
        rows[:2] += np.linalg.norm(rows, 2) * parts[:, None] * directions[:, -1]
        gram, down = deleted(rows, 0)
        anew = factorise(FeatureMatrix(rows), np.arange(40) > 0, sigma_ref_squared=gram.sigma_ref_squared)
        assert down.gram.rank == anew.rank
        assert down.lost_directions.shape[1] == 0
        assert down.weakened == gram.rank - anew.rank
        weakened += down.weakened
    assert weakened > 10


def test_rank_decisions_keep_the_scale_of_the_import() -> None:
    """After deleting nearly everything, the largest eigenvalue is noise; relative to it, noise would count as rank."""
    _, down = deleted(np.vstack([np.eye(4) * 1e4, 1e-3 * np.ones((1, 4))]), *range(4))
    assert down.gram.rank == 0


@pytest.mark.parametrize("error", [1e-9, 1e-6, 1e-4, 1e-2])
def test_the_sampled_residual_estimates_the_exact_one(error: float) -> None:
    rng = np.random.default_rng(3)
    gram = factorise(FeatureMatrix(rng.standard_normal((300, 80))), np.ones(300, dtype=np.bool_))
    noise = torch.from_numpy(rng.standard_normal((80, 80)))
    noise = (noise + noise.T) * (torch.linalg.norm(whole(gram.M_pinv)) / torch.linalg.norm(noise)) * error
    spoiled = Gram(gram.M, whole(gram.M_pinv) + noise, gram.rank, gram.sigma_ref_squared, gram.condition_number)
    for exact, sampled in zip(pinv_residuals(spoiled, probes=None), pinv_residuals(spoiled), strict=True):
        assert exact > error / 10
        assert exact / 3 <= sampled <= 3 * exact


def test_a_pseudo_inverse_that_fails_acceptance_is_recomputed_from_the_surviving_rows() -> None:
    rows = np.random.default_rng(1).standard_normal((40, 10))
    good = factorise(FeatureMatrix(rows), np.ones(40, dtype=np.bool_))
    drifted = Gram(good.M, whole(good.M_pinv) * (1 + 1e-4), good.rank, good.sigma_ref_squared, good.condition_number)
    _, down = deleted(rows, 3, gram=drifted)
    assert down.method is FactorMethod.REFACTORISE
    assert_exact(down.gram, np.delete(rows, 3, axis=0))


def test_the_trace_detects_a_wrong_rank() -> None:
    gram = factorise(FeatureMatrix(np.eye(5)), np.ones(5, dtype=np.bool_))
    assert rank_residual(gram) < 1e-12
    assert rank_residual(Gram(gram.M, gram.M_pinv, 4, gram.sigma_ref_squared, 1.0)) == pytest.approx(1.0)


def test_columns_of_very_different_scale_are_rescaled_by_powers_of_two() -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((200, 19)) * np.logspace(-3, 3, 19)
    live = np.ones(200, dtype=np.bool_)
    assert factorise(FeatureMatrix(rows), live).rank < 19
    scaled = well_scaled(rows, live)
    assert scaled.exponents is not None
    assert np.array_equal(scaled.features / np.exp2(scaled.exponents), rows)
    assert scaled.gram.rank == 19
    assert well_scaled(scaled.features, live).exponents is None
    sparse = well_scaled(sp.csr_array(rows), live)
    assert np.array_equal(dense(sparse.features), scaled.features)


def test_a_column_below_what_its_type_can_be_multiplied_to_stays_finite() -> None:
    rows = np.random.default_rng(5).standard_normal((60, 4)).astype(np.float32)
    rows[:, 0], rows[:, 1] = np.where(np.arange(60) < 30, np.float32(1e-40), 0), rows[:, 1] * np.float32(1e-5)
    scaled = well_scaled(rows, np.ones(60, dtype=np.bool_))
    assert scaled.exponents is not None
    assert np.isfinite(dense(scaled.features)).all()
    assert scaled.gram.rank == 4


def test_fixed_columns_are_not_rescaled() -> None:
    rows = np.random.default_rng(5).standard_normal((200, 6)) * np.array([1e-3, 1e-3, 1, 1, 1e3, 1e3])
    scaled = well_scaled(rows, np.ones(200, dtype=np.bool_), fixed=[0])
    assert scaled.exponents is not None
    assert scaled.exponents[0] == 0
    assert scaled.exponents[1] > 0


def test_well_scaled_columns_are_left_alone() -> None:
    rows = np.random.default_rng(5).standard_normal((50, 12))
    assert well_scaled(rows, np.ones(50, dtype=np.bool_)).exponents is None


def test_features_whose_gram_hides_a_direction_are_refused() -> None:
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((60, 8))
    rows[:, 7] = rows[:, 6] + 1e-6 * rng.standard_normal(60)
    live = np.ones(60, dtype=np.bool_)
    assert factorise(FeatureMatrix(rows), live).rank == 7
    with pytest.raises(RankError, match="1 direction"):
        well_scaled(rows, live)


def test_exactly_dependent_columns_are_no_hidden_direction() -> None:
    rng = np.random.default_rng(6)
    rows = rng.integers(0, 3, (60, 8)).astype(np.float64)
    rows[:, 7] = rows[:, 6] + rows[:, 5]
    assert well_scaled(rows, np.ones(60, dtype=np.bool_)).gram.rank == 7


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_reading_columns_of_sparse_features_changes_nothing(
    index: type[np.integer], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Features of more than 2^31 entries have indices of this type.
    monkeypatch.setattr(features_module, "index_type", lambda largest: index)
    rows = np.random.default_rng(2).integers(0, 2, (9, 6)).astype(np.float64)
    features = FeatureMatrix(sp.csr_array(rows))
    for _ in range(2):
        assert np.array_equal(features.dense_columns(1, 4).numpy(), rows[:, 1:4])


def test_forgotten_rows_are_zero_in_memory() -> None:
    rows = np.random.default_rng(2).standard_normal((6, 4))
    for features in (FeatureMatrix(rows.copy()), FeatureMatrix(sp.csr_array(rows))):
        assert np.allclose(features.row_norms.numpy(), np.linalg.norm(rows, axis=1), rtol=1e-14)
        features.forget(np.array([1, 4]))
        kept = rows.copy()
        kept[[1, 4]] = 0.0
        assert np.array_equal(features.row_norms.numpy() == 0.0, kept[:, 0] == 0.0)
        assert np.array_equal(features.matmul(torch.eye(4, dtype=torch.float64)).numpy(), kept)
        assert np.array_equal(features.dense_rows(np.arange(6)).numpy(), kept)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_which_features_a_forgotten_node_had_is_in_no_memory(dtype: type[np.floating]) -> None:
    random = np.random.default_rng(3)
    rows = random.integers(1, 3, (7, 6)) * (random.random((7, 6)) < 0.6)
    rows[[2, 5]] = [[0, 1, 1, 0, 0, 1], [0, 0, 1, 1, 0, 0]]
    given = sp.csr_array(rows.astype(dtype))
    features = FeatureMatrix(given)
    right = torch.from_numpy(random.standard_normal((7, 2)))
    features.transposed_matmul(right)
    assert features._sparse is not None
    assert features._transposed is not None
    before = [features._transposed.values(), features._transposed.col_indices()]
    gone = slice(given.indptr[2], given.indptr[3])
    features.forget(np.array([2, 5]))
    for values, columns in (
        (features._sparse.data, features._sparse.indices),
        (features._matrix.values().numpy(), features._matrix.col_indices().numpy()),
    ):
        assert not values[gone].any()
        assert not columns[gone].any()
    assert not any(part.any() for part in before)
    rows[[2, 5]] = 0
    np.testing.assert_allclose(features.transposed_matmul(right).numpy(), rows.T @ right.numpy(), atol=1e-12)
    everyone = np.ones(7, dtype=np.bool_)
    assert np.array_equal(features.matmul(torch.eye(6, dtype=torch.float64)).numpy(), rows)
    assert np.array_equal(features.gram(everyone).numpy(), rows.T @ rows)
    assert np.array_equal(features.dense_columns(1, 4).numpy(), rows[:, 1:4])


@pytest.mark.parametrize(("error", "method"), [(1e-8, FactorMethod.DOWNDATE), (1e-5, FactorMethod.REFACTORISE)])
def test_a_pseudo_inverse_with_remnants_of_a_lost_direction_is_recomputed(error: float, method: FactorMethod) -> None:
    """They change neither M+ M M+ nor the trace of M M+, up to their square."""
    rows = np.random.default_rng(1).standard_normal((40, 10))
    rows[:, 0] = 0.0
    good = factorise(FeatureMatrix(rows), np.ones(40, dtype=np.bool_))
    P = whole(good.M_pinv).clone()
    P[0, 1:] = P[1:, 0] = error * P[1, 1:]
    spoiled = Gram(good.M, P, good.rank, good.sigma_ref_squared, good.condition_number)
    inside, outside = pinv_residuals(spoiled, probes=None)
    assert inside <= 2 * error**2 + 1e-13
    assert outside > error / 10
    _, down = deleted(rows, 3, gram=spoiled)
    assert down.method is method
    if method is FactorMethod.REFACTORISE:
        assert float(whole(down.gram.M_pinv)[0].norm()) == 0.0


def test_a_pseudo_inverse_that_is_not_a_number_is_refused() -> None:
    rows = np.random.default_rng(1).standard_normal((40, 10))
    good = factorise(FeatureMatrix(rows), np.ones(40, dtype=np.bool_))
    nothing = torch.full_like(whole(good.M_pinv), torch.nan)
    assert accepted(replace(good, trace=10.0))
    assert not accepted(replace(good, M_pinv=nothing, trace=10.0))
