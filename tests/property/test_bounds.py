"""No bound that a deletion reports is below the true distance to the retrained weights, whatever the kind of repair.

Repairs use single precision inside. lambda is 1e-2 to 1e-6 and the condition number up to 10^10.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from projector.forgetting.status import TOLERANCE
from tests.support.everyday import everyday
from tests.support.mathematics.faint_models import TINY, Case, FaintModel, Step
from tests.support.mathematics.ill_conditioned import ill_conditioned_case

#: Makes a case's repairs use one method, whatever they would choose.
Way = Callable[[Case, pytest.MonkeyPatch], Case]


def in_single_precision(case: Case, monkeypatch: pytest.MonkeyPatch) -> Case:
    """As on large graphs: products by H in float32, with blocks of the Hessian from before the batch or recomputed."""
    return replace(case, dense=True)


def in_double_precision(case: Case, monkeypatch: pytest.MonkeyPatch) -> Case:
    """As on sparse graphs: products through the factors of H, without blocks."""
    monkeypatch.setattr("projector.forgetting.training_rows.why_no_preconditioner", lambda *of: "they are not wanted")
    return replace(case, dense=False)


WAYS = (in_single_precision, in_double_precision)


def check(model: FaintModel, batch: NDArray[np.int64]) -> Step:
    """Delete one batch; both bounds hold, and it ends at the retrained weights if rounding allows."""
    step = model.delete(batch)
    # Norms below sqrt(tiny) underflow.
    slack = step.slack + np.finfo(float).tiny ** 0.5
    before, after = step.outcome.before, step.outcome.after
    assert before is not None
    assert after is not None
    assert step.projected_distance <= before.bound + slack
    assert step.distance <= after.bound + slack
    if step.floor <= TOLERANCE / 10 and step.size > TINY * model.largest_optimum:
        assert after.retrained
    return step


def check_seed(seed: int, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete batch after batch from the model of a seed."""
    model = FaintModel(way(ill_conditioned_case(seed), monkeypatch))
    for batch in model.case.batches:
        check(model, batch)


#: 1007106: a row 300 times the others kept repairs with the smoothed hinge from converging.
@pytest.mark.parametrize("seed", everyday([*range(40), 1_007_106], *range(10), 1_007_106))
@pytest.mark.parametrize("way", WAYS)
def test_no_bound_is_below_the_true_distance(way: Way, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_seed(seed, way, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(100))
@pytest.mark.parametrize("way", WAYS)
def test_no_bound_is_below_the_true_distance_ten_thousand_times(
    way: Way, hundred: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(1_000_000 + 100 * hundred, 1_000_100 + 100 * hundred):
        try:
            check_seed(seed, way, monkeypatch)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
