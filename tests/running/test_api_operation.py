"""Keys and scopes, health, metrics and the description of the interface."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs.access_table import interface
from service.domain.lease_report import Check
from service.domain.scopes import Scope
from service.predictions.reader import Reader
from tests.support.service.api_harness import Api
from tests.support.service.bodies import node_body, refused

#: Routes that need no key, at least on this machine.
OPEN = (
    *("/healthz", "/readyz", "/readyz/predictions", "/metrics", "/v2/health/live", "/v2/health/ready"),
    "/v2/models/{model}/ready",
)
#: Headers that proxies and proxy networks add to a request.
FORWARDING = (
    *("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded", "X-Real-IP"),
    *("CF-Connecting-IP", "CF-Ray", "True-Client-IP", "Client-IP", "X-Client-IP", "X-Cluster-Client-IP"),
    *("Fastly-Client-IP", "X-Original-Forwarded-For", "X-Original-Host", "X-Envoy-External-Address", "X-Remote-Addr"),
    *("X-Originating-IP", "X_Forwarded_For", "X-Forwarded_For", "CDN-Loop", "X-Host"),
)
ELSEWHERE = ("203.0.113.9", 4711)


async def test_the_answer_to_a_call_without_a_key_says_how_to_present_one(api: Api) -> None:
    for headers in ({}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}):
        response = await (await api.client_with(None, **headers)).get("/model")
        refused(response, 401, "unauthenticated")
        assert response.headers["www-authenticate"] == 'Bearer realm="lethe"'


async def test_nothing_is_read_of_a_body_before_the_key_that_sends_it_is_known(api: Api) -> None:
    described = api.app.openapi()["paths"]
    taking = [
        one for one in interface(api.app) if "requestBody" in described.get(one.path, {}).get(one.method.lower(), {})
    ]
    assert len(taking) == sum("requestBody" in one for methods in described.values() for one in methods.values()) > 10
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"[" * 1_000_000

    headers = {"Content-Type": "application/json"}
    for route in taking:
        nobody = await api.client_with(None)
        response = await nobody.request(route.method, route.path, content=body(), headers=headers)
        refused(response, 401, "unauthenticated")
        others = await api.client(*(set(Scope) - frozenset[Scope]().union(*route.alternatives)))
        response = await others.request(route.method, route.path, content=body(), headers=headers)
        refused(response, 403, "missing-scope")
    assert read == 0


async def test_health_is_open_and_readiness_names_what_fails(api: Api) -> None:
    nobody = await api.client_with(None, ELSEWHERE)
    assert (await nobody.get("/healthz")).json() == {"status": "alive"}
    ready = await nobody.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    api.checks += [Check("redis", False, "Redis does not answer.", "Start it."), Check("lease", False, "x", "Wait.")]
    response = await nobody.get("/readyz")
    document = refused(response, 503, "not-ready")
    assert document["detail"] == "Not ready: redis, lease."
    assert [check["name"] for check in document["checks"] if not check["ok"]] == ["redis", "lease"]
    assert document["remedy"] == "Start it. Wait."
    assert response.headers["retry-after"]
    assert (await nobody.get("/healthz")).status_code == 200


async def test_readiness_for_predictions_looks_at_predictions_alone(api: Api, tmp_path: Path) -> None:
    nobody = await api.client_with(None, ELSEWHERE)
    api.checks += [Check("postgres", False, "Postgres does not answer.", "Start it.")]
    assert (await nobody.get("/readyz")).status_code == 503
    ready = await nobody.get("/readyz/predictions")
    check = {"name": "predictions", "ok": True, "detail": "answered", "remedy": ""}
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "checks": [check]})
    head = await nobody.head("/readyz/predictions")
    assert (head.status_code, head.content) == (200, b"")
    refused(await nobody.get("/readyz/predictions?all=yes"), 422, "invalid-request")
    # A reader that has read no version of the model yet.
    api.app.state.services = replace(api.services, reader=Reader(tmp_path))
    response = await nobody.get("/readyz/predictions")
    document = refused(response, 503, "not-ready")
    assert document["detail"] == "Not ready: predictions."
    assert [check["name"] for check in document["checks"]] == ["predictions"]
    assert document["remedy"] == document["checks"][0]["remedy"] != ""
    assert response.headers["retry-after"]
    assert (await nobody.head("/readyz/predictions")).status_code == 503


@pytest.mark.parametrize("path", ["/metrics", "/docs", "/openapi.json"])
async def test_what_describes_the_service_is_open_here_and_keyed_elsewhere(api: Api, path: str) -> None:
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"):
        here = await api.client_with(None, Host=host)
        assert (await here.get(path)).status_code == 200, host
    for field in FORWARDING:
        proxied = await api.client_with(None, **{field: "127.0.0.1"})
        refused(await proxied.get(path), 401, "unauthenticated")
    for host in ("rebound.example", "127.0.0.1.example", "localhost.example:8000", "10.0.0.1", "localhost@a", ""):
        rebound = await api.client_with(None, Host=host)
        refused(await rebound.get(path), 401, "unauthenticated")
    elsewhere = await api.client_with(None, ELSEWHERE)
    refused(await elsewhere.get(path), 401, "unauthenticated")
    _, key = await api.key(Scope.AUDIT_READ)
    assert (await (await api.client_with(key, ELSEWHERE)).get(path)).status_code == 200


async def test_metrics_count_by_route_template(api: Api) -> None:
    reader = await api.client(Scope.PREDICTIONS_READ)
    await reader.get("/predict/1")
    await reader.get("/predict/nobody-in-particular")
    await reader.get("/somewhere/else-altogether")
    await reader.request("BREW", "/predict/1")
    writer = await api.client(Scope.DELETIONS_WRITE)
    await writer.post("/deletions", json=node_body("1"))
    text = (await reader.get("/metrics")).text
    assert 'lethe_deletions_received_total{kind="node",process="api-0"} 1.0' in text
    assert 'lethe_http_requests_total{method="GET",process="api-0",route="/predict/{node}",status="200"} 1.0' in text
    assert 'lethe_http_requests_total{method="GET",process="api-0",route="unmatched",status="404"} 1.0' in text
    assert 'method="OTHER"' in text
    assert "particular" not in text
    assert "altogether" not in text
    # A scrape on this machine needs no key, so one that expired takes nothing from it.
    assert "lethe_deletions_received_total" in (await (await api.client_with("lethe_expired")).get("/metrics")).text


async def test_every_route_is_described_with_examples_and_its_problems(api: Api) -> None:
    document = (await (await api.client_with(None)).get("/openapi.json")).json()
    operations = {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    described = {(method, path) for method, path in operations}
    assert described >= {
        ("POST", "/deletions"),
        ("GET", "/deletions"),
        ("POST", "/deletions/search"),
        ("GET", "/deletions/{request_id}"),
        ("DELETE", "/deletions/{request_id}"),
        ("GET", "/predict/{node}"),
        ("POST", "/predict"),
        ("GET", "/model"),
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/readyz/predictions"),
        ("GET", "/metrics"),
    }
    assert document["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    schemas = document["components"]["schemas"]
    for (method, path), operation in operations.items():
        place = f"{method} {path}"
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], f"{place} {status}"
                assert response["content"]["application/problem+json"]["example"]["remedy"], f"{place} {status}"
            elif "application/json" in response.get("content", {}):
                assert has_example(response["content"]["application/json"], schemas), f"{place} {status}"
        if "requestBody" in operation:
            assert has_example(operation["requestBody"]["content"]["application/json"], schemas), place
        open_route = path in OPEN
        assert ("security" in operation) is not open_route, place
        assert operation["summary"], place
        assert operation["description"], place


def has_example(content: dict[str, Any], schemas: dict[str, Any]) -> bool:
    if "example" in content or "examples" in content:
        return True
    kinds = content["schema"].get("anyOf", [content["schema"]])
    return all(schemas[kind["$ref"].rpartition("/")[2]].get("examples") for kind in kinds)
