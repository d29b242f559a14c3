"""A second unlearner stands by: it takes over once the first has died, and what was accepted between is done once."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, copied, version_of


def until(found: Callable[[], bool], one: LetheProcess) -> None:
    while not found():
        one.assert_runs()
        time.sleep(0.02)


async def fetched(url: str, query: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def test_a_standby_takes_over_from_one_that_is_killed(
    small_model: Path, tmp_path: Path, database_url: str, redis_url: str, lethe_start: Start
) -> None:
    home = tmp_path / "home"
    copied(small_model, home / "model")

    def part(role: str, name: str) -> LetheProcess:
        servers = {"database_url": database_url, "redis_url": redis_url}
        return LetheProcess(lethe_start, home, role=role, part=name, lease_ttl_s=1, api_workers=1, **servers)

    prepare = part("prepare", "prepare")
    prepare.launch()
    assert prepare.ended().status == 0
    first, second, api = part("unlearner", "first"), part("unlearner", "second"), part("api", "api")
    with first.start(), second, api.start():
        second.launch()
        until(lambda: "unlearner.listening" in second.log(), second)
        assert version_of(api.delete(["0"])) == 1

        first.kill()
        with api.client() as client:
            between = client.request_deletion(["1"])
            assert api.predict(["40"]).model_version == 1
            assert second.until_ready() is None
            assert version_of(client.wait(between.id, timeout_s=60.0)) == 2
        assert version_of(api.delete(["2"])) == 3
        # The lease went from the first to the second, which on a busy machine may lose and take it again.
        [(fencing,)] = await fetched(database_url, "SELECT fencing FROM leases")
        assert fencing >= 2
        # Nothing was done twice.
        applied = "SELECT count(*), count(DISTINCT request_id) FROM events WHERE type = 'applied'"
        assert await fetched(database_url, applied) == [(3, 3)]
        assert api.stop().status == 0
        assert second.stop().status == 0
