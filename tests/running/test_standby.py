"""A second unlearner stands by: it takes over after the first has died, and work accepted between is done once."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.clients.command_line import CommandLine, Ran
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, version_of

pytestmark = pytest.mark.ci


async def fetched(url: str, query: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def test_a_standby_takes_over_from_one_that_is_killed(
    prepared: Path,
    servers: dict[str, str],
    database_url: str,
    lethe_start: Start,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def doctor() -> Ran:
        return CommandLine(capsys)("doctor", "--role", "unlearner", "--home", prepared)

    def part(role: str, name: str) -> LetheProcess:
        return LetheProcess(lethe_start, prepared, role=role, part=name, lease_ttl_s=1, api_workers=1, **servers)

    first, second, api = part("unlearner", "first"), part("unlearner", "second"), part("api", "api")
    with first.start(), second, api.start():
        second.launch()
        # The health check reports both as well, once the second stands by.
        while "is waiting for the lease." not in (examined := await asyncio.to_thread(doctor)).stdout:
            second.assert_runs()
        assert examined.status == 0
        assert "unlearner2" in examined.stdout
        with api.http() as http:
            page = http.get("/metrics").text
        for name in ("api-0", "unlearner", "unlearner2"):
            assert f'lethe_restarts_total{{process="{name}"}} 0.0' in page
        assert version_of(api.delete(["0"])) == 1

        first.kill()
        with api.client() as client:
            between = client.request_deletion(["1"])
            assert api.predict(["40"]).model_version == 1
            assert second.until_ready() is None
            assert version_of(client.wait(between.id, timeout_s=60.0)) == 2
        assert version_of(api.delete(["2"])) == 3
        # The lease moved from the first to the second, which may lose and retake it on a busy machine.
        [(fencing,)] = await fetched(database_url, "SELECT fencing FROM leases")
        assert fencing >= 2
        # Nothing was done twice.
        applied = "SELECT count(*), count(DISTINCT request_id) FROM events WHERE type = 'applied'"
        assert await fetched(database_url, applied) == [(3, 3)]
        assert api.stop().status == 0
        assert second.stop().status == 0
    assert (await asyncio.to_thread(doctor)).status == 1
