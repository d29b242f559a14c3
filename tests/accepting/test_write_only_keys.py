"""A key that may only request deletions learns nothing about the graph or about deleted nodes."""

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import httpx2
import pytest

from lethe_client import DeletionStopped
from lethe_client.results import Deletion
from service.access.api_keys import ApiKeyRepository, new_api_key
from service.access.keyring import Keyring
from service.access.limits import PROBES
from service.db.engine import create_engine
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.scopes import Scope
from service.requests.holds import Behind, Holds
from service.requests.moves import RequestMoves
from tests.support.models.trained_models import SMALL, Models
from tests.support.processes.lethe_process import LetheProcess
from tests.support.service.api_harness import NODES, Api
from tests.support.service.bodies import edge_body, features_body, node_body, refused

#: The same answer, whatever is wrong.
UNKNOWN = (404, "unknown-targets")


@pytest.fixture
async def writer(api: Api) -> httpx2.AsyncClient:
    return await api.client(Scope.DELETIONS_WRITE)


@pytest.fixture
async def reader(api: Api) -> httpx2.AsyncClient:
    """A client whose key may read."""
    return await api.client(Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)


@pytest.fixture
def lethe(serve: Callable[..., LetheProcess], models: Models) -> LetheProcess:
    """A complete Lethe."""
    return serve(models.trained(SMALL))


@pytest.fixture
async def writing(lethe: LetheProcess, database_url: str) -> AsyncIterator[dict[Scope, httpx2.Client]]:
    """Yield clients of it that may only write, by their scope."""
    keyring, engine = Keyring.open(lethe.home / "keys"), create_engine(database_url)
    with contextlib.ExitStack() as stack:
        clients = {}
        for scope in (Scope.DELETIONS_WRITE, Scope.GRAPH_WRITE):
            made = new_api_key()
            async with transaction(engine) as connection:
                keys = ApiKeyRepository(connection)
                await keys.create(made.id, scope, [scope], keyring.api_key_hash(made.text))
            headers = {"Authorization": f"Bearer {made.text}"}
            clients[scope] = stack.enter_context(httpx2.Client(base_url=lethe.url, headers=headers, timeout=120.0))
        await engine.dispose()
        yield clients


def anonymous(answer: httpx2.Response) -> dict[str, Any]:
    """Return an answer without its variable parts: the id, the time, the random salts, and their number."""
    document: dict[str, Any] = answer.json()
    return document | {
        "id": "",
        "received_at": "",
        "due_at": "",
        "links": "",
        "salts": sorted(document["salts"]["nodes"]),
    }


async def gone(api: Api, reader: httpx2.AsyncClient, subject: Any, kind: RequestKind = RequestKind.NODE) -> None:
    """Delete `subject` with the authorised key."""
    bodies: dict[RequestKind, Callable[..., dict[str, Any]]] = {
        RequestKind.NODE: node_body,
        RequestKind.FEATURES: features_body,
        RequestKind.EDGE: edge_body,
    }
    request = (await reader.post("/deletions", json=bodies[kind](subject))).json()["id"]
    await api.forget([subject], request, kind)
    await api.complete(request)


async def test_a_refusal_does_not_say_for_what(
    api: Api, writer: httpx2.AsyncClient, reader: httpx2.AsyncClient
) -> None:
    await gone(api, reader, "5")
    pairs = list(itertools.combinations(NODES[:20], 2))
    refusals = [
        await writer.post("/deletions", json=body)
        for body in (
            edge_body(*pairs, ("nobody", "1")),
            edge_body(("1", "2"), ("nobody", "1")),
            edge_body(*pairs),
            edge_body(("1", "9")),
            edge_body(("5", "9")),
            node_body("nobody"),
            node_body("1", "5", "nobody"),
            features_body(*NODES, "nobody"),
        )
    ]
    documents = [refused(answer, *UNKNOWN) for answer in refusals]
    assert all(one == documents[0] for one in documents)
    assert set(documents[0]) == {"type", "title", "status", "detail", "remedy"}
    # A reader gets the full answer.
    document = refused(await reader.post("/deletions", json=edge_body(("1", "9"), ("x", "1"))), 404, "unknown-nodes")
    assert (document["unknown"], document["unknown_edges"]) == (["x"], [["1", "9"]])


async def test_what_is_deleted_is_accepted_as_what_is_there(
    api: Api, writer: httpx2.AsyncClient, reader: httpx2.AsyncClient
) -> None:
    await gone(api, reader, "5")
    await gone(api, reader, "7", RequestKind.FEATURES)
    await gone(api, reader, ("11", "12"), RequestKind.EDGE)
    for of_deleted, of_live in (
        (node_body("5"), node_body("6")),
        (node_body("5", "8"), node_body("6", "8")),
        (features_body("5"), features_body("6")),
        (features_body("7"), features_body("8")),
        (edge_body(("11", "12")), edge_body(("13", "14"))),
    ):
        answers = [await writer.post("/deletions", json=body) for body in (of_deleted, of_live)]
        assert [answer.status_code for answer in answers] == [202, 202]
        deleted, live = (anonymous(answer) for answer in answers)
        assert (deleted["status"], deleted["already_deleted"], deleted["count"]) == ("queued", {}, live["count"])
        assert {**deleted, "salts": len(deleted["salts"])} == {**live, "salts": len(live["salts"])}
        cancelled = [await writer.delete(f"/deletions/{answer.json()['id']}") for answer in answers]
        assert [(one.status_code, one.json()["status"]) for one in cancelled] == [(200, "cancelled")] * 2
    # A reader sees that it is already deleted.
    assert list((await reader.post("/deletions", json=node_body("5"))).json()["already_deleted"]) == ["5"]


async def test_a_repeated_request_is_answered_as_the_first_time_whatever_has_gone_since(
    api: Api, writer: httpx2.AsyncClient, reader: httpx2.AsyncClient
) -> None:
    headers = {"Idempotency-Key": "one"}
    first = await writer.post("/deletions", json=edge_body(("11", "12")), headers=headers)
    # This also deletes the edge; a separate request for it would now be refused.
    await gone(api, reader, "11")
    refused(await writer.post("/deletions", json=edge_body(("11", "12"))), *UNKNOWN)
    again = await writer.post("/deletions", json=edge_body(("11", "12")), headers=headers)
    assert (again.status_code, again.json()) == (202, first.json())
    # Refusals in between do not change that, however many.
    for _ in range(PROBES.item.amount):
        await writer.post("/deletions", json=node_body("nobody"))
    refused(await writer.post("/deletions", json=node_body("1")), 429, "too-many-attempts")
    assert (await writer.post("/deletions", json=edge_body(("11", "12")), headers=headers)).json() == first.json()


async def test_too_late_to_cancel_is_all_that_is_said(
    api: Api, writer: httpx2.AsyncClient, reader: httpx2.AsyncClient
) -> None:
    taken, completed, cancelled = [
        (await writer.post("/deletions", json=node_body(node))).json()["id"] for node in ("1", "2", "3")
    ]
    async with transaction(api.engine) as connection:
        assert await RequestMoves(connection).take([UUID(taken)]) == {UUID(taken)}
    await api.forget(["2"], completed)
    await api.complete(completed)
    assert (await writer.delete(f"/deletions/{cancelled}")).status_code == 200
    texts = set()
    for request in (taken, completed, cancelled):
        document = refused(await writer.delete(f"/deletions/{request}"), 409, "conflict")
        texts.add(document["detail"].replace(request, "") + document["remedy"])
    # Nor that it waits behind a request on hold.
    held, behind = [(await writer.post("/deletions", json=node_body("9"))).json()["id"] for _ in range(2)]
    operator = await api.client(Scope.DELETIONS_WRITE, Scope.AUDIT_READ)
    assert (await operator.post(f"/deletions/{held}/hold", json={"reason": "A lawsuit."})).status_code == 200
    async with transaction(api.engine) as connection:
        await RequestMoves(connection).take([UUID(behind)])
        await Holds(connection).wait({UUID(behind): Behind(UUID(held), UUID(held))})
    document = refused(await writer.delete(f"/deletions/{behind}"), 409, "conflict")
    texts.add(document["detail"].replace(behind, "") + document["remedy"])
    assert len(texts) == 1
    assert (await operator.delete(f"/deletions/{behind}")).json()["status"] == "cancelled"
    assert (await writer.delete(f"/deletions/{held}")).json()["status"] == "cancelled"
    own = (await reader.post("/deletions", json=node_body("4"))).json()["id"]
    async with transaction(api.engine) as connection:
        await RequestMoves(connection).take([UUID(own)])
    assert "is being applied" in refused(await reader.delete(f"/deletions/{own}"), 409, "conflict")["detail"]


async def test_refusals_are_recorded_and_counted(
    api: Api, writer: httpx2.AsyncClient, reader: httpx2.AsyncClient
) -> None:
    await writer.post("/deletions", json=edge_body(("1", "9"), ("1", "2")))
    await reader.post("/deletions", json=node_body("nobody"))
    async with transaction(api.engine) as connection:
        rows = (await connection.exec_driver_sql("SELECT * FROM audit_refusals ORDER BY refused_at")).mappings().all()
    assert [(row["kind"], row["named"], row["reason"]) for row in rows] == [
        ("edge", 2, "unknown-targets"),
        ("node", 1, "unknown-nodes"),
    ]
    assert {row["model"] for row in rows} == {api.services.model}
    assert "nobody" not in str(rows)
    auditor = await api.client(Scope.AUDIT_READ)
    assert (await auditor.get("/audit/summary")).json()["refused"] == 2
    assert (await auditor.get("/audit/summary", params={"since": "2030-01-01"})).json()["refused"] == 0
    page = (await auditor.get("/metrics")).text
    assert 'lethe_deletions_refused_total{kind="edge",process="api-0"} 1.0' in page
    assert 'lethe_deletions_refused_total{kind="node",process="api-0"} 1.0' in page


async def test_asking_with_a_used_salt_what_is_there_is_recorded_and_limited(
    api: Api, writer: httpx2.AsyncClient, reader: httpx2.AsyncClient
) -> None:
    """It would be answered 409 for an existing node, 404 for a missing one, and risk nothing."""
    used = (await writer.post("/deletions", json=node_body("1"))).json()["salts"]["nodes"]["1"]
    asked = node_body("2") | {"salts": {"nodes": {"2": used}}}
    for _ in range(PROBES.item.amount):
        refused(await writer.post("/deletions", json=asked), 409, "salt-used")
    refused(await writer.post("/deletions", json=asked), 429, "too-many-attempts")
    # A reader learns nothing new from it.
    refused(await reader.post("/deletions", json=asked), 409, "salt-used")
    async with transaction(api.engine) as connection:
        reasons = (await connection.exec_driver_sql("SELECT reason FROM audit_refusals")).scalars().all()
    assert reasons == ["salt-used"] * PROBES.item.amount


@pytest.mark.ci
def test_nothing_that_a_key_can_read_distinguishes_what_was_deleted_from_what_was_there(
    lethe: LetheProcess, writing: dict[Scope, httpx2.Client]
) -> None:
    earlier = lethe.delete(["5"])
    assert_what_was_deleted_already_is_completed_no_sooner_than_what_was_there(
        lethe, writing[Scope.DELETIONS_WRITE], earlier
    )
    assert_of_deletions_a_key_sees_nothing(lethe, writing[Scope.DELETIONS_WRITE])
    assert_of_additions_a_key_sees_nothing(lethe, writing[Scope.GRAPH_WRITE], earlier)


def usual_s(earlier: Deletion) -> float:
    """Return the duration of a deletion, in seconds."""
    assert earlier.audit is not None
    return sum(earlier.audit.durations_ms.values()) / 1000


def assert_what_was_deleted_already_is_completed_no_sooner_than_what_was_there(
    lethe: LetheProcess, writing: httpx2.Client, earlier: Deletion
) -> None:
    asked = writing.post("/deletions", json=node_body("5")).json()
    assert (asked["status"], asked["already_deleted"]) == ("queued", {})
    with lethe.client() as client:
        deletion = client.wait(asked["id"], timeout_s=60)
    assert (deletion.status, deletion.already_deleted_by) == ("completed", earlier.id)
    assert deletion.completed_at is not None
    assert (deletion.completed_at - deletion.received_at).total_seconds() >= usual_s(earlier)


def seen(writing: httpx2.Client) -> dict[str, Any]:
    """Return all that a key which may only write can read, except for what changes from one moment to the next."""
    # As from another machine: locally the metrics are open.
    writing.headers["Via"] = "1.1 proxy"
    places = [operations for operations in writing.get("/openapi.json").json()["paths"] if "{" not in operations]
    answers = {place: writing.get(place) for place in (*places, "/log/proof/0", "/log/consistency?from=1")}
    assert {answers[place].status_code for place in ("/log/checkpoint", "/metrics", "/model")} == {403}
    checks = {check["name"]: check["detail"] for check in answers["/readyz"].json()["checks"]}
    return {place: answer.json() for place, answer in answers.items() if place != "/readyz"} | {
        "/readyz": {name: detail for name, detail in checks.items() if name not in ("clock", "disk")}
    }


def assert_of_deletions_a_key_sees_nothing(lethe: LetheProcess, writing: httpx2.Client) -> None:
    before = seen(writing)
    for node in ("5", "6"):
        asked = writing.post("/deletions", json=node_body(node)).json()
        with lethe.client() as client:
            assert client.wait(asked["id"], timeout_s=60).status == "completed"
        assert seen(writing) == before


def assert_of_additions_a_key_sees_nothing(lethe: LetheProcess, writing: httpx2.Client, earlier: Deletion) -> None:
    """Neither who is there nor who was deleted."""
    before = seen(writing)
    ends, texts = {}, []
    for node in ("5", "7", "nobody"):
        body = {"nodes": [{"id": node, "features": {"0": 1.0}}], "edges": [[node, "9"]]}
        headers = {"Idempotency-Key": f"add-{node}"}
        first = writing.post("/additions", json=body, headers=headers)
        assert first.status_code == 202, first.text
        asked = first.json()
        with lethe.client() as client:
            with contextlib.suppress(DeletionStopped):
                client.wait(asked["id"], timeout_s=60)
            ends[node] = client.deletion(asked["id"])
        # All ways to learn of the end: the request again, too late to cancel, and what the key may read.
        again = writing.post("/additions", json=body, headers=headers)
        late, own = writing.delete(asked["links"]["self"]), writing.get(asked["links"]["self"])
        documents = [answer.json() for answer in (again, late, own)]
        text = json.dumps(documents).replace(asked["id"], "").replace(asked["received_at"], "")
        texts.append(text.replace(asked["due_at"], ""))
        assert seen(writing) == before
    assert [ends[node].status for node in ends] == ["completed", "failed", "completed"]
    assert len(set(texts)) == 1, texts
    beaten = ends["5"]
    assert beaten.completed_at is not None
    assert (beaten.completed_at - beaten.received_at).total_seconds() >= usual_s(earlier)
