"""The forms of M and M+ for wide sparse features, against the matrices themselves."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from projector.forgetting.factors import DelayedInverse, RowGram, whole
from projector.forgetting.gram import FactorMethod, Gram, accepted, downdate, factorise
from projector.forgetting.growth import grow
from projector.graph.features import FeatureMatrix

NODES, WIDTH = 90, 400


@pytest.fixture
def features() -> FeatureMatrix:
    """Return rows with about eight of 400 columns each, some of which only one row has."""
    return FeatureMatrix(sp.random_array((NODES, WIDTH), density=0.02, format="csr", rng=np.random.default_rng(4)))


def factors(features: FeatureMatrix, rows: np.ndarray) -> tuple[Gram, RowGram, DelayedInverse]:
    gram = factorise(features, rows)
    assert isinstance(gram.M, RowGram)
    assert isinstance(gram.M_pinv, DelayedInverse)
    return gram, gram.M, gram.M_pinv


def test_products_are_those_of_the_matrices_while_rows_leave_and_join(features: FeatureMatrix) -> None:
    rows = np.ones(NODES, dtype=np.bool_)
    gram, _, first = factors(features, rows)
    untouched, V = first.stored.clone(), torch.randn((WIDTH, 5), dtype=torch.float64)
    for turn, batch in enumerate(np.random.default_rng(1).permutation(NODES)[:60].reshape(12, 5)):
        rows[batch] = False
        down = downdate(gram, features.dense_rows(batch), features, rows)
        assert down.method is FactorMethod.DOWNDATE
        if turn % 3 == 2:
            rows[batch[:2]] = True
            grown = grow(down.gram, features.dense_rows(batch[:2]), features, rows)
            assert grown.method is FactorMethod.UPDATE
            gram = grown.gram
        else:
            gram = down.gram
        anew = factorise(features, rows, sigma_ref_squared=gram.sigma_ref_squared)
        M, M_pinv = whole(anew.M), whole(anew.M_pinv)
        assert gram.rank == anew.rank
        for kept, expected in ((gram.M, M), (gram.M_pinv, M_pinv)):
            torch.testing.assert_close(kept @ V, expected @ V, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(V.T @ gram.M_pinv, V.T @ M_pinv, rtol=1e-9, atol=1e-9)
        assert isinstance(gram.M_pinv, DelayedInverse)
        assert gram.M_pinv.size_bound() >= float(torch.linalg.norm(M_pinv)) * (1 - 1e-12)
        assert gram.trace == pytest.approx(float((M * M_pinv).sum()), abs=1e-9)
        assert accepted(gram)
    assert torch.equal(first.stored, untouched)
    assert len(first.rows) == 0


def test_settling_keeps_the_value_and_leaves_other_versions_alone(features: FeatureMatrix) -> None:
    rows = np.ones(NODES, dtype=np.bool_)
    gram, _, before = factors(features, rows)
    rows[:7] = False
    later = downdate(gram, features.dense_rows(np.arange(7)), features, rows).gram
    assert isinstance(later.M_pinv, DelayedInverse)
    assert later.M_pinv.stored is before.stored
    value, stored = later.M_pinv.whole(), before.stored.clone()
    later.settle()
    assert torch.equal(later.M_pinv.stored, value)
    assert len(later.M_pinv.rows) == 0
    assert torch.equal(before.stored, stored)


def test_forms_do_not_depend_on_how_many_are_computed_at_a_time(
    features: FeatureMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, M, _ = factors(features, np.arange(NODES) % 3 > 0)
    directions = torch.randn((7, WIDTH), dtype=torch.float64)
    expected = ((directions @ M.whole()) * directions).sum(dim=1)
    for values in (1, 3 * NODES, 1 << 22):
        monkeypatch.setattr("projector.forgetting.factors._VALUES", values)
        torch.testing.assert_close(M.forms(directions), expected, rtol=1e-12, atol=1e-12)
        assert M.forms(directions[:0]).shape == (0,)


def test_a_wrong_rank_is_seen_without_the_matrices(features: FeatureMatrix) -> None:
    """A pseudo-inverse that lacks a direction, and a rank that is off by one, fail alike."""
    gram, _, M_pinv = factors(features, np.ones(NODES, dtype=np.bool_))
    assert accepted(gram)
    assert not accepted(replace(gram, rank=gram.rank - 1))
    assert not accepted(replace(gram, M_pinv=M_pinv.plus(1e-2 * features.dense_rows(np.arange(1)), 1.0)))


def test_dense_and_narrow_features_keep_the_matrices() -> None:
    rng = np.random.default_rng(0)
    for given in (rng.standard_normal((20, 50)), sp.csr_array(rng.standard_normal((20, 8)))):
        gram = factorise(FeatureMatrix(given), np.ones(20, dtype=np.bool_))
        assert isinstance(gram.M, torch.Tensor)
        assert isinstance(gram.M_pinv, torch.Tensor)
