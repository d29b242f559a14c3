"""The content of a batch, without a clock."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.unlearner.batcher import BatchLimits, QueuedWork, Take, Wait, decide

LIMITS = BatchLimits(max_nodes=10, max_wait_s=2.0)


def waiting(*nodes: int, arrived_at: float = 100.0) -> list[QueuedWork]:
    return [QueuedWork(UUID(int=i), count, arrived_at + i / 10) for i, count in enumerate(nodes)]


def test_with_nothing_waiting_there_is_nothing_to_wait_for() -> None:
    assert decide([], LIMITS, 0.0) == Wait(None)


def test_a_batch_waits_for_more_until_its_oldest_request_is_old_enough() -> None:
    assert decide(waiting(1, 1), LIMITS, 100.5) == Wait(1.5)
    assert decide(waiting(1, 1), LIMITS, 102.0) == Take(2)
    assert decide(waiting(1, 1), LIMITS, 500.0) == Take(2)


def test_a_batch_is_capped_by_nodes_and_not_by_requests() -> None:
    assert decide(waiting(4, 4, 4), LIMITS, 100.0) == Take(2)
    assert decide(waiting(*[1] * 25), LIMITS, 100.0) == Take(10)
    assert decide(waiting(9), LIMITS, 100.0) == Wait(2.0)


def test_a_batch_that_is_exactly_full_goes_at_once() -> None:
    assert decide(waiting(5, 5), LIMITS, 100.0) == Take(2)


def test_a_request_larger_than_the_limit_goes_alone_and_at_once() -> None:
    assert decide(waiting(5000), LIMITS, 100.0) == Take(1)
    assert decide(waiting(5000, 1), LIMITS, 100.0) == Take(1)
    assert decide(waiting(1, 5000), LIMITS, 100.0) == Take(1)


def test_a_clock_that_was_set_back_does_not_lengthen_the_wait() -> None:
    assert decide(waiting(1), LIMITS, -1e6) == Wait(2.0)


def test_without_a_wait_whatever_is_there_goes() -> None:
    assert decide(waiting(1), BatchLimits(10, 0.0), 100.0) == Take(1)


def test_limits_under_which_nothing_could_go_are_refused() -> None:
    with pytest.raises(ValueError, match="room for at least one node"):
        BatchLimits(0, 1.0)
    with pytest.raises(ValueError, match="at least 0 s"):
        BatchLimits(1, -1.0)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(1, 40), st.floats(0, 5), st.floats(6, 10))
def test_repeated_batches_take_each_request_once_in_order_within_the_limit(
    nodes: list[int], max_nodes: int, max_wait_s: float, now: float
) -> None:
    limits = BatchLimits(max_nodes, max_wait_s)
    left = waiting(*nodes, arrived_at=0.0)
    taken: list[UUID] = []
    while left:
        decision = decide(left, limits, now)
        if isinstance(decision, Wait):
            assert decision.seconds is not None
            assert 0 < decision.seconds <= max_wait_s
            now += decision.seconds
            decision = decide(left, limits, now + 1e-9)
        assert isinstance(decision, Take)
        batch, left = left[: decision.requests], left[decision.requests :]
        assert len(batch) == 1 or sum(request.nodes for request in batch) <= max_nodes
        assert not left or sum(request.nodes for request in [*batch, left[0]]) > max_nodes
        taken += [request.request_id for request in batch]
    assert taken == [UUID(int=i) for i in range(len(nodes))]
