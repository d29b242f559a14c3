"""The interface and its description are one: methods, scopes, and ids that are reachable wherever they may be sent."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import scipy.sparse as sp

from model_store.versions import VersionRef
from projector.graph.edges import Edges
from service.domain.scopes import Scope
from service.domain.snapshot import Snapshot
from service.publication.writer import Publisher
from tests.support.service.api_harness import Api, serving
from tests.support.service.bodies import refused
from tests.support.service.publications import load, published_model, serve

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SOME_REQUEST = "5e1c0a66-1111-4222-8333-444455556666"


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path) as running:
        yield running


@pytest.fixture
async def client(api: Api) -> httpx.AsyncClient:
    return await api.client(*Scope)


async def test_allow_names_all_methods_of_a_path_and_any_other_is_405(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert len(document["paths"]) > 15
    for template, operations in document["paths"].items():
        path = template.format(node="12", request_id=SOME_REQUEST, index=0)
        documented = {method.upper() for method in operations}
        for method in {*METHODS, "OPTIONS", "TRACE", "HEAD"} - documented:
            answer = await client.request(method, path)
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) == documented, (method, path)


async def test_what_is_served_beside_the_description_tells_its_methods_too(client: httpx.AsyncClient) -> None:
    for path, methods in (("/dashboard/login", "GET, POST"), ("/dashboard/find", "GET, POST"), ("/docs", "GET")):
        for accept in ("text/html", "*/*"):
            answer = await client.request("DELETE", path, headers={"Accept": accept})
            assert (answer.status_code, answer.headers["allow"]) == (405, methods), path


async def test_one_of_several_scopes_is_described_as_such_and_is_enough(api: Api, client: httpx.AsyncClient) -> None:
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
        target = path.format(node="12", request_id=SOME_REQUEST, index=0)
        for alternative in alternatives:
            needed = [Scope(scope) for scope in alternative["ApiKey"]]
            enough = await api.client(*(needed or [Scope.PREDICTIONS_READ]))
            assert (await enough.request(method, target)).status_code not in (401, 403), (method, path, needed)
        if all(alternative["ApiKey"] for alternative in alternatives):
            others = set(Scope) - {Scope(scope) for one in alternatives for scope in one["ApiKey"]}
            assert (await (await api.client(*others)).request(method, target)).status_code == 403, (method, path)


async def test_an_id_with_line_breaks_is_the_same_id_everywhere(
    api: Api, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    ids = ["12", "12\n", "\n12", "1\r\n2", "\r", "a\nb/c"]
    live = np.ones(len(ids), dtype=np.bool_)
    snapshot = Snapshot(1, np.full((len(ids), 3), 1 / 3), live, Edges(sp.csr_array((len(ids),) * 2), live))
    publisher = Publisher(tmp_path / "another", tmp_path)
    load(publisher, VersionRef(1, 1), published_model(ids, snapshot, classes=("a", "b", "c")), snapshot)
    serve(api.services.reader, publisher, VersionRef(1, 1))
    for node in ids:
        path = "".join(f"%{byte:02X}" for byte in node.encode())
        assert (await client.get(f"/predict/{path}")).json()["node"] == node
    assert [one["node"] for one in (await client.post("/predict", json={"nodes": ids})).json()["predictions"]] == ids
    accepted = (await client.post("/deletions", json={"kind": "node", "nodes": ids})).json()
    assert list(accepted["salts"]["nodes"]) == ids
    found = (await client.post("/deletions/search", json={"nodes": ids})).json()
    assert found["not_found"] == ids
    refused(await client.get("/predict/12%0A%0A"), 404, "not-found")


async def test_an_empty_parameter_is_no_parameter(client: httpx.AsyncClient) -> None:
    for path in ("/deletions", "/audit/summary", "/audit/series", "/audit/export"):
        for name in ("since", "until"):
            refused(await client.get(path, params={name: ""}), 422, "invalid-request")
