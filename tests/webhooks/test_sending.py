"""Webhooks: each event to each receiver, independent of others; nothing lost, blocked or sent elsewhere."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from service import failure_points
from service.domain.states import Cause
from service.failure_points import FailurePoint
from service.queue.outage import Backoff
from service.webhooks.sending import Webhooks
from tests.support.service.db_harness import until
from tests.support.service.receivers import (
    Behaviour,
    answering,
    closing,
    dripping,
    endless,
    flooding,
    hanging,
    receiver,
)
from tests.support.service.webhook_world import WebhookWorld


@asynccontextmanager
async def running(webhooks: Webhooks) -> AsyncIterator[None]:
    """Run the activity for the block."""
    stop = asyncio.Event()
    task = asyncio.create_task(webhooks.run(stop))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(120):
            await task


async def test_an_event_is_signed_as_the_specification_says(world: WebhookWorld) -> None:
    async with receiver() as one:
        endpoint = await world.endpoint(one.url)
        request_id = await world.db.accept()
        webhooks = world.webhooks()
        await webhooks.publish()
        assert await webhooks.send_due(endpoint) == 1
        [received] = one.received
        verified = Webhook(world.secrets[endpoint.id]).verify(received.body, received.headers)
        [event] = await world.feed()
        assert verified["id"] == received.id == str(event.id)
        assert verified["type"] == "deletion.accepted"
        assert UUID(verified["data"]["request"]) == request_id
        other = await world.endpoint(one.url)
        with pytest.raises(WebhookVerificationError):
            Webhook(world.secrets[other.id]).verify(received.body, received.headers)
    assert await world.states() == {"delivered": 1}


async def test_each_endpoint_gets_what_is_published_after_it_was_added(world: WebhookWorld) -> None:
    async with receiver() as first, receiver() as second:
        webhooks = world.webhooks()
        await world.db.accept()
        await webhooks.publish()
        endpoints = [await world.endpoint(first.url)]
        await world.db.accept()
        await webhooks.publish()
        endpoints.append(await world.endpoint(second.url))
        await world.db.accept()
        await webhooks.publish()
        for endpoint in endpoints:
            while await webhooks.send_due(endpoint):
                pass
        ids = [str(event.id) for event in await world.feed()]
        assert sorted(first.ids) == sorted(ids[1:])
        assert second.ids == ids[2:]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("behave", "said"),
    [
        (answering("500 No"), "It answered 500."),
        (answering("404 No"), "It answered 404."),
        (closing, "It cannot be reached: Server disconnected without sending a response.."),
        (answering("302 Found\r\nLocation: http://127.0.0.1:1/"), "It answered 302: redirects are not followed."),
    ],
)
async def test_what_a_receiver_does_not_take_is_sent_again_under_the_same_id(
    world: WebhookWorld, behave: Behaviour, said: str
) -> None:
    async with receiver(behave) as one:
        await world.endpoint(one.url)
        async with running(world.webhooks()):
            await world.db.accept()
            await until(lambda: _several(one.ids))
            assert await world.answers() == {said}
            assert await world.states() == {"waiting": 1}
            one.behave = answering("200 OK", "ok")
            await until(lambda: _all_delivered(world))
        assert len(set(one.ids)) == 1


async def test_a_redirect_is_not_followed(world: WebhookWorld) -> None:
    async with receiver() as elsewhere, receiver(answering(f"307 No\r\nLocation: {elsewhere.url}")) as one:
        await world.endpoint(one.url)
        async with running(world.webhooks()):
            await world.db.accept()
            await until(lambda: _several(one.ids))
        assert elsewhere.received == []


@pytest.mark.ci
@pytest.mark.parametrize("behave", [hanging, dripping], ids=lambda one: one.__name__)
async def test_a_receiver_that_hangs_blocks_no_other(world: WebhookWorld, behave: Behaviour) -> None:
    async with receiver(behave) as hangs, receiver() as good:
        await world.endpoint(hangs.url)
        await world.endpoint(good.url)
        async with running(world.webhooks(attempt_s=3600.0)):
            ids = [await world.db.accept() for _ in range(20)]
            await until(lambda: _delivered(world, len(ids)))
            # All pending deliveries to the hanging one: a few, rather than one more for each event.
            assert 1 <= len(hangs.received) <= 8
    assert await world.states() == {"delivered": 20, "waiting": 20}


async def test_a_name_server_that_hangs_keeps_no_other_endpoint_waiting(
    world: WebhookWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, asked = Event(), Event()
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **named: Any) -> Any:
        if host == "hangs.test":
            asked.set()
            released.wait()
            raise socket.gaierror
        return look_up(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    async with receiver() as good:
        await world.endpoint("http://hangs.test/hook")
        await world.endpoint(good.url)
        try:
            async with running(world.webhooks()):
                for _ in range(20):
                    await world.db.accept()
                await until(lambda: _delivered(world, 20))
                assert asked.is_set()
        finally:
            released.set()
    assert await world.states() == {"delivered": 20, "waiting": 20}


async def test_an_attempt_ends_in_time(world: WebhookWorld) -> None:
    async with receiver(hanging) as one:
        await world.endpoint(one.url)
        async with running(world.webhooks(attempt_s=0.05)):
            await world.db.accept()
            await until(lambda: _several(one.ids))
            assert await world.answers() == {"It did not answer within 0.05 s."}


async def test_no_more_is_read_than_an_answers_head_may_have(world: WebhookWorld) -> None:
    async with receiver(flooding) as floods, receiver(endless) as talks:
        await world.endpoint(floods.url)
        await world.endpoint(talks.url)
        async with running(world.webhooks(attempt_s=3600.0)):
            await world.db.accept()
            await until(lambda: _several(floods.ids))
            await until(lambda: _delivered(world, 1))
        assert len(talks.received) == 1
        assert "It answered 200." in await world.answers()
        assert any("more than 65536 bytes" in answer for answer in await world.answers() if answer)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/hook",
        "http://localhost:{port}/hook",
        "http://2130706433:{port}/hook",
        "http://0x7f.1:{port}/hook",
        "http://0.0.0.0:{port}/hook",
        "http://[::ffff:127.0.0.1]:{port}/hook",
        "https://127.0.0.1:{port}/hook",
    ],
)
async def test_nothing_is_sent_to_a_private_address_unless_it_is_allowed(world: WebhookWorld, url: str) -> None:
    async with receiver() as one:
        endpoint = await world.endpoint(url.format(port=one.port))
        await world.db.accept()
        webhooks = world.webhooks(allowed=())
        await webhooks.publish()
        await webhooks.send_due(endpoint)
        [answer] = await world.answers()
        assert answer.startswith("Not sent: ")
        assert one.received == []
    assert await world.states() == {"waiting": 1}


async def test_a_receiver_that_is_gone_is_sent_nothing_more(world: WebhookWorld) -> None:
    async with receiver(answering("410 Gone")) as one:
        endpoint = await world.endpoint(one.url)
        webhooks = world.webhooks()
        await world.db.accept()
        await webhooks.publish()
        await webhooks.send_due(endpoint)
        await world.db.accept()
        await webhooks.publish()
        assert await webhooks.send_due(endpoint) == 0
        assert len(one.received) == 1
    assert await world.states() == {"given_up": 1}
    assert await world.db.value("SELECT secret IS NULL FROM webhook_endpoints")


async def test_a_receiver_that_asks_for_time_gets_it(world: WebhookWorld) -> None:
    async with receiver(answering("503 Later\r\nRetry-After: 3600")) as one:
        endpoint = await world.endpoint(one.url)
        await world.db.accept()
        webhooks = world.webhooks(attempts=Backoff(base_s=0.001, cap_s=7200.0))
        await webhooks.publish()
        await webhooks.send_due(endpoint)
    wait_s = await world.db.value("SELECT extract(epoch FROM next_attempt_at - now())::float FROM webhook_deliveries")
    assert 3500 < wait_s <= 3600


async def test_after_three_days_an_event_is_given_up(world: WebhookWorld) -> None:
    async with receiver(answering("500 No")) as one:
        endpoint = await world.endpoint(one.url)
        await world.db.accept()
        webhooks = world.webhooks()
        await webhooks.publish()
        await world.db.rows("UPDATE webhook_deliveries SET created_at = now() - interval '71 hours 59 minutes'")
        await webhooks.send_due(endpoint)
        assert await world.states() == {"waiting": 1}
        await world.db.rows(
            "UPDATE webhook_deliveries SET created_at = now() - interval '72 hours', next_attempt_at = now()"
        )
        await webhooks.send_due(endpoint)
    assert await world.states() == {"given_up": 1}


class Killed(BaseException):
    """The process has ended."""


@pytest.mark.parametrize("point", [FailurePoint.WEBHOOK_CLAIMED, FailurePoint.WEBHOOK_ANSWERED])
async def test_killed_before_the_record_it_is_delivered_again_under_the_same_id(
    world: WebhookWorld, point: FailurePoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(where: FailurePoint, cause: Cause | None = None) -> None:
        if where is point:
            raise Killed

    async with receiver() as one:
        endpoint = await world.endpoint(one.url)
        await world.db.accept()
        webhooks = world.webhooks(claim_s=0.001)
        await webhooks.publish()
        with monkeypatch.context() as patched:
            patched.setattr(failure_points, "reached", reached)
            with pytest.raises(Killed):
                await webhooks.send_due(endpoint)
        sent = len(one.received)
        assert sent == (point is FailurePoint.WEBHOOK_ANSWERED)
        assert await world.states() == {"waiting": 1}
        async with running(world.webhooks()):
            await until(lambda: _all_delivered(world))
        assert len(one.ids) == sent + 1
        assert len(set(one.ids)) == 1


async def test_a_lost_key_is_reported_and_loses_nothing(world: WebhookWorld) -> None:
    async with receiver() as one:
        endpoint = await world.endpoint(one.url)
        await world.db.accept()
        webhooks = world.webhooks()
        await webhooks.publish()
        key = world.keys / "unlearner" / "webhooks.key"
        kept = key.read_text()
        key.write_text("0" * 64)
        await webhooks.send_due(endpoint)
        [answer] = await world.answers()
        assert "is not the key that the webhooks' secrets were encrypted with" in answer
        assert one.received == []
        key.write_text(kept)
        async with running(webhooks):
            await until(lambda: _all_delivered(world))


async def test_no_node_is_named_and_nothing_measured_is_sent(world: WebhookWorld) -> None:
    """Every sent body, walked completely: names of members, and their content."""
    nodes = ["node-of-anna", "ålesund 39", "user/38"]
    async with receiver() as one:
        await world.endpoint(one.url)
        ids = [await world.db.accept(node) for node in nodes]
        await world.complete(ids)
        await world.db.rows("UPDATE requests SET received_at = received_at - interval '60 days'")
        failed = await world.db.accept(*nodes)
        await world.db.rows(
            "UPDATE requests SET status = 'failed', failed_at = now(), failure = 'node-of-anna is unknown', "
            "received_at = received_at - interval '60 days' WHERE id = :id",
            id=failed,
        )
        async with running(world.webhooks()):
            await until(lambda: _has(one.received, 3 * len(nodes) + 3))
        bodies = [json.loads(received.body) for received in one.received]
        assert {body["type"] for body in bodies} == {
            "deletion.accepted", "deletion.applied", "deletion.completed", "deletion.failed", "deletion.late",
        }  # fmt: skip
        for received, body in zip(one.received, bodies, strict=True):
            assert body.keys() == {"id", "type", "timestamp", "data"}
            assert body["data"].keys() == {"request", "reference", "status", "deadline"}
            assert body["data"]["request"] in {*map(str, ids), str(failed)}
            assert body["data"]["reference"] == "DSR-17"
            whole = received.head + received.body.decode()
            assert not [node for node in (*nodes, "anna", "lesund") if node in whole]


async def _has(received: Sequence[object], count: int) -> bool:
    return len(received) >= count


async def _several(ids: list[str]) -> bool:
    return len(ids) >= 3


async def _all_delivered(world: WebhookWorld) -> bool:
    return set(await world.states()) == {"delivered"}


async def _delivered(world: WebhookWorld, count: int) -> bool:
    return (await world.states()).get("delivered") == count
