"""Publishes the feed and sends webhooks, beside the unlearner: each event to each endpoint at least once, under one id.

Each endpoint has its own task, so a hanging one delays only its own events. Events are claimed before sending. If the
sender is killed before the result is recorded, they are sent again after the claim expires.
"""

import asyncio
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import orjson
import structlog
from standardwebhooks import Webhook

from service import failure_points
from service.db.engine import Engine
from service.db.transactions import transaction
from service.errors import LetheError, Unavailable
from service.failure_points import FailurePoint
from service.queue.outage import Backoff, Outage, run_until
from service.version import VERSION
from service.webhooks.deliveries import Claimed, DeliveryRepository, Outcome
from service.webhooks.endpoints import Endpoint, EndpointRepository, WebhookSecrets
from service.webhooks.feed import FeedRepository
from service.webhooks.posting import Answer, Networks, Poster, addresses_of
from service.webhooks.schemas import event_answer

#: Seconds between checks for events to publish or send.
_POLL_S = 1.0
#: Seconds between checks for late requests and old deliveries.
_LATE_S = 60.0
#: Concurrent events per endpoint.
_TOGETHER = 8
#: Waits between attempts: from seconds to hours.
_ATTEMPTS = Backoff(base_s=10.0, cap_s=6 * 3600.0)


@dataclass(frozen=True)
class Message:
    """A message to post."""

    #: The same at every attempt.
    id: UUID
    body: bytes


class WebhookSender:
    """Signs a message and posts it to an endpoint."""

    def __init__(self, keys: Path, networks: Networks, poster: Poster) -> None:
        self._secrets = WebhookSecrets(keys)
        self._networks = networks
        self._poster = poster

    async def send(self, endpoint: Endpoint, messages: Sequence[Message]) -> Sequence[Answer]:
        """Attempt to deliver all of `messages` concurrently; return the results. Raises nothing."""
        try:
            signer = Webhook(self._secrets.read(endpoint.id, endpoint.secret or b""))
            addresses = await addresses_of(endpoint.url, self._networks)
        except LetheError as error:
            return [Answer(f"Not sent: {error.detail}")] * len(messages)
        except (socket.gaierror, UnicodeError) as error:
            return [Answer(f"Not sent: its name is not found ({type(error).__name__}).")] * len(messages)
        except OSError as error:
            return [Answer(f"Not sent: {error.strerror or type(error).__name__}.")] * len(messages)
        posts = (self._poster.post(endpoint.url, addresses, _headers(one, signer), one.body) for one in messages)
        return await asyncio.gather(*posts)

    async def ping(self, endpoint: Endpoint) -> Answer:
        """Send a message without content; return the result."""
        ping_id, now = uuid4(), datetime.now(UTC).isoformat()
        body = orjson.dumps({"id": ping_id, "type": "ping", "timestamp": now, "data": {}})
        [answer] = await self.send(endpoint, [Message(ping_id, body)])
        return answer


class Webhooks:
    """The activity that publishes the feed and sends its events to every endpoint."""

    def __init__(
        self, engine: Engine, sender: WebhookSender, *, attempts: Backoff = _ATTEMPTS, claim_s: float = 60.0
    ) -> None:
        self._engine = engine
        self._sender = sender
        self._attempts = attempts
        self._claim_s = claim_s
        self._rng = random.Random()
        self._outage = Outage("webhooks")
        self._sending: dict[UUID, asyncio.Task[None]] = {}
        self._log = structlog.get_logger(__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish and send until `stop` is set, through any outage of Postgres."""
        await run_until(stop, self._run())

    async def publish(self) -> int:
        """Publish new events, and list them for every endpoint; return their number. Raises Unavailable."""
        published = 0
        while True:
            async with transaction(self._engine) as connection:
                page = await FeedRepository(connection).publish()
            published += page
            if not page:
                return published

    async def look_for_late(self) -> None:
        """Write events for late requests, and remove old deliveries. Raises Unavailable."""
        async with transaction(self._engine) as connection:
            await FeedRepository(connection).write_late()
        async with transaction(self._engine) as connection:
            await DeliveryRepository(connection).forget_old()

    async def send_due(self, endpoint: Endpoint) -> int:
        """Send an endpoint its next due events; return their number. Raises Unavailable."""
        async with transaction(self._engine) as connection:
            claimed = await DeliveryRepository(connection).claim(endpoint.id, _TOGETHER, self._claim_s)
        if not claimed:
            return 0
        failure_points.reached(FailurePoint.WEBHOOK_CLAIMED)
        messages = [Message(one.event.id, event_answer(one.event).model_dump_json().encode()) for one in claimed]
        answers = await self._sender.send(endpoint, messages)
        failure_points.reached(FailurePoint.WEBHOOK_ANSWERED)
        outcomes = [self._outcome(one, answer) for one, answer in zip(claimed, answers, strict=True)]
        gone = any(answer.is_gone for answer in answers)
        async with transaction(self._engine) as connection:
            given_up = await DeliveryRepository(connection).record(outcomes)
            if gone:
                await EndpointRepository(connection).remove(endpoint.id, "It answered 410, which ends the endpoint.")
        if gone:
            self._log.warning("webhook.endpoint_gone", endpoint=str(endpoint.id))
        if given_up:
            self._log.warning("webhook.given_up", endpoint=str(endpoint.id), events=len(given_up))
        return len(claimed)

    def _outcome(self, claimed: Claimed, answer: Answer) -> Outcome:
        if answer.is_delivered:
            return Outcome(claimed.id, answer.text, None)
        asked_s = min(answer.retry_after_s, self._attempts.cap_s)
        return Outcome(claimed.id, answer.text, max(asked_s, self._attempts.delay(claimed.attempts, self._rng)))

    async def _run(self) -> None:
        late_at = 0.0
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    if time.monotonic() >= late_at:
                        await self.look_for_late()
                        late_at = time.monotonic() + _LATE_S
                    await self.publish()
                    async with transaction(self._engine) as connection:
                        due = await EndpointRepository(connection).due()
                    for endpoint in due:
                        if endpoint.id not in self._sending:
                            sending = tasks.create_task(self._send_all(endpoint), name=f"webhook {endpoint.id}")
                            self._sending[endpoint.id] = sending
                    self._outage.over()
                    await asyncio.sleep(_POLL_S)
                except Unavailable as error:
                    await self._outage.pause(error)

    async def _send_all(self, endpoint: Endpoint) -> None:
        """Send an endpoint everything due. An outage of Postgres ends this; the main loop reports it."""
        try:
            while await self.send_due(endpoint):
                pass
        except Unavailable as error:
            self._log.warning("webhook.not_recorded", endpoint=str(endpoint.id), reason=error.detail)
        finally:
            del self._sending[endpoint.id]


def _headers(message: Message, signer: Webhook) -> dict[str, str]:
    """Return the headers of the Standard Webhooks specification."""
    now, message_id = datetime.now(UTC), str(message.id)
    return {
        "content-type": "application/json",
        "user-agent": f"lethe/{VERSION}",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": signer.sign(message_id, now, message.body.decode()),
    }
