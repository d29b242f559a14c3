"""A database that belongs to one home refuses another before any key is checked, with advice that loses nothing."""

import asyncio
import shutil
from dataclasses import replace

import asyncpg
import pytest

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
    # An upgrade of the database grants this right again; in another home it must not.
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


async def _execute(site: Site, statement: str) -> None:
    connection = await asyncpg.connect(site.settings.database_url)
    await connection.execute(statement)
    await connection.close()
