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
from tests.support.service.running import Lethe
from tests.support.service.sites import Site, deleted, everything, only_a_start

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


def rejoin(site: Site, node: str) -> None:
    async def work(lethe: Lethe) -> None:
        body = {"nodes": [{"id": node, "features": ROW, "rejoin": True}]}
        await lethe.completed((await lethe.client.post("/additions", json=body)).json())

    site.serve(work)


def status_of(site: Site, *nodes: str) -> list[int]:
    found: list[int] = []

    async def work(lethe: Lethe) -> None:
        answers = [await lethe.client.get(f"/predict/{node}") for node in nodes]
        found.extend(answer.status_code for answer in answers)

    site.serve(work)
    return found


def test_a_restore_of_everything_resurrects_nobody(secured: Site) -> None:
    site = secured
    for node in ("3", "5", "6"):
        site.delete(node_body(node))
    for node in ("5", "6"):
        rejoin(site, node)
    restore = backed_up(site)
    site.delete(*everything(site.world), node_body("30"), node_body("5"))
    rejoin(site, "30")
    written = entries(site)
    restore()
    assert site.world.left_on_disk(site.model) == {"node", "features", "edge"}

    # Nothing is served that the ledger knows to be deleted.
    assert site.recover().status != 0
    assert entries(site) == written
    ran = site.recover("--take-over", "--ledger", "--json")
    assert ran.status == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["ledger"]["entries"], report["ledger"]["rejoined"]) == (6, 1)
    assert (report["deleted_nodes"], report["deleted_features"], report["deleted_edges"]) == (4, 1, 1)
    assert sorted(report["lost_requests"].values()) == ["addition", "edge", "features", "node", "node", "node"]
    assert "those who joined again since count as deleted" in ran.stderr
    [recovery] = site.recoveries()
    assert deleted(recovery) == (4, 1, 1)
    [logged] = site.recovered_by_the_log()
    assert logged["ledger"] == report["ledger"]

    assert site.world.left_on_disk(site.model) == set()
    # "6" had joined again before the backup, and stays; "30" and "5" are gone.
    assert status_of(site, "3", "5", "6", "21", CHANNEL, "30", "7") == [410, 410, 200, 410, 410, 410, 200]
    assert len(entries(site)) == len(written) + 1
    assert {leaf["type"] for leaf in site.verified_leaves()} >= {"completed", "recovered"}
    again = site.recover("--ledger")
    assert "Nothing was changed" in again.stdout
    # And they return only with a new request.
    rejoin(site, "30")
    assert status_of(site, "30") == [200]


def test_a_start_after_such_a_restore_is_refused_until_the_ledger_was_replayed(secured: Site) -> None:
    site = secured
    site.delete(node_body("3"))
    restore = backed_up(site)
    site.delete(node_body("21"))
    restore()
    assert site.recover("--take-over").status == 1
    refused = site.recover("--take-over")
    assert "The erasure ledger" in refused.stderr
    assert "which this database does not know" in refused.stderr
    site.recover("--take-over", "--ledger")
    site.assert_forgotten()


def test_a_ledger_that_begins_late_has_what_was_deleted_before(secured: Site) -> None:
    site, without = secured, secured.settings.model_copy(update={"ledger": None})
    unsecured = replace(site, settings=without)
    unsecured.delete(node_body("3"))
    restore = backed_up(site)
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
    site = secured
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
def test_a_hundred_deletions_after_the_backup_are_done_again(secured: Site) -> None:
    site = secured
    site.delete(node_body("0"))
    restore = backed_up(site)
    nodes = [str(node) for node in range(1, 81)]
    features = [str(node) for node in range(100, 115)]
    edges = []
    taken: set[str] = {*nodes, *features}
    for _ in range(5):
        edge = site.world.edge(*taken)
        edges.append(edge)
        taken |= set(edge)
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


def test_a_ledger_behind_which_another_home_writes_is_refused(secured: Site) -> None:
    site = secured
    site.delete(node_body("3"))
    for path in entries(site)[1:]:
        path.unlink()
    # The tail is missing, and this database has it: it is written again.
    site.serve(only_a_start)
    assert len(entries(site)) == 2
    kept = entries(site)[0].read_bytes()
    entries(site)[0].unlink()
    with pytest.raises(StateMismatch, match="lacks 1 of its entries: 1"):
        site.serve(only_a_start)
    entries(site)[0].with_name("000000000001.entry").write_bytes(kept)
    site.serve(only_a_start)
