"""The API matches its description: methods, scopes, and ids that are reachable in every position."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
import scipy.sparse as sp
from starlette.routing import BaseRoute

from model_store.versions import VersionRef
from projector.graph.edges import Edges
from service.domain.scopes import Scope
from service.domain.snapshot import Snapshot
from service.predictions.writer import Publisher
from service.web.routes import StrictRoute
from tests.support.service.api_harness import Api
from tests.support.service.bodies import refused
from tests.support.service.publications import load, published_model

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SOME_REQUEST = "5e1c0a66-1111-4222-8333-444455556666"
#: Values of path parameters beside `node`.
FILLED = {"request_id": SOME_REQUEST, "index": 0, "model": "tiny", "version": 1}


def flat(routes: Iterable[BaseRoute]) -> Iterator[StrictRoute]:
    """Yield every route of the application, all of one type."""
    for route in routes:
        inner = getattr(getattr(route, "original_router", None), "routes", None)
        if inner is not None:
            yield from flat(inner)
        else:
            assert isinstance(route, StrictRoute), route
            yield route


@pytest.fixture
async def client(api: Api) -> httpx2.AsyncClient:
    return await api.client(*Scope)


@pytest.mark.ci
async def test_allow_names_all_methods_of_a_path_and_any_other_is_405(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert len(document["paths"]) > 15
    for template, operations in document["paths"].items():
        path = template.format(node="12", **FILLED)
        documented = {method.upper() for method in operations}
        taken = documented | ({"HEAD"} if "GET" in documented else set())
        for method in {*METHODS, "OPTIONS", "TRACE", "HEAD"} - taken:
            answer = await client.request(method, path)
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) == taken, (method, path)


async def test_every_route_refuses_by_name_what_it_would_ignore(api: Api, client: httpx2.AsyncClient) -> None:
    routes = [one for one in flat(api.app.routes) if "/static/" not in one.path and "/assets/" not in one.path]
    assert len(routes) > 45
    for route in routes:
        if route.path.endswith("/sign-on/callback"):
            # An issuer may send more than it is asked for, which RFC 6749 (4.1.2) tells clients to ignore.
            continue
        path = route.path.replace(":path}", "}").format(node="12", **FILLED, name="x")
        for method in route.methods or ():
            for query in ("node_id=20", "&".join(["format=json"] * 2), "&".join(["cursor=x"] * 2)):
                answer = await client.request(method, f"{path}?{query}")
                assert answer.status_code == 422, (method, path, query)
                assert query.partition("=")[0] in answer.text


async def test_head_is_taken_wherever_get_is_and_is_no_part_of_the_description(client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    for template, operations in document["paths"].items():
        assert "head" not in operations
        if "get" in operations:
            path = template.format(node="12", **FILLED)
            got, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.content) == (got.status_code, b""), path


@pytest.mark.parametrize("path", ["/deletions", "/deletions/search", "/predict", "/log/checks"])
async def test_a_member_given_twice_is_refused_by_name_and_nothing_is_accepted(
    api: Api, client: httpx2.AsyncClient, path: str
) -> None:
    fields = {"Content-Type": "application/json"}
    body = b'{"kind": "node", "nodes": ["1"], "nodes": ["2"]}'
    document = refused(await client.post(path, content=body, headers=fields), 422, "repeated-member")
    assert "`nodes`" in document["detail"]
    assert await api.count("requests") == 0


async def test_a_body_that_nobody_reads_is_refused(client: httpx2.AsyncClient) -> None:
    for method, path in (
        ("POST", "/drills"),
        ("POST", f"/deletions/{SOME_REQUEST}/retry"),
        ("DELETE", f"/deletions/{SOME_REQUEST}"),
        ("GET", "/deletions"),
        ("GET", "/predict/12"),
    ):
        answer = await client.request(method, path, json={"cohort": 3})
        assert "no body" in refused(answer, 422, "invalid-request")["detail"], path


@pytest.mark.parametrize("path", ["/deletions", "/audit/export", "/audit/summary", "/audit/series"])
async def test_a_window_that_ends_before_it_begins_is_refused(client: httpx2.AsyncClient, path: str) -> None:
    at = "T00:00:00Z" if path != "/audit/summary" else ""
    for until in ("2026-01-01", "2026-01-02"):
        window = {"since": f"2026-01-02{at}", "until": f"{until}{at}"}
        refused(await client.get(path, params=window), 422, "invalid-request")
        if path == "/deletions":
            refused(await client.post(f"{path}/search", json=window), 422, "invalid-request")
    if path in ("/deletions", "/audit/export"):
        limits = {"span_residual_min": 2, "span_residual_max": 1}
        refused(await client.get(path, params=limits), 422, "invalid-request")


async def test_a_fault_is_named_in_plain_words(client: httpx2.AsyncClient) -> None:
    for body, words in (
        ({"nodes": ["1"]}, "must have 'kind'"),
        ({"kind": "nodes", "nodes": ["1"]}, "must have 'kind' as one of 'node', 'edge', 'features'"),
        ({"kind": "node", "nodes": ["1"], "node_id": "1"}, "is unknown here"),
        ({"kind": "node", "nodes": ["1"], "reference": "a\u202eb"}, "must not contain U+202E"),
        ({"kind": "node", "nodes": ["1"], "reference": "a\x85b"}, "must not contain U+0085"),
    ):
        document = refused(await client.post("/deletions", json=body), 422, "invalid-request")
        assert document["errors"][0]["msg"].startswith(words)
    plus = await client.get("/deletions?since=2026-11-20T00:00:00+01:00")
    assert "%2B" in refused(plus, 422, "invalid-request")["errors"][0]["msg"]
    assert (await client.get("/deletions?since=2026-11-20T00:00:00%2B01:00")).status_code == 200


async def test_what_is_served_beside_the_description_names_its_methods_too(client: httpx2.AsyncClient) -> None:
    for path, methods in (
        ("/dashboard/login", "GET, HEAD, POST"),
        ("/dashboard/find", "GET, HEAD, POST"),
        ("/docs", "GET, HEAD"),
    ):
        for accept in ("text/html", "*/*"):
            answer = await client.request("DELETE", path, headers={"Accept": accept})
            assert (answer.status_code, answer.headers["allow"]) == (405, methods), path


async def test_one_of_several_scopes_is_described_as_such_and_is_enough(api: Api, client: httpx2.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    described = {
        (method, path): operation["security"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if "security" in operation
    }
    assert described["get", "/deletions"] == [{"ApiKey": ["deletions:read"]}, {"ApiKey": ["audit:read"]}]
    assert described["post", "/deletions/{request_id}/retry"] == [{"ApiKey": ["deletions:write", "audit:read"]}]
    assert described["get", "/log/checkpoint"] == [{"ApiKey": ["deletions:read"]}, {"ApiKey": ["audit:read"]}]
    for (method, path), alternatives in described.items():
        target = path.format(node="12", **FILLED)
        for alternative in alternatives:
            needed = [Scope(scope) for scope in alternative["ApiKey"]]
            enough = await api.client(*(needed or [Scope.PREDICTIONS_READ]))
            assert (await enough.request(method, target)).status_code not in (401, 403), (method, path, needed)
        if all(alternative["ApiKey"] for alternative in alternatives):
            others = set(Scope) - {Scope(scope) for one in alternatives for scope in one["ApiKey"]}
            assert (await (await api.client(*others)).request(method, target)).status_code == 403, (method, path)


async def test_an_id_with_line_breaks_is_the_same_id_everywhere(
    api: Api, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    ids = ["12", "12\n", "\n12", "1\r\n2", "\r", "a\nb/c"]
    live = np.ones(len(ids), dtype=np.bool_)
    snapshot = Snapshot(1, np.full((len(ids), 3), 1 / 3), live, Edges(sp.csr_array((len(ids),) * 2), live))
    model = published_model(ids, snapshot, classes=("a", "b", "c"))
    load(Publisher(api.services.settings.home, tmp_path), VersionRef(1, 1), model, snapshot, fencing=2)
    for node in ids:
        path = "".join(f"%{byte:02X}" for byte in node.encode())
        assert (await client.get(f"/predict/{path}")).json()["node"] == node
    assert [one["node"] for one in (await client.post("/predict", json={"nodes": ids})).json()["predictions"]] == ids
    accepted = (await client.post("/deletions", json={"kind": "node", "nodes": ids})).json()
    assert list(accepted["salts"]["nodes"]) == ids
    found = (await client.post("/deletions/search", json={"nodes": ids})).json()
    assert found["not_found"] == ids
    refused(await client.get("/predict/12%0A%0A"), 404, "not-found")


async def test_an_empty_parameter_is_no_parameter(client: httpx2.AsyncClient) -> None:
    for path in ("/deletions", "/audit/summary", "/audit/series", "/audit/export"):
        for name in ("since", "until"):
            refused(await client.get(path, params={name: ""}), 422, "invalid-request")
