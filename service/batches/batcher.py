"""Which waiting requests go into the next batch: a pure function of what waits, the limits and the clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch may grow, and how long its first request waits for others."""

    #: Most nodes (for edge requests, edges) in one batch. One larger request still goes, alone.
    max_nodes: int
    #: Longest wait of the oldest request, in seconds.
    max_wait_s: float

    def __post_init__(self) -> None:
        """Raise ValueError for limits under which no request would ever go."""
        if self.max_nodes < 1 or self.max_wait_s < 0:
            raise ValueError(f"a batch needs room for at least one node and a wait of at least 0 s, not {self}")


@dataclass(frozen=True)
class QueuedWork:
    """A request that has been claimed and waits for its batch."""

    request_id: UUID
    #: How many nodes (or edges) the request names.
    nodes: int
    #: When it was claimed, in seconds of the clock that `decide` is given.
    arrived_at: float


@dataclass(frozen=True)
class Take:
    """The first `requests` of those waiting make the next batch."""

    requests: int


@dataclass(frozen=True)
class Wait:
    """No batch yet: ask again after `seconds`, or when more arrives. None: nothing waits at all."""

    seconds: float | None


def decide(waiting: Sequence[QueuedWork], limits: BatchLimits, now: float) -> Take | Wait:
    """Take the longest run of the oldest requests that fits `max_nodes`, once it is full or old enough.

    Args:
        waiting: claimed requests, the oldest first. Their order is kept: a request is never overtaken.
        limits: work and wait allowed.
        now: the present, in seconds of the clock of `QueuedWork.arrived_at`.
    """
    if not waiting:
        return Wait(None)
    fitting = _fitting(waiting, limits.max_nodes)
    full = fitting < len(waiting) or _nodes(waiting) >= limits.max_nodes
    # A clock that was set back must not make anyone wait longer than the limit again.
    remaining = min(waiting[0].arrived_at + limits.max_wait_s - now, limits.max_wait_s)
    if full or remaining <= 0:
        return Take(fitting)
    return Wait(remaining)


def _fitting(waiting: Sequence[QueuedWork], max_nodes: int) -> int:
    nodes = 0
    for taken, request in enumerate(waiting):
        nodes += request.nodes
        if nodes > max_nodes:
            return max(taken, 1)
    return len(waiting)


def _nodes(waiting: Sequence[QueuedWork]) -> int:
    return sum(request.nodes for request in waiting)
