"""Weights count as retrained by the tolerance stated in their event, up to the largest allowed one."""

from typing import Any

import pytest

from service.log.verification import overstated


def details(bound: float | None, tolerance: float | None, repair: str = "converged") -> dict[str, Any]:
    return {"repair": repair, "distance_bound_after_relative": bound, "repair_tolerance": tolerance}


@pytest.mark.parametrize(("bound", "tolerance"), [(9e-7, 1e-6), (1e-6, 1e-6), (5e-10, 1e-9), (0.0, 1e-8)])
def test_a_bound_within_the_tolerance_stated_is_right(bound: float, tolerance: float) -> None:
    assert overstated(details(bound, tolerance)) is None


@pytest.mark.parametrize(
    ("bound", "tolerance", "message"),
    [
        (2e-8, 1e-8, "its bound 2e-08 is above the tolerance 1e-08"),
        (1e-9, None, "states no bound on the distance, or no tolerance"),
        (1e-7, 2e-6, "its tolerance is 2e-06; tolerances above 1e-06 do not count as retrained"),
        (1e-7, float("nan"), "its tolerance is nan"),
        (0.0, 0.0, "its tolerance is 0"),
        (float("nan"), 1e-8, "its bound nan"),
        (None, 1e-8, "states no bound"),
    ],
)
def test_weights_that_are_called_retrained_without_being_it_are_found(
    bound: float | None, tolerance: float | None, message: str
) -> None:
    assert message in (overstated(details(bound, tolerance)) or "")


@pytest.mark.parametrize("repair", ["none", "pending", "not_converged"])
def test_of_other_weights_nothing_is_claimed(repair: str) -> None:
    assert overstated(details(0.3, 1e-8, repair)) is None
    assert overstated({}) is None
