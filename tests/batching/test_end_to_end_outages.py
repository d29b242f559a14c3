"""A running Lethe without its Redis or its Postgres: its answers, and its recovery."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from lethe_client.results import Accepted
from service.processes.private_servers import Embedded
from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, copied

pytestmark = pytest.mark.ci


@dataclass
class Fragile:
    """A Lethe and its servers, which tests stop and start; their addresses stay."""

    lethe: LetheProcess
    postgres: Embedded
    valkey: Embedded
    database_url: str
    #: Nodes that no test has used yet.
    nodes: Iterator[str]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, run outside Lethe."""
        return asyncio.run(rows_of(self.database_url, statement))

    def wait_until_ready(self) -> None:
        with self.lethe.http() as http:
            while http.get("/readyz").status_code != 200:
                self.lethe.assert_runs()

    def assert_each_completed_once(self) -> None:
        """Check that every request was completed, with one event of each kind and in one batch."""
        ((requests, targets),) = self.query("SELECT count(*), sum(count) FROM requests WHERE status = 'completed'")
        assert self.query("SELECT count(*) FROM requests") == [(requests,)]
        events = "SELECT type, count(*), count(DISTINCT request_id) FROM events GROUP BY type ORDER BY type"
        assert self.query(events) == [("applied", requests, requests), ("completed", requests, requests)]
        assert self.query("SELECT sum(requests), sum(deleted_nodes) FROM versions") == [(requests, targets)]
        assert self.query("SELECT count(*) FROM outbox") == [(0,)]


@pytest.fixture(scope="module")
def fragile(models: Models, lethe_start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fragile]:
    """One process for all tests here: each leaves it working, without a restart."""
    folder = tmp_path_factory.mktemp("fragile")
    postgres = Embedded(folder / "postgres", valkey=False, durable=False)
    valkey = Embedded(folder / "valkey", postgres=False, durable=False)
    database_url, redis_url = postgres.start().database_url, valkey.start().redis_url
    assert database_url is not None
    home = folder / "home"
    copied(models.trained(SMALL), home / "model")
    # A short lease: without Postgres, predictions end with it.
    with LetheProcess(lethe_start, home, database_url=database_url, redis_url=redis_url, lease_ttl_s=1) as lethe:
        yield Fragile(lethe.start(), postgres, valkey, database_url, iter(models.graph(SMALL).node_ids))
    postgres.stop()
    valkey.stop()


async def rows_of(database_url: str, statement: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(database_url)
    try:
        return [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()


def test_a_stream_of_deletions_survives_both_servers_going_away_under_it(fragile: Fragile) -> None:
    nodes = [next(fragile.nodes) for _ in range(60)]
    accepted: list[Accepted] = []
    with fragile.lethe.client() as client:
        for number, node in enumerate(nodes):
            if number in (20, 45):
                fragile.postgres.stop()
                fragile.postgres.start()
            if number in (10, 45):
                fragile.valkey.stop()
                fragile.valkey.start()
            accepted.append(client.request_deletion([node], idempotency_key=f"node-{node}"))
        for one in accepted:
            assert client.wait(one.id).audit is not None
        assert set(client.predict_many(nodes).deleted) == set(nodes)
    fragile.wait_until_ready()
    fragile.assert_each_completed_once()
