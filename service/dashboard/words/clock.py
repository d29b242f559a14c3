"""How much of the time for a request is used up."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from service.domain.formats import coarse
from service.domain.records import DeletionRequest

#: Share of the time after which a request counts as near its deadline.
NEAR = 0.8


@dataclass(frozen=True)
class Clock:
    """The deadline of one open request."""

    due_at: datetime
    #: Share of the time that is used up, at most 1.
    share: float
    #: `good`, `warn` near the deadline, `bad` past it.
    tone: str
    words: str


def clock_of(request: DeletionRequest, now: datetime) -> Clock:
    """The clock at `now` of a request that is still open."""
    due_at = request.due_at
    left = due_at - now
    share = min(1.0, max(0.0, (now - request.received_at) / (due_at - request.received_at)))
    if left < timedelta():
        return Clock(due_at, 1.0, "bad", f"{coarse(-left)} late")
    return Clock(due_at, share, "warn" if share >= NEAR else "good", f"{coarse(left)} left")
