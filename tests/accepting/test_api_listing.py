"""Following, listing and searching deletion requests, and the rights to see them."""

import itertools
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx2

from service.domain.kinds import RequestKind
from service.domain.scopes import Scope
from tests.support.service.api_harness import NODES, Api
from tests.support.service.bodies import node_body, refused

WRITER = (Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)
AUDITOR = (Scope.AUDIT_READ, Scope.DELETIONS_READ)


async def ask(writer: httpx2.AsyncClient, *nodes: str, reference: str | None = None) -> dict[str, Any]:
    response = await writer.post("/deletions", json=node_body(*nodes, reference=reference))
    assert response.status_code == 202
    accepted: dict[str, Any] = response.json()
    return accepted


async def listed(client: httpx2.AsyncClient, **filters: Any) -> list[str]:
    response = await client.get("/deletions", params=filters)
    assert response.status_code == 200, response.text
    return [one["id"] for one in response.json()["deletions"]]


async def test_a_key_sees_its_own_requests_and_an_auditor_all(api: Api) -> None:
    one, two = await api.client(*WRITER), await api.client(*WRITER)
    first, second = (await ask(one, "1"))["id"], (await ask(two, "2"))["id"]
    auditor = await api.client(*AUDITOR)
    assert await listed(one) == [first]
    assert await listed(two) == [second]
    assert await listed(auditor) == [second, first]
    refused(await two.get(f"/deletions/{first}"), 404, "not-found")
    assert (await auditor.get(f"/deletions/{first}")).status_code == 200
    refused(await auditor.get(f"/deletions/{uuid4()}"), 404, "not-found")
    refused(await auditor.get("/deletions/12"), 422, "invalid-request")
    assert await listed(await api.client(Scope.AUDIT_READ)) == [second, first]


async def test_pages_hold_each_request_once_newest_first(api: Api) -> None:
    writer = await api.client(*WRITER)
    asked = [(await ask(writer, node))["id"] for node in NODES[:7]]
    found: list[str] = []
    cursor: str | None = None
    for pages in itertools.count(1):
        parameters: dict[str, Any] = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = (await writer.get("/deletions", params=parameters)).json()
        found += [one["id"] for one in page["deletions"]]
        cursor = page["next_cursor"]
        if pages == 1:
            await ask(writer, "30")  # what arrives meanwhile does not shift the pages
        if cursor is None:
            break
    assert found == asked[::-1]
    assert pages == 3


async def test_a_cursor_is_good_for_its_own_query_and_key_only(api: Api) -> None:
    writer = await api.client(*WRITER)
    for node in NODES[:3]:
        await ask(writer, node)
    cursor = (await writer.get("/deletions", params={"limit": 1})).json()["next_cursor"]
    turned = cursor[:5] + ("A" if cursor[5] != "A" else "B") + cursor[6:]
    for bad in ("nonsense", "ünicode", cursor[:-1], cursor + "A", turned, "%00", "=" * 54):
        refused(await writer.get("/deletions", params={"cursor": bad}), 400, "malformed-cursor")
    refused(await writer.get("/deletions", params={"cursor": "x" * 300}), 422, "invalid-request")
    for other in ({"status": "queued"}, {"kind": "node"}, {"since": "2026-01-01T00:00:00Z"}):
        refused(await writer.get("/deletions", params=other | {"cursor": cursor}), 400, "malformed-cursor")
    auditor = await api.client(*AUDITOR)
    refused(await auditor.get("/deletions", params={"cursor": cursor}), 400, "malformed-cursor")
    assert len(await listed(writer, cursor=cursor, limit=200)) == 2


async def test_filters_keep_what_matches(api: Api) -> None:
    writer = await api.client(*WRITER)
    first, second = await ask(writer, "1"), await ask(writer, "2")
    await writer.delete(first["links"]["self"])
    between = second["received_at"]
    assert await listed(writer, status="cancelled") == [first["id"]]
    assert await listed(writer, status="queued") == [second["id"]]
    assert await listed(writer, kind="edge") == []
    assert await listed(writer, since=between) == [second["id"]]
    assert await listed(writer, until=between) == [first["id"]]
    later = datetime.fromisoformat(between) + timedelta(microseconds=1)
    assert await listed(writer, since=later.isoformat()) == []
    # A filter without a value would match everything, which is never the intent.
    for name in ("status", "kind", "guarantee", "repair", "since", "until", "cursor"):
        empty = await writer.get("/deletions", params={name: ""})
        assert (empty.status_code, empty.json()["errors"][0]["loc"]) == (422, ["query", name])


async def test_a_search_by_node_finds_who_deleted_it(api: Api) -> None:
    writer, other = await api.client(*WRITER), await api.client(*WRITER)
    request = (await ask(writer, "1", "user/38", reference="DSR-17"))["id"]
    foreign = (await ask(other, "3"))["id"]
    await api.forget(["1", "user/38"], request)
    await api.forget(["3"], foreign)
    body = {"nodes": ["1", "2", "3", "user/38", "1"]}
    own = (await writer.post("/deletions/search", json=body)).json()
    assert [(one["node"], one["deletion"]["id"]) for one in own["found"]] == [("1", request), ("user/38", request)]
    assert own["not_found"] == ["2", "3"]
    everything = (await (await api.client(*AUDITOR)).post("/deletions/search", json=body)).json()
    assert {one["node"]: one["deletion"]["id"] for one in everything["found"]} == {
        "1": request,
        "3": foreign,
        "user/38": request,
    }
    assert everything["not_found"] == ["2"]
    await api.forget(["2"], request, RequestKind.FEATURES)
    features = (await writer.post("/deletions/search", json={"nodes": ["2"]})).json()
    assert [one["deletion"]["id"] for one in features["found"]] == [request]
    bad: dict[str, Any]
    for bad in ({"nodes": []}, {"nodes": [1]}, {"nodes": ["1"], "also": 1}):
        refused(await writer.post("/deletions/search", json=bad), 422, "invalid-request")


async def test_the_reference_of_a_completed_request_is_for_auditors_only(api: Api) -> None:
    writer = await api.client(*WRITER)
    first = (await ask(writer, "1"))["id"]
    await api.forget(["1"], first)
    await api.complete(first)
    completed = await ask(writer, "1", reference="DSR-17")
    await api.complete_without_work(completed, first)
    queued = await ask(writer, "2", reference="DSR-18")
    auditor = await api.client(*AUDITOR)
    for request, seen_by_writer in ((completed, None), (queued, "DSR-18")):
        link = request["links"]["self"]
        assert (await writer.get(link)).json()["reference"] == seen_by_writer
        assert (await auditor.get(link)).json()["reference"] in ("DSR-17", "DSR-18")
    page = (await writer.get("/deletions")).json()["deletions"]
    assert [one["reference"] for one in page if one["status"] == "completed"] == [None, None]
