"""Wrapping of every answer: problem documents, the size limit, headers, and the log line."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import Body, FastAPI
from pydantic import BaseModel, ConfigDict

from service.errors import LeaseLost, Unavailable
from service.observability.logging import Answer
from service.web import problems
from service.web.middleware import OuterMiddleware

LIMIT = 2_000
SECRET = "node-4711"


class Thing(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: str


@pytest.fixture
def answers() -> list[Answer]:
    return []


@pytest.fixture
async def client(answers: list[Answer]) -> AsyncIterator[httpx2.AsyncClient]:
    app = FastAPI()
    problems.install(app)

    @app.post("/things")
    async def take(thing: Annotated[Thing, Body()]) -> str:
        return thing.name

    @app.get("/broken/{node}")
    async def broken(node: str) -> str:
        raise KeyError(node)

    @app.get("/lost")
    async def lost() -> str:
        raise LeaseLost(f"about {SECRET}", "Nothing.")

    @app.get("/away")
    async def away() -> str:
        raise Unavailable("The database does not answer.", "Try again.")

    @app.get("/stopped")
    async def stopped() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)
        return "never"

    app.add_middleware(OuterMiddleware, max_body_bytes=LIMIT, observe=answers.append)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://lethe") as client:
        yield client


def check_problem(response: httpx2.Response, status: int, slug: str) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["type"] == f"urn:lethe:problem:{slug}"
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    assert document["remedy"]
    return document


async def test_a_request_that_a_stop_of_the_server_cancels_is_answered_that_it_can_be_repeated(
    client: httpx2.AsyncClient, answers: list[Answer]
) -> None:
    response = await client.get("/stopped")
    assert "Idempotency-Key" in check_problem(response, 503, "commit-unanswered")["remedy"]
    assert response.headers["retry-after"]
    assert [answer.status for answer in answers] == [503]


async def test_a_declared_body_over_the_limit_is_refused_unread(client: httpx2.AsyncClient) -> None:
    document = check_problem(await client.post("/things", content=b"x" * (LIMIT + 1)), 413, "too-large")
    assert str(LIMIT) in str(document["detail"])


async def test_a_body_that_does_not_state_its_length_is_cut_off_at_the_limit(client: httpx2.AsyncClient) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 500
            yield b" " * 500

    response = await client.post("/things", content=endless(), headers={"Content-Type": "application/json"})
    check_problem(response, 413, "too-large")
    assert sent <= LIMIT + 1_000


@pytest.mark.parametrize("path", [f"/broken/{SECRET}", "/lost"], ids=["unexpected", "of ours"])
async def test_an_error_inside_says_nothing_of_what_went_wrong(
    client: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    response = await client.get(path)
    check_problem(response, 500, "internal-error")
    assert SECRET not in response.text
    assert "KeyError" not in response.text
    assert response.headers["x-request-id"]


async def test_an_unknown_route_and_a_wrong_method_are_problem_documents(client: httpx2.AsyncClient) -> None:
    check_problem(await client.get("/nothing/here"), 404, "no-such-route")
    response = await client.get("/things")
    check_problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 1_900, b'{"name": NaN'])
async def test_a_body_that_is_no_json_is_400(client: httpx2.AsyncClient, body: bytes) -> None:
    response = await client.post("/things", content=body, headers={"Content-Type": "application/json"})
    check_problem(response, 400, "malformed-body")


async def test_a_body_of_another_media_type_is_415(client: httpx2.AsyncClient) -> None:
    response = await client.post("/things", content=b'{"name":"a"}', headers={"Content-Type": "text/plain"})
    check_problem(response, 415, "unsupported-media-type")
    assert response.headers["accept"] == "application/json"


@pytest.mark.parametrize(
    ("body", "place"),
    [({}, "name"), ({"name": 4711}, "name"), ({"name": "a", "more": SECRET}, "more"), ({"name": None}, "name")],
)
async def test_what_does_not_fit_the_schema_is_named_and_not_repeated(
    client: httpx2.AsyncClient, body: dict[str, object], place: str
) -> None:
    response = await client.post("/things", json=body)
    document = check_problem(response, 422, "invalid-request")
    (fault,) = document["errors"]
    assert fault["loc"] == ["body", place]
    assert set(fault) == {"loc", "msg"}
    assert "4711" not in response.text


@pytest.mark.parametrize(
    "name", ["Host", "Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID", "HX-Target"]
)
async def test_a_field_of_which_one_is_read_is_refused_when_it_comes_twice(
    client: httpx2.AsyncClient, name: str
) -> None:
    for values in (("a", "b"), ("a", "a")):
        fields = [*((name, value) for value in values), *([] if name == "Host" else [("Host", "lethe")])]
        document = check_problem(await client.get("/things", headers=fields), 400, "malformed-request")
        assert name.lower() in document["detail"]


@pytest.mark.parametrize(("version", "status"), [("1.1", 400), ("1.0", 404)])
async def test_a_host_is_demanded_of_http_1_1_alone(version: str, status: int) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    app = FastAPI()
    problems.install(app)
    app.add_middleware(OuterMiddleware, max_body_bytes=LIMIT, observe=lambda answer: None)
    scope = {"type": "http", "http_version": version, "method": "GET", "path": "/", "query_string": b"", "headers": []}
    await app(scope, receive, send)
    assert sent[0]["status"] == status


@pytest.mark.parametrize(("name", "value"), [("Content-Encoding", "gzip"), ("Transfer-Encoding", "gzip, chunked")])
async def test_a_compressed_body_is_415_with_what_is_accepted(
    client: httpx2.AsyncClient, name: str, value: str
) -> None:
    response = await client.post("/things", content=b"x", headers={name: value})
    check_problem(response, 415, "unsupported-coding")
    assert response.headers["accept-encoding"] == "identity"


async def test_head_is_answered_as_get_is_and_counted_as_head(
    client: httpx2.AsyncClient, answers: list[Answer]
) -> None:
    for path in ("/away", "/lost", "/things", "/nothing"):
        asked, head = await client.get(path), await client.head(path)
        assert head.status_code == asked.status_code
        assert head.headers["content-length"] == asked.headers["content-length"]
        assert head.headers.get("allow") == asked.headers.get("allow")
        assert answers[-1].method == "HEAD"


async def test_every_answer_carries_the_security_headers_and_an_id_of_its_own(client: httpx2.AsyncClient) -> None:
    ids = set()
    for response in (await client.get("/nothing"), await client.post("/things", json={"name": "a"})):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["referrer-policy"] == "no-referrer"
        ids.add(response.headers["x-request-id"])
    assert len(ids) == 2


async def test_what_is_observed_names_routes_and_never_paths(
    client: httpx2.AsyncClient, answers: list[Answer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await client.get(f"/broken/{SECRET}")
    await client.get(f"/no/route/{SECRET}")
    await client.post("/things", json={SECRET: 1})
    assert [(one.route, one.status) for one in answers] == [
        ("/broken/{node}", 500),
        ("unmatched", 404),
        ("/things", 422),
    ]
    assert all(SECRET not in str(one) for one in answers)
