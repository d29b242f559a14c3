"""How many queued nodes a model has, of each key, kept close enough to refuse work without counting every time."""

import time
from collections import Counter
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from service.deletions.intake.refusals import queue_full
from service.deletions.requests import RequestRepository
from service.errors import QueueFull

#: How long (seconds) a count is used before it is read again.
_FRESH_SECONDS = 0.25
#: How many keys can fill their share of the queue.
_KEYS = 4


class QueueDepth:
    """Decides which new requests fit under `limit` queued nodes and edges of one key, and `_KEYS` times as many of all.

    So a key that fills its own share leaves room for the others. No limit (None) admits everything.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        #: By model: what is queued by key, and when that was read.
        self._counts: dict[str, tuple[Counter[UUID], float]] = {}

    async def refusal(self, conn: AsyncConnection, model: str, api_key_id: UUID, count: int) -> QueueFull | None:
        """Count `count` more of a key if they fit, or say why they do not."""
        if self._limit is None:
            return None
        queued, read_at = self._counts.get(model, (Counter[UUID](), float("-inf")))
        if time.monotonic() - read_at > _FRESH_SECONDS:
            queued = Counter(await RequestRepository(conn).queued_by_key(model))
            self._counts[model] = queued, time.monotonic()
        if queued[api_key_id] + count > self._limit:
            return queue_full(f"More than {self._limit} nodes asked for with this API key")
        if queued.total() + count > _KEYS * self._limit:
            return queue_full(f"More than {_KEYS * self._limit} nodes, of all API keys together,")
        queued[api_key_id] += count
        return None

    def read_again(self) -> None:
        """Forget all counts: some of what they have in them may not have been stored."""
        self._counts.clear()
