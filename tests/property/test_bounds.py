"""No bound that a deletion reports is below the true distance to the retrained weights, however it was repaired.

Inside a repair single precision is at work; lambda is 1e-2 to 1e-6 and the condition number up to 10^10.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from projector.forgetting.certificate import TOLERANCE
from tests.property.faint_models import TINY, FaintModel, Step
from tests.property.ill_conditioned import ill_conditioned_case

#: What makes repairs go one way, whatever they would choose.
Way = Callable[[pytest.MonkeyPatch], None]


def as_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a factor of the Hessian, from before the batch or anew: these models are small."""


def without_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """By conjugate gradients."""
    monkeypatch.setattr("projector.forgetting.repair.why_no_factor", lambda *of: "it is not wanted")


WAYS = (as_chosen, without_a_factor)


def check(model: FaintModel, batch: NDArray[np.int64]) -> Step:
    """Deletes one batch; both bounds hold, and it ends at the retrained weights where rounding lets it."""
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


def check_seed(seed: int) -> None:
    """Deletes batch after batch from the model of a seed."""
    model = FaintModel(ill_conditioned_case(seed))
    for batch in model.case.batches:
        check(model, batch)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("way", WAYS)
def test_no_bound_is_below_the_true_distance(way: Way, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    way(monkeypatch)
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(100))
@pytest.mark.parametrize("way", WAYS)
def test_no_bound_is_below_the_true_distance_ten_thousand_times(
    way: Way, hundred: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    way(monkeypatch)
    for seed in range(1_000_000 + 100 * hundred, 1_000_100 + 100 * hundred):
        try:
            check_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
