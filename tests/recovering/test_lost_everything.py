"""Home and database restored from one old backup: the erasure ledger deletes again what both forgot."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.errors import StateMismatch
from tests.support.service.bodies import edge_body, features_body, node_body
from tests.support.service.db_harness import until
from tests.support.service.kinds_world import CHANNEL
from tests.support.service.running import Lethe, running
from tests.support.service.sites import Site, deleted, everything, only_a_start

pytestmark = pytest.mark.ci

#: What a node that comes back brings.
ROW = {str(column): 1.0 for column in range(0, 12, 2)}


@pytest.fixture
def secured(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site with a ledger in a folder beside its home."""
    ledger = tmp_path / "elsewhere"
    monkeypatch.setenv("LETHE_LEDGER", str(ledger))
    site.settings = site.settings.model_copy(update={"ledger": str(ledger)})
    return site


def backed_up(site: Site) -> Callable[[], None]:
    """Back up home and database; return what restores both."""
    copy, moment = site.settings.home.with_name("backup"), site.moment()
    shutil.copytree(site.settings.home, copy)

    def restore() -> None:
        shutil.rmtree(site.settings.home)
        shutil.copytree(copy, site.settings.home)
        site.restore_database(moment)

    return restore


def entries(site: Site) -> list[Path]:
    return sorted(Path(str(site.settings.ledger)).glob("*.entry"))


def refused_start(site: Site, *, predicts: bool = False) -> str:
    """Return why the unlearner ends at a start; `predicts` says whether an earlier publication still answers."""
    found: list[BaseException] = []

    async def start() -> None:
        async with running(site.settings) as lethe:
            await until(lethe.has_failed)
            assert ((await lethe.client.get("/predict/21")).status_code == 200) == predicts
            found.extend(lethe.failures)

    asyncio.run(start())
    [error] = found
    assert isinstance(error, StateMismatch)
    return error.detail


async def come_back(lethe: Lethe, *nodes: str) -> None:
    """Add deleted nodes again."""
    body = {"nodes": [{"id": node, "features": ROW, "rejoin": True} for node in nodes]}
    await lethe.completed((await lethe.client.post("/additions", json=body)).json())


async def statuses(lethe: Lethe, *nodes: str) -> list[int]:
    """Return the status of a prediction of each node."""
    return [(await lethe.client.get(f"/predict/{node}")).status_code for node in nodes]


def test_a_restore_of_everything_resurrects_nobody(secured: Site) -> None:
    site = secured
    site.delete(node_body("3"), node_body("5"), node_body("6"))
    site.serve(lambda lethe: come_back(lethe, "5", "6"))
    moment = site.moment()
    site.delete(*everything(site.world), node_body("30"), node_body("5"))
    site.serve(lambda lethe: come_back(lethe, "30"))
    written = entries(site)
    site.restore_store(moment)
    site.restore_database(moment)
    assert site.world.left_on_disk(site.model) == {"node", "features", "edge"}

    # Store and database agree, and only the ledger knows better.
    assert "which this database does not know" in refused_start(site)
    ran = site.recover()
    assert ran.status == 1
    assert "recover --ledger" in ran.stderr
    ran = site.recover("--ledger", "--json")
    assert ran.status == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["ledger"]["entries"], report["ledger"]["rejoined"], report["unknown_nodes"]) == (6, 1, 0)
    assert sorted(report["lost_requests"].values()) == ["addition", "edge", "features", "node", "node", "node"]
    assert "those who joined again since count as deleted" in ran.stderr
    [recovery] = site.recoveries()
    assert deleted(recovery) == (4, 1, 1)
    [logged] = site.recovered_by_the_log()
    assert logged["ledger"] == report["ledger"]
    assert site.world.left_on_disk(site.model) == set()
    assert len(entries(site)) == len(written) + 1
    assert "Nothing was changed" in site.recover("--ledger").stdout

    async def look(lethe: Lethe) -> None:
        # "6" had joined again before the backup, and stays. "30" returns only with a new request.
        nodes = ["3", "5", "6", "21", CHANNEL, "30", "7"]
        assert await statuses(lethe, *nodes) == [410, 410, 200, 410, 410, 410, 200]
        await come_back(lethe, "30")
        assert await statuses(lethe, "30") == [200]

    site.serve(look)
    # The old evidence is intact, and says what was recovered.
    leaves = site.verified_leaves()
    assert [leaf["details"]["ledger"] for leaf in leaves if leaf["type"] == "recovered"] == [report["ledger"]]


@pytest.mark.slow
def test_a_ledger_that_begins_late_has_what_was_deleted_before(secured: Site) -> None:
    site, without = secured, secured.settings.model_copy(update={"ledger": None})
    unsecured = replace(site, settings=without)
    unsecured.delete(node_body("3"))
    restore = backed_up(site)
    refused = site.recover("--ledger")
    assert (refused.status, "has no entries" in refused.stderr) == (1, True)
    unsecured.delete(features_body("20"))
    site.serve(only_a_start)
    [first] = entries(site)
    # What was deleted while the setting was missing is added at the next start.
    unsecured.delete(node_body("21"))
    site.serve(only_a_start)
    assert len(entries(site)) == 2
    assert entries(site)[0] == first
    key = site.settings.home / "keys" / "unlearner" / "ledger-1.key"
    held_outside = key.read_text()
    restore()
    # The backup is older than the key, which the operator keeps elsewhere.
    refused = site.recover("--take-over", "--ledger")
    assert refused.status == 1
    assert "ledger-1.key is missing" in refused.stderr
    key.write_text(held_outside)
    key.chmod(0o600)
    assert site.recover("--take-over", "--ledger").status == 0
    site.world.nodes.add("21")
    site.world.features.add("20")
    site.assert_forgotten()


def test_deletions_go_on_while_the_ledger_cannot_be_written_and_complete_when_it_can(secured: Site) -> None:
    # Long enough for a starved machine: a service that loses its lease while the ledger is away does not start again.
    site = replace(secured, settings=secured.settings.model_copy(update={"lease_ttl_s": 20}))
    site.delete(node_body("3"))
    ledger = Path(str(site.settings.ledger))

    async def work(lethe: Lethe) -> None:
        await asyncio.to_thread(ledger.rename, ledger.with_name("unmounted"))
        accepted = (await lethe.client.post("/deletions", json=node_body("21"))).json()

        async def is_applied() -> bool:
            return bool((await lethe.state(accepted))["status"] == "applied")

        await until(is_applied)
        assert (await lethe.client.get("/predict/21")).status_code == 410

        async def is_reported() -> bool:
            checks = {one["name"]: one for one in (await lethe.client.get("/readyz")).json()["checks"]}
            found = checks.get("ledger", {"ok": True})
            return not found["ok"] and str(ledger) in found["detail"]

        await until(is_reported)
        assert (await lethe.state(accepted))["status"] == "applied"
        await asyncio.to_thread(ledger.with_name("unmounted").rename, ledger)
        await lethe.completed(accepted)

    site.serve(work)
    site.world.nodes.add("21")
    assert len(entries(site)) == 3
    site.assert_forgotten()


@pytest.mark.slow
def test_what_ran_without_the_ledger_after_a_restore_survives_the_next_restore(secured: Site) -> None:
    site, unsecured = secured, replace(secured, settings=secured.settings.model_copy(update={"ledger": None}))
    ledger = Path(str(site.settings.ledger))
    site.delete(node_body("3"))
    first = site.moment()
    # In one entry: "5" is deleted and returns. Its older data must not.
    unsecured.delete(node_body("5"))
    unsecured.serve(lambda lethe: come_back(lethe, "5"))
    site.serve(only_a_start)
    site.delete(node_body("21"), node_body("30"), node_body("6"))
    for deleted_in_between in ("7", None):
        site.restore_store(first)
        site.restore_database(first)
        if deleted_in_between is not None:
            ledger.rename(ledger.with_name("forgotten"))
            refused = site.recover("--take-over", "--ledger")
            assert (refused.status, "is empty" in refused.stderr) == (1, True)
            ledger.with_name("forgotten").rename(ledger)
            # The number of this version is one that the ledger has.
            unsecured.delete(node_body(deleted_in_between))
        ran = site.recover("--take-over", "--ledger", "--json")
        assert ran.status == 0, ran.stderr

    async def look(lethe: Lethe) -> None:
        assert await statuses(lethe, "3", "5", "21", "30", "6", "7", "8") == [410, 410, 410, 410, 410, 410, 200]

    site.serve(look)


@pytest.mark.slow
def test_a_hundred_deletions_after_the_backup_are_done_again(secured: Site) -> None:
    site = secured
    site.delete(node_body("0"))
    restore = backed_up(site)
    nodes = [str(node) for node in range(1, 81)]
    features = [str(node) for node in range(100, 115)]
    graph = site.world.graph
    pairs = zip(*graph.adjacency.nonzero(), strict=True)
    named = ((graph.node_ids[first], graph.node_ids[second]) for first, second in pairs if first < second)
    edges = [pair for pair in named if {"0", *nodes, *features}.isdisjoint(pair)][:5]
    bodies: list[dict[str, Any]] = [node_body(one) for one in nodes]
    bodies += [features_body(one) for one in features] + [edge_body(one) for one in edges]
    assert len(bodies) == 100
    site.delete(*bodies)
    restore()
    ran = site.recover("--take-over", "--ledger", "--json")
    assert ran.status == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["ledger"]["entries"], len(report["lost_requests"])) == (100, 100)
    assert (report["deleted_nodes"], report["deleted_features"], report["deleted_edges"]) == (80, 15, 5)
    site.assert_forgotten()
    leaves = site.verified_leaves()
    assert [leaf["details"]["ledger"]["entries"] for leaf in leaves if leaf["type"] == "recovered"] == [100]


@pytest.mark.slow
def test_entries_cut_off_are_written_again_and_missing_ones_are_refused(secured: Site) -> None:
    site = secured
    site.delete(node_body("3"))
    for path in entries(site)[1:]:
        path.unlink()
    # The tail is missing, and this database has it: it is written again.
    site.serve(only_a_start)
    assert len(entries(site)) == 2
    kept = entries(site)[0].read_bytes()
    entries(site)[0].unlink()
    # This database has everything that the ledger recorded, so predictions continue.
    assert "lacks 1 of its entries: 1" in refused_start(site, predicts=True)
    entries(site)[0].with_name("000000000001.entry").write_bytes(kept)
    site.serve(only_a_start)
