"""A database with a model, for queueing deletion requests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from sqlalchemy import text

from service.access.api_keys import ApiKeyRepository
from service.access.keyring import Keyring
from service.access.own_slots import OwnSlots
from service.db.engine import Engine, create_engine
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import Pointer, Targets
from service.domain.scopes import Scope
from service.predictions.version_rows import PointerRepository
from service.queue.stream import DeletionStream
from service.requests.intake import Intake, NewRequest

MODEL = "cora"


@dataclass(frozen=True)
class QueueWorld:
    """Shared objects of the queue's tests."""

    engine: Engine
    intake: Intake
    api_key_id: UUID

    async def accept(self, count: int) -> list[UUID]:
        """Accept `count` requests for one node each, and return their ids."""
        made: list[UUID] = []
        for number in range(count):
            targets = Targets(nodes=(str(number),), node_salts={str(number): "00"})
            new = NewRequest(MODEL, RequestKind.NODE, targets, None, self.api_key_id)
            made.append((await self.intake.accept(new)).request.id)
        return made

    async def waiting(self) -> int:
        """Count the requests in the outbox."""
        async with transaction(self.engine) as connection:
            return int(
                await connection.scalar(text("SELECT count(*) FROM outbox WHERE model = :model"), {"model": MODEL}) or 0
            )


@asynccontextmanager
async def queue_world(database_url: str, folder: Path) -> AsyncIterator[QueueWorld]:
    """Yield a migrated database with a model's pointer, a key, and an intake."""
    engine = create_engine(database_url)
    api_key_id = uuid4()
    try:
        async with transaction(engine) as connection:
            await ApiKeyRepository(connection).create(api_key_id, "tests", list(Scope), b"h" * 32)
            await PointerRepository(connection).create(Pointer(MODEL, 0, 0, "0-0", "0" * 64, "0" * 64))
        with OwnSlots.open(folder / "keys" / "requests") as slots:
            intake = Intake(engine, slots, Keyring.open(folder / "keys"), max_queued_nodes=None)
            yield QueueWorld(engine, intake, api_key_id)
            await intake.close()
    finally:
        await engine.dispose()


async def claim_all(stream: DeletionStream, wanted: int, consumer: str = "test") -> list[UUID]:
    """Return the ids of the first `wanted` different requests that arrive, in order."""
    found: dict[UUID, None] = {}
    while len(found) < wanted:
        for entry in await stream.claim(consumer, count=1000, block_ms=200):
            found[entry.request_id] = None
    return list(found)
