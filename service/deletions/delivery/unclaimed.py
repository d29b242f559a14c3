"""Requests that nobody can claim, because the queue does not do its work."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.db.engine import Engine
from service.db.transactions import transaction
from service.deletions.requests import RequestRepository
from service.queue.outage import Outage
from service.queue.stream import DeletionStream


@dataclass(frozen=True)
class UnclaimedRequests:
    """What keeps requests from being claimed."""

    #: For how long, in seconds.
    lasts_s: float
    #: Seconds since the oldest request that waits was received, by Postgres' clock; 0 when none waits.
    oldest_s: float
    reason: str
    remedy: str


class ClaimWatch:
    """The activities by which a committed request comes into the unlearner's hands."""

    def __init__(self, engine: Engine, stream: DeletionStream, activities: Sequence[Outage]) -> None:
        self._engine = engine
        self._stream = stream
        self._activities = tuple(activities)

    async def stall(self) -> UnclaimedRequests | None:
        """What keeps requests from being claimed at present, None while nothing does. Raises Unavailable."""
        longest = max(self._activities, key=lambda activity: activity.lasts_s)
        lasts_s, reason, remedy = longest.lasts_s, longest.reason, longest.remedy
        if reason is None or remedy is None:
            return None
        async with transaction(self._engine) as connection:
            oldest = await RequestRepository(connection).oldest(self._stream.model)
        return UnclaimedRequests(lasts_s, 0.0 if oldest is None else oldest.waits_s, reason, remedy)
