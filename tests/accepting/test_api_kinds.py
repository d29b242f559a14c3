"""Requests to forget features and edges: existing targets, deleted ones, and the reasons of refusals."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.domain.kinds import RequestKind
from service.domain.scopes import Scope
from tests.support.service.api_harness import Api, serving
from tests.support.service.bodies import WRITER, edge_body, features_body, node_body, refused

MIXED: list[dict[str, Any]] = [
    {"kind": "node", "nodes": ["1"], "edges": [["1", "2"]]},
    {"kind": "features", "nodes": ["1"], "edges": [["1", "2"]]},
    {"kind": "edge", "edges": [["1", "2"]], "nodes": ["1"]},
    {"kind": ["node", "edge"], "nodes": ["1"], "edges": [["1", "2"]]},
    {"kind": "node,edge", "nodes": ["1"], "edges": [["1", "2"]]},
    {"nodes": ["1"], "edges": [["1", "2"]]},
    {"kind": "features", "edges": [["1", "2"]]},
    {"kind": "edge", "nodes": ["1", "2"]},
    {"kind": "edge", "edges": []},
    {"kind": "edge", "edges": ["1", "2"]},
    {"kind": "edge", "edges": [["1", 2]]},
    {"kind": "features", "nodes": []},
]


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path, max_nodes_per_request=30) as api:
        yield api


@pytest.fixture
async def writer(api: Api) -> httpx2.AsyncClient:
    return await api.client(*WRITER)


async def accepted(writer: httpx2.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await writer.post("/deletions", json=body)
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_edges_are_taken_in_either_order_with_salts_for_their_ends(writer: httpx2.AsyncClient) -> None:
    document = await accepted(writer, edge_body(("2", "1"), ("user/38", "37")))
    assert (document["status"], document["kind"], document["count"]) == ("queued", "edge", 2)
    assert set(document["salts"]["nodes"]) == {"1", "2", "37", "user/38"}
    assert document["already_deleted"] == {}


async def test_a_body_that_mixes_kinds_or_has_none_is_refused(api: Api, writer: httpx2.AsyncClient) -> None:
    for body in MIXED:
        assert refused(await writer.post("/deletions", json=body), 422, "invalid-request")["errors"], body
    assert await api.count("requests") == 0


async def test_an_edge_listed_twice_or_in_both_directions_is_named(api: Api, writer: httpx2.AsyncClient) -> None:
    for twice in [("1", "2"), ("2", "1")]:
        response = await writer.post("/deletions", json=edge_body(("2", "1"), ("4", "5"), twice))
        assert refused(response, 422, "duplicate-targets")["duplicates"] == [["1", "2"]]
    assert await api.count("requests") == 0


async def test_edges_from_a_node_to_itself_are_named(api: Api, writer: httpx2.AsyncClient) -> None:
    response = await writer.post("/deletions", json=edge_body(("3", "3"), ("1", "2"), ("user/38", "user/38")))
    assert refused(response, 422, "self-loops")["self_loops"] == ["3", "user/38"]
    assert await api.count("requests") == 0


async def test_all_edges_that_the_graph_does_not_have_are_named(api: Api, writer: httpx2.AsyncClient) -> None:
    response = await writer.post("/deletions", json=edge_body(("1", "2"), ("9", "1"), ("0", "ålesund 39"), ("1", "3")))
    assert refused(response, 404, "unknown-edges")["unknown_edges"] == [["1", "9"], ["1", "3"]]
    assert await api.count("requests") == 0


async def test_edges_of_a_model_that_uses_none_are_refused_by_name(database_url: str, tmp_path: Path) -> None:
    async with serving(database_url, tmp_path, hops=0) as api:
        for scopes in ((Scope.DELETIONS_WRITE, Scope.DELETIONS_READ), (Scope.DELETIONS_WRITE,)):
            response = await (await api.client(*scopes)).post("/deletions", json=edge_body(("1", "2")))
            assert "0 hops" in refused(response, 409, "no-edges")["detail"]
        writer = await api.client(*WRITER)
        assert (await writer.post("/deletions", json=node_body("1"))).status_code == 202
        assert (await api.count("requests"), await api.count("refused_requests")) == (1, 2)


async def test_all_unknown_ends_are_named_and_missing_edges_with_them(api: Api, writer: httpx2.AsyncClient) -> None:
    body = edge_body(("1", "2"), ("x", "1"), ("y", "x"), ("5", "9"))
    document = refused(await writer.post("/deletions", json=body), 404, "unknown-nodes")
    assert document["unknown"] == ["x", "y"]
    assert document["unknown_edges"] == [["5", "9"]]
    response = await writer.post("/deletions", json=features_body("1", "x", "2", "y"))
    assert refused(response, 404, "unknown-nodes")["unknown"] == ["x", "y"]
    assert await api.count("requests") == 0


async def test_edges_deleted_before_name_the_earlier_request(api: Api, writer: httpx2.AsyncClient) -> None:
    first = (await accepted(writer, edge_body(("1", "2"))))["id"]
    await api.forget([("2", "1")], first, RequestKind.EDGE)
    mixed = await accepted(writer, edge_body(("2", "3"), ("2", "1")))
    assert (mixed["status"], mixed["count"], mixed["already_deleted"]) == ("queued", 1, {"1|2": first})
    assert set(mixed["salts"]["nodes"]) == {"2", "3"}

    await api.complete(first)
    again = await accepted(writer, edge_body(("2", "1")))
    assert (again["status"], again["already_deleted"]) == ("queued", {"1|2": first})


async def test_an_edge_whose_node_was_deleted_is_gone_with_it(api: Api, writer: httpx2.AsyncClient) -> None:
    node = (await accepted(writer, node_body("5")))["id"]
    await api.forget(["5"], node)
    await api.complete(node)
    again = await accepted(writer, edge_body(("5", "4"), ("5", "6")))
    assert (again["status"], again["already_deleted"]) == ("queued", {"4|5": node, "5|6": node})


async def test_features_deleted_before_or_with_their_node_name_who_did_it(api: Api, writer: httpx2.AsyncClient) -> None:
    first = (await accepted(writer, features_body("7")))["id"]
    await api.forget(["7"], first, RequestKind.FEATURES)
    node = (await accepted(writer, node_body("8")))["id"]
    await api.forget(["8"], node)
    await api.complete(first)
    await api.complete(node)
    again = await accepted(writer, features_body("7", "8"))
    assert (again["status"], again["already_deleted"]) == ("queued", {"7": first, "8": node})
    mixed = await accepted(writer, features_body("7", "9"))
    assert (mixed["status"], mixed["count"], mixed["already_deleted"]) == ("queued", 1, {"7": first})


async def test_the_search_finds_who_deleted_a_node_and_who_its_features(api: Api, writer: httpx2.AsyncClient) -> None:
    features = (await accepted(writer, features_body("7")))["id"]
    await api.forget(["7"], features, RequestKind.FEATURES)
    node = (await accepted(writer, node_body("7", "8")))["id"]
    await api.forget(["7", "8"], node)
    found = (await writer.post("/deletions/search", json={"nodes": ["8", "7", "9"]})).json()
    assert [(one["node"], one["deletion"]["id"]) for one in found["found"]] == [
        ("8", node),
        ("7", node),
        ("7", features),
    ]
    assert found["not_found"] == ["9"]
