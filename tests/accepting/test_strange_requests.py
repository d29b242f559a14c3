"""Unusual requests: refused briefly, without an internal error, and without delaying others."""

import json
from typing import Any

import httpx2
import pytest

from service.domain.scopes import Scope
from service.errors import MOST_FAULTS
from tests.support.service.api_harness import Api

#: Bytes of the longest refusal of a body: some faults, one per line.
SHORT = 8_192


@pytest.fixture
async def client(api: Api) -> httpx2.AsyncClient:
    return await api.client(*Scope)


def of_one_mebibyte(faulty: str, frame: str) -> bytes:
    """Return `frame` around as many `faulty` as fit into the largest body."""
    return frame.replace("…", ",".join([faulty] * ((1_048_576 - len(frame)) // (len(faulty) + 1)))).encode()


MANY_FAULTS: list[tuple[str, bytes]] = [
    ("/predict", of_one_mebibyte("1", '{"nodes":[…]}')),
    ("/predict", of_one_mebibyte('""', '{"nodes":[…]}')),
    ("/predict", of_one_mebibyte("[]", '{"nodes":[…]}')),
    ("/deletions", of_one_mebibyte("1", '{"kind":"node","nodes":[…]}')),
    ("/deletions", of_one_mebibyte("1", '{"kind":"features","nodes":[…]}')),
    ("/deletions", of_one_mebibyte("[]", '{"kind":"edge","edges":[…]}')),
    ("/deletions", of_one_mebibyte("1", '{"kind":"edge","edges":[[…]]}')),
    ("/deletions/search", of_one_mebibyte("null", '{"nodes":[…]}')),
    ("/deletions", json.dumps({"kind": "x" * 1_000_000}).encode()),
    ("/predict", json.dumps({"nodes": ["1"], "x" * 1_000_000: 1}).encode()),
    *(
        (path, json.dumps({str(number): 0 for number in range(80_000)} | {"kind": "node"}).encode())
        for path in ("/predict", "/deletions", "/deletions/search")
    ),
]


async def test_a_body_of_faults_is_refused_at_the_first_of_them(client: httpx2.AsyncClient) -> None:
    for path, body in MANY_FAULTS:
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, (path, body[:60])
        assert len(answer.content) < SHORT, (path, body[:60])
        assert 1 <= len(answer.json()["errors"]) <= MOST_FAULTS, (path, body[:60])


async def test_no_more_parameters_are_looked_at_than_there_are(client: httpx2.AsyncClient) -> None:
    for path in ("/deletions", "/audit/summary", "/audit/series", "/audit/export", "/drills"):
        answer = await client.get(path, params={f"p{number}": "" for number in range(5_000)})
        assert answer.status_code == 422
        assert len(answer.json()["errors"]) == 1


async def test_many_named_nodes_are_answered_as_few_are(client: httpx2.AsyncClient) -> None:
    many = ["1", "nobody", "2"] * 3_000
    answer = (await client.post("/predict", json={"nodes": many})).json()
    assert [one["node"] for one in answer["predictions"]] == ["1", "2"] * 3_000
    assert answer["unknown"] == ["nobody"] * 3_000
    assert all(set(one) == {"node", "label", "probabilities"} for one in answer["predictions"])
    found = (await client.post("/deletions/search", json={"nodes": many})).json()
    assert (found["found"], found["not_found"]) == ([], ["1", "nobody", "2"])


STRANGE_HEADERS: list[dict[str, str]] = [
    {"Origin": "http://["},
    {"Origin": "//[x"},
    {"Origin": "http://lethe:port"},
    {"Host": "["},
    {"Host": "[::1"},
    {"Host": ""},
    {"Host": "a b\\"},
    {"Cookie": 'lethe_login="\\012a"'},
    {"Cookie": 'lethe_session="\\000"'},
    {"HX-Request": "true", "HX-Current-URL": "http://[/dashboard/\\[", "HX-Target": "results"},
    {"Content-Type": "application/json; charset=\u00fc"},
    {"Content-Type": ";;;="},
    {"Authorization": "Bearer \u00fc\u0080"},
    {"X-Forwarded-Proto": "["},
]


async def test_no_header_makes_an_error_inside(api: Api) -> None:
    client = await api.client_with(None)
    for method, path in (
        ("GET", "/dashboard/login"),
        ("GET", "/dashboard/requests?status=queued"),
        ("POST", "/dashboard/login"),
        ("POST", "/dashboard/logout"),
        ("GET", "/dashboard/nowhere"),
        ("GET", "/predict/1"),
        ("POST", "/predict"),
        ("POST", "/deletions"),
        ("GET", "/docs"),
        ("GET", "/metrics"),
    ):
        for headers in STRANGE_HEADERS:
            sent: dict[str, Any] = {name: value.encode("latin-1") for name, value in headers.items()}
            answer = await client.request(method, path, headers={"Accept": "text/html", **sent})
            assert answer.status_code < 500, (method, path, headers, answer.text)


async def test_no_path_makes_an_error_inside(client: httpx2.AsyncClient) -> None:
    for prefix in (
        "/",
        "/predict/",
        "/docs/assets/",
        "/dashboard/assets/",
        "/dashboard/requests/",
        "/deletions/",
        "/log/proof/",
    ):
        for name in (
            "%00",
            "a%00b",
            "..%2f..%2fetc%2fpasswd",
            "%ff%fe",
            "x" * 5_000,
            "%0a",
            "[",
            "%5c%5c",
            "1e9",
            "9" * 400,
        ):
            answer = await client.get(f"{prefix}{name}")
            assert answer.status_code < 500, (prefix, name)
