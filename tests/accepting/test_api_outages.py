"""Answers of the API while Postgres is down, with nothing half written."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from service.db import migrate
from service.domain.scopes import Scope
from service.processes.private_servers import Embedded
from tests.support.service.api_harness import Api, serving
from tests.support.service.bodies import node_body, refused

EVERYTHING = tuple(Scope)


@pytest.fixture
async def api(own_postgres: Embedded, tmp_path: Path) -> AsyncIterator[Api]:
    url = own_postgres.start().database_url
    assert url is not None
    await migrate.upgrade(url)
    async with serving(url, tmp_path) as api:
        yield api


async def test_an_outage_of_postgres_is_503_and_leaves_nothing_half_written(
    api: Api, own_postgres: Embedded, tmp_path: Path
) -> None:
    client = await api.client(*EVERYTHING)
    before = (await client.post("/deletions", json=node_body("1"), headers={"Idempotency-Key": "a"})).json()
    own_postgres.stop()

    for method, path, body in (
        ("POST", "/deletions", node_body("2")),
        ("GET", "/deletions", None),
        ("GET", before["links"]["self"], None),
        ("DELETE", before["links"]["self"], None),
        ("POST", "/deletions/search", {"nodes": ["1"]}),
        ("GET", "/predict/nobody", None),
    ):
        response = await client.request(method, path, json=body)
        refused(response, 503, "unavailable")
        assert int(response.headers["retry-after"]) >= 1
    # Predictions of live nodes need no database, nor does a known key.
    assert (await client.get("/predict/2")).status_code == 200
    refused(await (await api.client_with("unseen")).get("/predict/2"), 503, "unavailable")
    assert (await client.get("/healthz")).status_code == 200
    for method in ("GET", "HEAD"):
        assert (await client.request(method, "/readyz/predictions")).status_code == 200

    own_postgres.start()
    assert await api.count("requests") == 1
    assert await api.count("outbox") == 1
    again = await client.post("/deletions", json=node_body("1"), headers={"Idempotency-Key": "a"})
    assert again.json() == before
    accepted = await client.post("/deletions", json=node_body("2"))
    assert accepted.status_code == 202
    assert await api.count("requests") == 2
    await api.unneeded_keys.destroy_orphaned()
    assert api.request_keys.count() == 2


async def test_a_connection_lost_in_the_middle_is_503_and_the_next_request_works(
    database_url: str, tmp_path: Path
) -> None:
    async with serving(database_url, tmp_path) as api:
        client = await api.client(*EVERYTHING)
        link = (await client.post("/deletions", json=node_body("1"))).json()["links"]["self"]
        await end_connections(database_url)
        statuses = {(await client.get(link)).status_code for _ in range(12)}
        assert statuses <= {200, 503}
        assert (await client.get(link)).status_code == 200


async def end_connections(database_url: str) -> None:
    """End every other connection to this database, as an administrator or a failover does."""
    admin = await asyncpg.connect(database_url)
    try:
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
        )
    finally:
        await admin.close()
