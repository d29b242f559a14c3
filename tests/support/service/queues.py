"""Reading the queue of deletion requests."""

from uuid import UUID

from service.queue.stream import DeletionStream


async def claim_all(stream: DeletionStream, wanted: int, consumer: str = "test") -> list[UUID]:
    """Return the ids of the first `wanted` different requests that arrive, in order."""
    found: dict[UUID, None] = {}
    while len(found) < wanted:
        for entry in await stream.claim(consumer, count=1000, block_ms=200):
            found[entry.request_id] = None
    return list(found)
