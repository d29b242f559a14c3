"""Delays between attempts."""

import random

from hypothesis import given
from hypothesis import strategies as st

from service.queue.outage import Backoff


def test_the_ceiling_doubles_up_to_the_cap() -> None:
    backoff = Backoff(base_s=0.5, cap_s=5.0)
    assert [backoff.ceiling(failures) for failures in (1, 2, 3, 4, 5, 6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_an_outage_of_days_still_has_a_delay() -> None:
    assert Backoff(base_s=0.1, cap_s=5.0).ceiling(10**9) == 5.0


@given(st.integers(1, 5000), st.integers())
def test_a_delay_lies_between_nothing_and_the_ceiling(failures: int, seed: int) -> None:
    backoff = Backoff(base_s=0.1, cap_s=30.0)
    assert 0.0 <= backoff.delay(failures, random.Random(seed)) <= backoff.ceiling(failures) <= 30.0


def test_two_processes_that_failed_together_come_back_apart() -> None:
    backoff = Backoff()
    assert backoff.delay(9, random.Random(1)) != backoff.delay(9, random.Random(2))
