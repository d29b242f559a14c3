"""`GET /events` and `GET /webhooks/deliveries`: who may read what, page by page."""

from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from sqlalchemy import text

from service.db.transactions import transaction
from service.domain.scopes import Scope
from service.webhooks.endpoints import EndpointRepository
from service.webhooks.feed import FeedRepository
from tests.support.service.api_harness import NODES, Api
from tests.support.service.bodies import GRAPH_WRITER, WRITER, new_node, node_body, refused


async def publish(api: Api) -> None:
    async with transaction(api.engine) as connection:
        await FeedRepository(connection).publish()


async def ask(writer: httpx2.AsyncClient, node: str, reference: str | None = "DSR-20") -> str:
    answer = await writer.post("/deletions", json=node_body(node, reference=reference))
    assert answer.status_code == 202
    return str(answer.json()["id"])


async def events(client: httpx2.AsyncClient, **window: Any) -> list[dict[str, Any]]:
    answer = await client.get("/events", params=window)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["events"]
    return found


async def test_a_key_reads_of_its_own_requests_and_an_auditor_of_all(api: Api) -> None:
    one, two, auditor = await api.client(*WRITER), await api.client(*WRITER), await api.client(Scope.AUDIT_READ)
    first, second = await ask(one, "1"), await ask(two, "2")
    await api.complete(first)
    await publish(api)
    assert [(event["type"], event["data"]["status"]) for event in await events(one)] == [
        ("deletion.accepted", "queued"),
        ("deletion.applied", "applied"),
        ("deletion.completed", "completed"),
    ]
    assert [event["data"]["request"] for event in await events(two)] == [second]
    assert len(await events(auditor)) == 4
    # As everywhere, the reference of a completed request is for the audit alone.
    assert {event["data"]["reference"] for event in await events(one)} == {None}
    assert {event["data"]["reference"] for event in await events(auditor)} == {"DSR-20"}
    # Another's event is not a valid cursor, and its existence is not revealed.
    refused(await two.get("/events", params={"after": (await events(one))[0]["id"]}), 400, "malformed-cursor")


async def test_what_joins_has_events_of_its_own_type(api: Api) -> None:
    writer = await api.client(*GRAPH_WRITER)
    await writer.post("/additions", json={"nodes": [new_node("anna")]})
    await writer.post("/corrections", json={"nodes": [new_node("12")]})
    await publish(api)
    assert [event["type"] for event in await events(writer)] == ["addition.accepted", "correction.accepted"]


async def test_a_key_that_may_only_write_reads_nothing(api: Api) -> None:
    for scope in (Scope.DELETIONS_WRITE, Scope.PREDICTIONS_READ):
        client = await api.client(scope)
        refused(await client.get("/events"), 403, "missing-scope")
    refused(await (await api.client(*WRITER)).get("/webhooks/deliveries"), 403, "missing-scope")


async def test_reading_on_gives_each_event_once(api: Api) -> None:
    writer = await api.client(*WRITER)
    asked: list[str] = []
    seen: list[dict[str, Any]] = []
    for node in NODES[:9]:
        asked.append(await ask(writer, node))
        await publish(api)
        if len(asked) % 3 == 0:
            seen += await events(writer, **({"after": seen[-1]["id"]} if seen else {}), limit=2)
    while page := await events(writer, after=seen[-1]["id"], limit=2):
        seen += page
    assert [event["data"]["request"] for event in seen] == asked
    assert len({event["id"] for event in seen}) == len(seen)


@pytest.mark.parametrize("window", [{"after": "x"}, {"limit": 0}, {"limit": 201}, {"before": "1"}])
async def test_a_window_that_is_none_is_refused(api: Api, window: dict[str, Any]) -> None:
    client = await api.client(Scope.AUDIT_READ)
    refused(await client.get("/events", params=window), 422, "invalid-request")


async def test_deliveries_are_listed_newest_first_without_the_path_of_an_address(api: Api) -> None:
    auditor, writer = await api.client(Scope.AUDIT_READ), await api.client(*WRITER)
    async with transaction(api.engine) as connection:
        await EndpointRepository(connection).add(uuid4(), "https://dsr.example:8443/hook/secret-token", b"x" * 60)
    asked = []
    for node in NODES[:5]:
        asked.append(await ask(writer, node))
        await publish(api)
    async with transaction(api.engine) as connection:
        await connection.execute(
            text(
                "UPDATE webhook_deliveries SET next_attempt_at = NULL, given_up_at = now(), "
                "answer = 'It answered 500.' WHERE event_id = (SELECT id FROM feed WHERE request_id = :id)"
            ),
            {"id": UUID(asked[0])},
        )
    found: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    while True:
        page = (await auditor.get("/webhooks/deliveries", params={"limit": 2} | cursor)).json()
        found += page["deliveries"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
        other = await auditor.get("/webhooks/deliveries", params=cursor | {"state": "waiting"})
        refused(other, 400, "malformed-cursor")
    assert [one["event"]["data"]["request"] for one in found] == asked[::-1]
    assert {one["endpoint"] for one in found} == {"https://dsr.example:8443"}
    assert [one["state"] for one in found] == ["waiting"] * 4 + ["given_up"]
    given_up = (await auditor.get("/webhooks/deliveries", params={"state": "given_up"})).json()["deliveries"]
    assert [one["answer"] for one in given_up] == ["It answered 500."]
