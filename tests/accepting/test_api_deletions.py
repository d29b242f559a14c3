"""Deletion requests: accepted, refused, and never half written."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from service.db.transactions import transaction
from service.domain.scopes import Scope
from service.domain.states import EventType
from service.log.events import EventRepository
from service.requests.moves import RequestMoves
from tests.support.service.api_harness import NODES, Api, serving
from tests.support.service.bodies import WRITER, node_body, refused


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path, max_nodes_per_request=30, max_queued_nodes=60) as api:
        yield api


@pytest.fixture
async def writer(api: Api) -> httpx2.AsyncClient:
    return await api.client(*WRITER)


async def test_a_request_is_accepted_durably_and_can_be_followed(api: Api, writer: httpx2.AsyncClient) -> None:
    response = await writer.post("/deletions", json=node_body("12", "user/38", reference="DSR-17"))
    assert response.status_code == 202
    accepted = response.json()
    assert response.headers["location"] == accepted["links"]["self"] == f"/deletions/{accepted['id']}"
    assert (accepted["status"], accepted["kind"], accepted["count"]) == ("queued", "node", 2)
    assert accepted["received_at"].endswith("Z")
    assert accepted["already_deleted"] == {}
    salts = [*accepted["salts"]["nodes"].values(), accepted["salts"]["reference"]]
    assert list(accepted["salts"]["nodes"]) == ["12", "user/38"]
    assert all(len(bytes.fromhex(salt)) >= 16 for salt in salts)
    assert len(set(salts)) == 3

    seen = (await writer.get(response.headers["location"])).json()
    assert (seen["id"], seen["status"], seen["reference"]) == (accepted["id"], "queued", "DSR-17")
    assert seen["audit"] is None
    assert "12" not in seen.values()
    assert await api.count("outbox") == 1


BAD_BODIES: list[tuple[Any, list[str | int]]] = [
    ({"kind": "node", "nodes": []}, ["body", "node", "nodes"]),
    ({"kind": "node"}, ["body", "node", "nodes"]),
    ({"kind": "node", "nodes": "12"}, ["body", "node", "nodes"]),
    ({"kind": "node", "nodes": [12]}, ["body", "node", "nodes", 0]),
    ({"kind": "node", "nodes": ["12", None]}, ["body", "node", "nodes", 1]),
    ({"kind": "node", "nodes": [""]}, ["body", "node", "nodes", 0]),
    ({"kind": "node", "nodes": ["x" * 513]}, ["body", "node", "nodes", 0]),
    ({"kind": "node", "nodes": ["12"], "reference": 17}, ["body", "node", "reference"]),
    ({"kind": "node", "nodes": ["12"], "reference": ""}, ["body", "node", "reference"]),
    ({"kind": "node", "nodes": ["12"], "reference": "a\u0000b"}, ["body", "node", "reference"]),
    ({"kind": "node", "nodes": ["12"], "note": "?"}, ["body", "node", "note"]),
    ({"kind": "node", "edges": [["1", "2"]]}, ["body", "node", "nodes"]),
    ({"kind": "edge", "edges": [["1"]]}, ["body", "edge", "edges", 0]),
    ({"kind": "edge", "edges": [["1", "2", "3"]]}, ["body", "edge", "edges", 0]),
    ({"kind": "hyperedge", "nodes": ["12"]}, ["body"]),
    ({"nodes": ["12"]}, ["body"]),
    (["12"], ["body"]),
    ("12", ["body"]),
    (None, ["body"]),
]


async def test_a_body_that_does_not_fit_the_schema_names_the_place(api: Api, writer: httpx2.AsyncClient) -> None:
    for body, place in BAD_BODIES:
        document = refused(await writer.post("/deletions", json=body), 422, "invalid-request")
        assert place in [fault["loc"] for fault in document["errors"]], (body, document)
    as_json = {"Content-Type": "application/json"}
    more = ",".join(f'"{member}":1' for member in ("\\ud800", *"abcdefgh"))
    for lone_surrogate in ('{"kind":"node","nodes":["\\ud800"]}', f'{{"kind":"node","nodes":["1"],{more}}}'):
        response = await writer.post("/deletions", content=lone_surrogate.encode(), headers=as_json)
        refused(response, 422, "invalid-request")
    assert await api.count("requests") == 0


async def test_duplicates_in_the_list_are_named(api: Api, writer: httpx2.AsyncClient) -> None:
    response = await writer.post("/deletions", json=node_body("1", "2", "1", "3", "2"))
    assert refused(response, 422, "duplicate-targets")["duplicates"] == ["1", "2"]
    assert await api.count("requests") == 0


async def test_all_unknown_nodes_are_named_and_nothing_is_accepted(api: Api, writer: httpx2.AsyncClient) -> None:
    response = await writer.post("/deletions", json=node_body("nobody", "12", "x\u0000y", "99"))
    assert refused(response, 404, "unknown-nodes")["unknown"] == ["nobody", "x\u0000y", "99"]
    assert await api.count("requests") == 0


async def test_more_nodes_than_a_request_may_name_are_too_large(api: Api, writer: httpx2.AsyncClient) -> None:
    assert refused(await writer.post("/deletions", json=node_body(*NODES)), 413, "too-large")["max_nodes"] == 30
    assert await api.count("requests") == 0


async def test_a_full_queue_asks_to_come_back(api: Api, writer: httpx2.AsyncClient) -> None:
    first = await writer.post("/deletions", json=node_body(*NODES[:30]), headers={"Idempotency-Key": "first"})
    assert first.status_code == 202
    for _ in range(3):
        last = await writer.post("/deletions", json=node_body(*NODES[:30]))
    document = refused(last, 429, "queue-full")
    assert int(last.headers["retry-after"]) == document["retry_after"] >= 1
    replay = await writer.post("/deletions", json=node_body(*NODES[:30]), headers={"Idempotency-Key": "first"})
    assert replay.json() == first.json()


async def test_the_same_idempotency_key_and_body_give_the_same_answer(api: Api, writer: httpx2.AsyncClient) -> None:
    headers = {"Idempotency-Key": "order-1"}
    first = await writer.post("/deletions", json=node_body("1", "2", reference="R"), headers=headers)
    reordered = b' {"reference":"R", "nodes":["1","2"],"kind":"node"} '
    again = await writer.post("/deletions", content=reordered, headers=headers | {"Content-Type": "application/json"})
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json() == first.json()
    assert await api.count("requests") == 1


async def test_the_same_idempotency_key_with_another_body_is_a_conflict(api: Api, writer: httpx2.AsyncClient) -> None:
    headers = {"Idempotency-Key": "order-1"}
    await writer.post("/deletions", json=node_body("1"), headers=headers)
    for body in (node_body("2"), node_body("1", reference="R"), node_body("1", "2")):
        refused(await writer.post("/deletions", json=body, headers=headers), 409, "conflict")
    other = await api.client(*WRITER)
    assert (await other.post("/deletions", json=node_body("2"), headers=headers)).status_code == 202
    assert await api.count("requests") == 2


async def test_of_a_partly_deleted_list_only_the_rest_is_queued(api: Api, writer: httpx2.AsyncClient) -> None:
    earlier = (await writer.post("/deletions", json=node_body("1"))).json()["id"]
    await api.forget(["1"], earlier)
    headers = {"Idempotency-Key": "again"}
    response = await writer.post("/deletions", json=node_body("1", "2", "3"), headers=headers)
    accepted = response.json()
    assert (response.status_code, accepted["status"], accepted["count"]) == (202, "queued", 2)
    assert accepted["already_deleted"] == {"1": earlier}
    assert set(accepted["salts"]["nodes"]) == {"2", "3"}
    assert (await writer.post("/deletions", json=node_body("1", "2", "3"), headers=headers)).json() == accepted


async def test_nodes_that_were_all_deleted_are_named_and_left_to_the_unlearner_to_complete(
    api: Api, writer: httpx2.AsyncClient
) -> None:
    earlier = (await writer.post("/deletions", json=node_body("1", "2", reference="R"))).json()["id"]
    await api.forget(["1", "2"], earlier)
    for done in (False, True):
        if done:
            await api.complete(earlier)
        headers = {"Idempotency-Key": f"again-{done}"}
        response = await writer.post("/deletions", json=node_body("1", "2"), headers=headers)
        accepted = response.json()
        assert (response.status_code, accepted["status"], accepted["count"]) == (202, "queued", 2)
        assert accepted["already_deleted"] == {"1": earlier, "2": earlier}
        assert (await writer.get(accepted["links"]["self"])).json()["status"] == "queued"
        assert set(accepted["salts"]["nodes"]) == {"1", "2"}
    # Any events were written by the unlearner.
    assert await api.count("events") == 2


async def test_a_queued_request_can_be_cancelled_once(api: Api, writer: httpx2.AsyncClient) -> None:
    link = (await writer.post("/deletions", json=node_body("1"))).json()["links"]["self"]
    cancelled = await writer.delete(link)
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert cancelled.json()["cancelled_at"] is not None
    refused(await writer.delete(link), 409, "conflict")
    assert (await writer.get(link)).json()["status"] == "cancelled"
    assert await api.count("outbox") == 0


async def test_an_operator_can_have_a_failed_request_tried_again(api: Api, writer: httpx2.AsyncClient) -> None:
    accepted = (await writer.post("/deletions", json=node_body("1"))).json()
    link, request_id = accepted["links"]["self"], UUID(accepted["id"])
    operator = await api.client(*WRITER, Scope.AUDIT_READ)
    refused(await operator.post(f"{link}/retry"), 409, "conflict")
    async with transaction(api.engine) as connection:
        await RequestMoves(connection).mark_failed(request_id, "It could not be computed.")
        await connection.exec_driver_sql("DELETE FROM outbox")
    refused(await writer.post(f"{link}/retry"), 403, "missing-scope")
    assert (await writer.get(link)).json()["failure"] == "It could not be computed."

    again = await operator.post(f"{link}/retry")
    assert (again.status_code, again.json()["status"], again.json()["failure"]) == (200, "queued", None)
    assert await api.count("outbox") == 1
    await api.complete(request_id)
    assert (await writer.get(link)).json()["status"] == "completed"
    async with transaction(api.engine) as connection:
        events = [event.type for event in await EventRepository(connection).of_request(request_id)]
    assert events == [EventType.FAILED, EventType.APPLIED, EventType.COMPLETED]
    refused(await operator.post(f"/deletions/{uuid4()}/retry"), 404, "not-found")


async def test_a_failed_request_whose_key_is_lost_is_not_tried_again(api: Api, writer: httpx2.AsyncClient) -> None:
    accepted = (await writer.post("/deletions", json=node_body("1"))).json()
    async with transaction(api.engine) as connection:
        await RequestMoves(connection).mark_failed(UUID(accepted["id"]), "It could not be read.")
    for page in api.request_keys.held():
        api.request_keys.destroy(page)
    operator = await api.client(*WRITER, Scope.AUDIT_READ)
    document = refused(await operator.post(f"{accepted['links']['self']}/retry"), 409, "conflict")
    assert "send a new request" in document["remedy"]
    assert (await writer.get(accepted["links"]["self"])).json()["status"] == "failed"


async def test_nobody_cancels_the_request_of_another_key(api: Api, writer: httpx2.AsyncClient) -> None:
    link = (await writer.post("/deletions", json=node_body("1"))).json()["links"]["self"]
    other = await api.client(*WRITER)
    refused(await other.delete(link), 404, "not-found")
    auditor = await api.client(*WRITER, Scope.AUDIT_READ)
    assert (await auditor.delete(link)).status_code == 200


async def test_no_id_and_no_reference_is_ever_logged(
    api: Api, writer: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, logger="httpx2")  # the client of this test, which is free to log
    reader = await api.client(Scope.PREDICTIONS_READ)
    secret = "person-4711"
    await writer.post("/deletions", json=node_body(secret, reference="DSR-4711"))
    await writer.post("/deletions", json={"kind": "node", secret: 1})
    await writer.post("/deletions", json=node_body("user/38", reference="DSR-4711"))
    await reader.get(f"/predict/{secret}")
    await reader.get("/predict/user%2F38")
    await reader.get(f"/nowhere/{secret}")
    await reader.post("/predict", json={"nodes": [secret, "user/38"]})
    output = caplog.text + "".join(capsys.readouterr()) + api.lines.getvalue()
    assert "/predict/{node" in output
    for text in (secret, "4711", "user/38", "user%2F38"):
        assert text not in output
