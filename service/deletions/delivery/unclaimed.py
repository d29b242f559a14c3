"""Requests that nobody can claim, because the queue does not do its work."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.db.engine import Engine
from service.db.transactions import transaction
from service.deletions.requests import RequestRepository
from service.domain.records import OldestRequest
from service.queue.outage import Outage
from service.queue.stream import DeletionStream

#: Longest wait of the oldest request (seconds) while no batch is under way, beyond the time that a batch has to fill.
#: Nearly all are taken up within one second, and requests that the stream lost are published again after 15.
MOST_UNCLAIMED_S = 40.0


@dataclass(frozen=True)
class UnclaimedRequests:
    """What keeps requests from being claimed."""

    #: For how long, in seconds.
    lasts_s: float
    #: Seconds that the oldest request has waited although it could be taken up; 0 if none waits.
    oldest_s: float
    reason: str
    remedy: str


class ClaimWatch:
    """The activities by which a committed request comes into the unlearner's hands."""

    def __init__(self, engine: Engine, stream: DeletionStream, activities: Sequence[Outage], max_wait_s: float) -> None:
        """A batch has `max_wait_s` to fill."""
        self._engine = engine
        self._stream = stream
        self._activities = tuple(activities)
        self._most_s = MOST_UNCLAIMED_S + max_wait_s

    async def stall(self) -> UnclaimedRequests | None:
        """What keeps requests from being claimed at present, None while nothing does. Raises Unavailable."""
        longest = max(self._activities, key=lambda activity: activity.lasts_s)
        lasts_s, reason, remedy = longest.lasts_s, longest.reason, longest.remedy
        if reason is None or remedy is None:
            return None
        oldest = await self._oldest()
        return UnclaimedRequests(lasts_s, 0.0 if oldest is None else oldest.waits_s, reason, remedy)

    async def unclaimed_s(self) -> float:
        """Seconds that the oldest request has waited although it could be taken up; 0 while nothing delays it.

        Raises Unavailable.
        """
        oldest = await self._oldest()
        if oldest is None:
            return 0.0
        is_kept = any(activity.reason is not None for activity in self._activities) or oldest.is_stuck(self._most_s)
        return oldest.waits_s if is_kept else 0.0

    async def _oldest(self) -> OldestRequest | None:
        async with transaction(self._engine) as connection:
            return await RequestRepository(connection).oldest(self._stream.model)
