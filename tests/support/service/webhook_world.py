"""A database with requests and endpoints, and the webhooks' sender."""

from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from service.db.transactions import transaction
from service.queue.outage import Backoff
from service.requests.moves import RequestMoves
from service.webhooks.endpoints import Endpoint, EndpointRepository, WebhookSecrets
from service.webhooks.feed import FeedEvent, FeedRepository
from service.webhooks.posting import Poster
from service.webhooks.sending import Webhooks, WebhookSender
from tests.support.service.db_harness import Database, Said

#: Retries a failed delivery almost immediately.
QUICK = Backoff(base_s=0.001, cap_s=0.002)
LOOPBACK = (ip_network("127.0.0.0/8"),)
DEADLINE = timedelta(days=30)


class WebhookWorld:
    """The unlearner's webhooks over a database."""

    def __init__(self, db: Database, home: Path) -> None:
        self.db = db
        self.keys = home / "keys"
        #: Secrets by endpoint, as given to its receiver.
        self.secrets: dict[UUID, str] = {}

    async def endpoint(self, url: str) -> Endpoint:
        """Create an endpoint."""
        endpoint_id = uuid4()
        secret, encrypted = WebhookSecrets(self.keys).make(endpoint_id, first=not self.secrets)
        self.secrets[endpoint_id] = secret
        async with transaction(self.db.engine) as connection:
            await EndpointRepository(connection).add(endpoint_id, url, encrypted)
            found = await EndpointRepository(connection).get(endpoint_id)
        assert found is not None
        return found

    def webhooks(self, *, attempt_s: float = 15.0, allowed: Any = LOOPBACK, **arguments: Any) -> Webhooks:
        """Return the webhooks; a failed attempt is retried immediately."""
        sender = WebhookSender(self.keys, allowed, Poster(attempt_s=attempt_s))
        return Webhooks(self.db.engine, sender, **({"attempts": QUICK} | arguments))

    async def complete(self, ids: Sequence[UUID], version: int = 1) -> None:
        """Take queued requests to `completed`."""
        batch = await self.db.applied(ids, version)
        await self.db.rows("UPDATE versions SET finished_at = now(), span_residual = 0 WHERE id = :id", id=batch)
        async with transaction(self.db.engine) as connection:
            await RequestMoves(connection).mark_completed({one: Said() for one in ids})

    async def feed(self, after: UUID | None = None, limit: int = 200) -> Sequence[FeedEvent]:
        """Return a page of the feed."""
        async with transaction(self.db.engine) as connection:
            return await FeedRepository(connection).page(after, None, limit)

    async def states(self) -> dict[str, int]:
        """Count the deliveries in each state."""
        rows = await self.db.rows(
            "SELECT CASE WHEN delivered_at IS NOT NULL THEN 'delivered' WHEN given_up_at IS NOT NULL THEN 'given_up' "
            "ELSE 'waiting' END AS state, count(*) FROM webhook_deliveries GROUP BY 1"
        )
        return {row["state"]: row["count"] for row in rows}

    async def answers(self) -> set[str]:
        """Return the recorded answers of the last attempts."""
        return {row["answer"] for row in await self.db.rows("SELECT answer FROM webhook_deliveries")}
