"""How many queued nodes a model has, kept close enough to refuse work without counting for every request."""

import time

from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.requests import RequestRepository

#: How long (seconds) a count is used before it is read again.
_FRESH_SECONDS = 0.25


class QueueDepth:
    """Decides which new requests fit under `limit` queued nodes and edges; None admits everything."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._counts: dict[str, tuple[int, float]] = {}

    async def admits(self, conn: AsyncConnection, model: str, count: int) -> bool:
        """Tell whether `count` more fit, and count them if so."""
        if self.limit is None:
            return True
        queued, read_at = self._counts.get(model, (0, float("-inf")))
        if time.monotonic() - read_at > _FRESH_SECONDS:
            queued, read_at = await RequestRepository(conn).queued_nodes(model), time.monotonic()
        admitted = queued + count <= self.limit
        self._counts[model] = (queued + count if admitted else queued, read_at)
        return admitted
