"""Salts chosen by the caller: used as given, so that a lost answer does not lose them, and never twice."""

import asyncio
import hashlib
from secrets import token_hex
from typing import Any

import httpx2
import pytest

from service.db.transactions import transaction
from service.domain.scopes import Scope
from tests.support.service.api_harness import Api
from tests.support.service.bodies import WRITER, node_body, refused


@pytest.fixture
async def writer(api: Api) -> httpx2.AsyncClient:
    return await api.client(*WRITER)


def with_salts(body: dict[str, Any], *nodes: str, reference: str | None = None) -> dict[str, Any]:
    """Return a body with a new salt for each of `nodes`."""
    return body | {"salts": {"nodes": {node: token_hex(24) for node in nodes}, "reference": reference}}


async def test_given_salts_are_those_of_the_answer_and_of_the_log(api: Api, writer: httpx2.AsyncClient) -> None:
    body = with_salts(node_body("1", "2", reference="R"), "1", "2", reference=token_hex(24))
    accepted = (await writer.post("/deletions", json=body)).json()
    salts = body["salts"]
    assert accepted["salts"] == salts
    async with transaction(api.engine) as connection:
        query = "SELECT subject_commitments, reference_commitment FROM requests"
        row = (await connection.exec_driver_sql(query)).one()
        kept = set((await connection.exec_driver_sql("SELECT hash FROM used_salts")).scalars())
    digests = [hashlib.sha256(bytes.fromhex(salts["nodes"][node]) + node.encode()).digest() for node in ("1", "2")]
    assert row.subject_commitments == b"".join(digests)
    assert row.reference_commitment == hashlib.sha256(bytes.fromhex(salts["reference"]) + b"R").digest()
    # The database contains neither a known salt nor its digest.
    given = [bytes.fromhex(salt) for salt in (*salts["nodes"].values(), salts["reference"])]
    assert len(kept) == 3
    assert kept.isdisjoint([*given, *(hashlib.sha256(salt).digest() for salt in given)])


@pytest.mark.parametrize(
    "salt",
    [token_hex(23), token_hex(25), token_hex(24)[:-1], "AB" * 24, "zz" * 24, "", 17, None],
    ids=["short", "long", "half a byte", "capitals", "no hex", "empty", "a number", "null"],
)
async def test_an_invalid_salt_is_refused_with_its_place(writer: httpx2.AsyncClient, salt: object) -> None:
    body = node_body("1") | {"salts": {"nodes": {"1": salt}}}
    document = refused(await writer.post("/deletions", json=body), 422, "invalid-request")
    assert document["errors"][0]["loc"] == ["body", "node", "salts", "nodes"]


async def test_a_salt_is_never_used_twice(api: Api, writer: httpx2.AsyncClient) -> None:
    first = with_salts(node_body("1"), "1")
    [salt] = first["salts"]["nodes"].values()
    # A refused request has used no salts.
    unknown = node_body("1", "nobody") | {"salts": {"nodes": {"1": salt, "nobody": token_hex(24)}}}
    refused(await writer.post("/deletions", json=unknown), 404, "unknown-nodes")
    assert (await writer.post("/deletions", json=first)).status_code == 202
    other = await api.client(Scope.DELETIONS_WRITE)
    again = [
        first,
        node_body("2") | {"salts": {"nodes": {"2": salt}}},
        node_body("2", reference="R") | {"salts": {"nodes": {"2": token_hex(24)}, "reference": salt}},
    ]
    for client in (writer, other):
        for body in again:
            document = refused(await client.post("/deletions", json=body), 409, "salt-used")
            assert "lost with its Idempotency-Key" in document["remedy"]
    assert (await api.count("requests"), await api.count("used_salts")) == (1, 1)


async def test_of_requests_at_the_same_moment_one_gets_the_salt_and_the_others_go_on(
    api: Api, writer: httpx2.AsyncClient
) -> None:
    salt = token_hex(24)
    same = [node_body(node) | {"salts": {"nodes": {node: salt}}} for node in ("1", "2", "3")]
    own = [with_salts(node_body(node), node) for node in ("4", "5")]
    answers = await asyncio.gather(*(writer.post("/deletions", json=body) for body in (*same, *own)))
    assert sorted(answer.status_code for answer in answers[:3]) == [202, 409, 409]
    assert [answer.status_code for answer in answers[3:]] == [202, 202]
    assert (await api.count("requests"), await api.count("used_salts")) == (3, 3)


async def test_a_repetition_is_answered_as_the_first_time_until_the_salts_are_erased(
    api: Api, writer: httpx2.AsyncClient
) -> None:
    headers = {"Idempotency-Key": "one"}
    body = with_salts(node_body("1"), "1")
    first = (await writer.post("/deletions", json=body, headers=headers)).json()
    assert (await writer.post("/deletions", json=body, headers=headers)).json() == first
    other = with_salts(node_body("1"), "1")
    refused(await writer.post("/deletions", json=other, headers=headers), 409, "conflict")
    await api.forget(["1"], first["id"])
    await api.complete(first["id"])
    again = await writer.post("/deletions", json=body, headers=headers)
    assert again.status_code == 202
    assert again.json() == first | {"status": "completed", "salts": None}
    assert await api.count("requests") == 1
