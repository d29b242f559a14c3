"""Gram factors as rows join, against an SVD of the rows."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from projector.forgetting.factors import whole
from projector.forgetting.gram import FactorMethod, Gram, factorise, pinv_residuals
from projector.forgetting.growth import grow
from projector.graph.features import FeatureMatrix
from tests.support.mathematics.gram_forms import through_rows
from tests.support.models.structures import STRUCTURES, Rows, all_zero, full_rank, oracle, rank_deficient


def grown(rows: Rows, first: int, step: int) -> list[tuple[Gram, FactorMethod, int]]:
    """Return the factors of the first rows and after each joined batch, with their method and number of rows."""
    in_span = np.arange(len(rows)) < first
    matrix = FeatureMatrix(rows)
    gram = factorise(matrix, in_span)
    found = [(gram, FactorMethod.NONE, first)]
    for start in range(first, len(rows), step):
        stop = min(start + step, len(rows))
        in_span = np.arange(len(rows)) < stop
        growth = grow(gram, torch.from_numpy(rows[start:stop].copy()), matrix, in_span)
        assert growth.gained >= growth.gram.rank - gram.rank
        gram = growth.gram
        found.append((gram, growth.method, stop))
    return found


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("step", [1, 3, 20])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_factors_stay_exact_while_rows_join(
    structure: Callable[[np.random.Generator], Rows], step: int, by_rows: bool
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.permutation(structure(rng))
    first = max(1, len(rows) // 3)
    with through_rows(by_rows):
        found = grown(rows, first, step)
    for gram, _, count in found:
        rank, M_pinv, _ = oracle(rows[:count], 1e-5 * gram.sigma_ref_squared**0.5)
        assert gram.rank == rank
        size = max(float(np.linalg.norm(M_pinv)), 1e-300)
        assert np.linalg.norm(whole(gram.M_pinv).numpy() - M_pinv) <= 1e-6 * size
        assert max(pinv_residuals(gram, None)) <= 1e-6
        np.testing.assert_allclose(whole(gram.M).numpy(), rows[:count].T @ rows[:count], atol=1e-11)


def test_single_rows_are_updated_and_large_batches_decomposed() -> None:
    for structure in (full_rank, rank_deficient):
        rows = structure(np.random.default_rng(1))
        assert {method for _, method, _ in grown(rows, 30, 1)[1:]} == {FactorMethod.UPDATE}
        assert {method for _, method, _ in grown(rows, 30, 15)[1:]} == {FactorMethod.DECOMPOSE}


def test_rows_that_bring_directions_are_updated_too() -> None:
    rows = np.random.default_rng(2).standard_normal((12, 40))
    found = grown(rows, 4, 2)
    assert [gram.rank for gram, _, _ in found] == [4, 6, 8, 10, 12]
    assert {method for _, method, _ in found[1:]} == {FactorMethod.UPDATE}


def test_after_an_import_of_zeros_the_first_rows_give_the_scale() -> None:
    rows = np.concatenate([all_zero(np.random.default_rng(0)), np.ones((1, 5))])
    (_, _, _), (gram, method, _) = grown(rows, 8, 1)
    assert (gram.rank, method) == (1, FactorMethod.RESCALE)
    assert gram.sigma_ref_squared == pytest.approx(5.0)
