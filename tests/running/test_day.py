"""The benchmark of a platform's day, in its smallest size: it fails by itself if somebody is back, or missing."""

import pytest

from benchmarks.additions.day import Size, run


@pytest.mark.slow
def test_a_day_of_a_platform_ends_with_exactly_those_who_are_there() -> None:
    found = run(Size(400), features=24, rate=20.0, seed=0)
    assert (found["joined"], found["left"], found["nodes"]) == (100, 20, 480)
