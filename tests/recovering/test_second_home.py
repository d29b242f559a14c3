"""A database that belongs to one home refuses another before any key is checked, with advice that loses nothing."""

import asyncio
import shutil
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest

from service.db import lease as leases
from service.db.engine import create_engine
from service.db.lease import AnotherHome
from service.processes.unlearner_process import unlearning
from tests.support.service.bodies import node_body
from tests.support.service.repair_world import query
from tests.support.service.sites import Site


@pytest.mark.ci
def test_a_second_home_is_refused_as_such_while_a_request_is_queued_that_its_keys_cannot_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.delete(node_body("3"))
    second = site.settings.home.with_name("second")
    shutil.copytree(site.settings.home / "keys", second / "keys")
    shutil.copytree(site.model, second / "model")
    site.queue("4")
    # A start's upgrade would grant this right again; a refused start must not.
    asyncio.run(_execute(site, "REVOKE SELECT ON requests FROM lethe_api"))
    refusal = "The database belongs to another LETHE_HOME"
    other = replace(site, settings=site.settings.model_copy(update={"home": second, "deadline_days": 1}))
    other.refused(refusal, AnotherHome)
    kept = "SELECT deadline_days, has_table_privilege('lethe_api', 'requests', 'SELECT') FROM service_settings"
    assert asyncio.run(query(site.settings.database_url, kept)) == [(site.settings.deadline_days, False)]

    async def unlearn() -> None:
        async with unlearning(other.settings, on_failure=lambda error: None):
            pass

    # A part that runs alone, without the preparation.
    with pytest.raises(AnotherHome):
        asyncio.run(unlearn())

    with monkeypatch.context() as patched:
        patched.setenv("LETHE_HOME", str(second))
        for command in (
            ("recover",),
            ("recover", "--accept-lost", "requests", "--accept-lost", "api-pepper"),
            ("keys", "create", "shop", "--scope", "predictions:read"),
            ("doctor",),
        ):
            ran = site.command(*command)
            said = " ".join((ran.stdout + ran.stderr).split())
            assert (ran.status, refusal in said) == (1, True), said
            assert "./lethe recover --take-over" in said
            assert "--accept-lost" not in said
    assert asyncio.run(query(site.settings.database_url, kept)) == [(site.settings.deadline_days, False)]

    # The home that the database belongs to can read the request, and completes it.
    site.delete(node_body("5"))
    site.world.nodes.add("4")
    site.assert_forgotten()


def test_keys_are_not_given_up_while_another_home_works_with_them(site: Site) -> None:
    site.delete(node_body("3"))
    url = str(site.settings.database_url)

    async def hold() -> None:
        engine = create_engine(url)
        try:
            lease = await leases.acquire(engine, "small", "the other", 300, home=uuid4().hex, take_over=True)
            assert lease is not None
        finally:
            await engine.dispose()

    asyncio.run(hold())
    (site.settings.home / "keys" / "api-pepper.key").unlink()
    keys = "SELECT count(*), count(revoked_at) FROM api_keys"
    before = asyncio.run(query(url, keys))
    ran = site.recover("--take-over", "--accept-lost", "api-pepper")
    assert ran.status == 4
    assert "Another process holds the lease" in ran.stderr
    assert asyncio.run(query(url, keys)) == before != [(0, 0)]

    asyncio.run(_execute(site, "UPDATE leases SET expires_at = clock_timestamp()"))
    owner = "SELECT home FROM leases"
    others = asyncio.run(query(url, owner))
    assert site.recover("--take-over", "--accept-lost", "nonsense").status == 2
    assert asyncio.run(query(url, owner)) == others
    assert site.recover("--take-over", "--accept-lost", "api-pepper").status == 0
    assert asyncio.run(query(url, "SELECT count(*) FROM api_keys WHERE revoked_at IS NULL")) == [(0,)]


async def _execute(site: Site, statement: str) -> None:
    connection = await asyncpg.connect(site.settings.database_url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
