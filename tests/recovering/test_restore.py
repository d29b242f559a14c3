"""A store and a database from different moments are never served as they are; `recover` continues with them."""

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from model_store.store import Store
from model_store.versions import VersionRef
from service.db import migrate
from service.domain.kinds import RequestKind
from service.domain.states import NOTHING_LEFT_UNKNOWN
from service.errors import KeyMissing, StateMismatch, Unavailable
from service.predictions.heads import Heads
from service.predictions.layout import Layout
from service.processes.prepare import prepare
from service.unlearner.causes import RecoveryRepository
from service.unlearner.outcomes import nothing_left
from tests.support.service.bodies import edge_body, features_body, node_body
from tests.support.service.db_harness import until
from tests.support.service.publications import admitted, predicted
from tests.support.service.running import Lethe
from tests.support.service.sites import Site, deleted, everything, only_a_start


async def until_imported(lethe: Lethe) -> None:
    """Wait until the waiting import is served and the model before it is gone."""

    async def is_imported() -> bool:
        return not [path for path in lethe.settings.home.glob(".model.*-*") if path.is_dir()]

    await until(is_imported)


@pytest.mark.ci
def test_an_older_store_is_refused_and_recover_deletes_again_what_the_database_knows(site: Site) -> None:
    site.delete(node_body("3"))
    earlier = site.moment()
    site.delete(*everything(site.world))
    site.restore_store(earlier)
    assert site.world.left_on_disk(site.model) == {"node", "features", "edge"}
    site.refused("restored from an older backup")

    ran = site.recover()
    assert ran.status == 0, ran.stderr
    [recovery] = site.recoveries()
    assert (*deleted(recovery), recovery.unknown_nodes) == (2, 1, 1, 0)
    assert recovery.version.directions_removed >= 1
    assert recovery.store_before.startswith("1-")
    [logged] = site.recovered_by_the_log()
    assert (logged["recovery"], logged["store_before"]) == (str(recovery.version.id), recovery.store_before)
    assert (logged["nodes"], logged["model_version_after"]) == (2, recovery.version.number)
    assert site.world.left_on_disk(site.model) == set()
    # The store's own record has them again before the service next starts.
    assert len(Store.open(site.model).tombstones().hashes) == 5
    again = site.recover()
    assert "Nothing was changed" in again.stdout
    assert site.recoveries() == [recovery]
    site.delete(node_body("30"))
    site.assert_forgotten()


@pytest.mark.ci
def test_an_older_database_is_refused_and_recover_keeps_deleted_what_the_store_knows(site: Site) -> None:
    site.delete(node_body("3"))
    earlier = site.moment()
    site.delete(*everything(site.world))
    site.restore_database(earlier)
    site.refused("restored from an older backup")

    ran = site.recover()
    assert ran.status == 0, ran.stderr
    assert "The store records 2 deletions missing from this database" in ran.stderr
    assert "2 of them are in the store's tombstones" in ran.stderr
    [recovery] = site.recoveries()
    assert (*deleted(recovery), recovery.unknown_nodes) == (0, 0, 0, 2)

    async def sent_again(lethe: Lethe) -> None:
        # "3" was deleted by a request that the database knows.
        assert (await lethe.client.get("/predict/21")).status_code == 410
        refused = await lethe.client.post("/deletions", json=node_body("3", "21", "nobody"))
        problem = refused.json()
        described = (await lethe.client.get("/model")).json()
        summary = (await lethe.client.get("/audit/summary")).json()
        assert (summary["rank"], summary["live_nodes"]) == (described["rank"], described["live_nodes"])
        assert (refused.status_code, problem["type"].rpartition(":")[2]) == (404, "unknown-nodes")
        assert problem["unknown"] == ["nobody"]
        again = (await lethe.client.post("/deletions", json=node_body("3", "21"))).json()
        assert (set(again["already_deleted"]), again["already_deleted"]["21"]) == ({"3", "21"}, None)
        assert (await lethe.completed(again))["already_deleted_by"] == again["already_deleted"]["3"]
        # A remaining node whose deleted features only the store knew; "30" still has its own.
        for nodes in (["20"], ["20", "30"]):
            accepted = (await lethe.client.post("/deletions", json=features_body(*nodes))).json()
            state = await lethe.completed(accepted)
            assert state["already_deleted_by"] is None
            if nodes == ["20", "30"]:
                assert state["audit"]["deleted"] == 1
                continue
            assert state["explanation"] == nothing_left(RequestKind.FEATURES, named=1, with_node=0, by=[])
            receipt = await lethe.receipt(accepted)
            assert receipt["summary"]["guarantee_in_words"] == NOTHING_LEFT_UNKNOWN
            [entry] = receipt["entries"]
            assert (entry["leaf"]["request"]["already_deleted_by"], len(entry["leaf"]["subjects"])) == (None, 1)
        edge = (await lethe.client.post("/deletions", json=edge_body(*site.world.edges))).json()
        assert edge["already_deleted"] == {"|".join(sorted(pair)): None for pair in site.world.edges}
        assert (await lethe.completed(edge))["already_deleted_by"] is None
        found = (await lethe.client.post("/deletions/search", json={"nodes": ["3", "20", "21", "30", "nobody"]})).json()
        deletions = {one["node"]: one["deletion"] for one in found["found"]}
        assert list(deletions) == ["3", "20", "21", "30"]
        assert [node for node, deletion in deletions.items() if deletion is None] == ["20", "21"]
        assert found["not_found"] == ["nobody"]

    site.serve(sent_again)
    site.world.features.add("30")
    # The lease's fencing number went back with the database; deletions are still possible.
    site.delete(node_body("30"))
    site.assert_forgotten()
    # Nor do they return with a newly trained model.
    imported = site.command("model", "import", site.world.folder)
    assert imported.status == 4
    assert "contains data that was deleted on request: 4 nodes and 1 node whose features" in imported.stderr
    assert site.command("model", "import", site.world.folder, "--exclude-deleted").status == 0
    site.serve(until_imported)
    site.assert_forgotten()
    # The log's weights follow from one another; the recovery's follow from those of a store unknown to it.
    assert {"recovered", "imported"} < {leaf["type"] for leaf in site.verified_leaves()}


@pytest.mark.slow
def test_an_empty_database_is_refused_before_any_key_is_destroyed(site: Site) -> None:
    empty = site.moment()
    site.delete(node_body("3"))
    site.restore_database(empty)
    site.refused("does not know it")
    assert site.recover().status == 0
    [recovery] = site.recoveries()
    assert (recovery.database_before, recovery.unknown_nodes) == (None, 1)
    site.assert_forgotten()


@pytest.mark.slow
def test_a_store_whose_own_tombstones_were_made_with_a_lost_key_is_not_gone_on_with(site: Site) -> None:
    empty = site.moment()
    site.delete(node_body("3"))
    site.restore_database(empty)
    shutil.rmtree(site.settings.home / "keys")
    # A new database and a new key folder match each other, and the store's record matches neither.
    ran = site.recover()
    assert ran.status == 1
    assert "1 of the model's tombstones were made with a key that is not in the key folder" in ran.stderr
    assert site.recoveries() == []
    for path in site.tombstones():
        path.unlink()
    ran = site.recover()
    assert ran.status == 0, ran.stderr
    assert "0 of them are in the store's tombstones" in ran.stderr


@pytest.mark.slow
def test_tombstones_that_cannot_be_read_are_refused_where_the_database_may_lack_them(site: Site) -> None:
    empty = site.moment()
    site.delete(node_body("3"))
    # The database has them all, and the store's record is rebuilt.
    site.damage_tombstones()
    site.delete(node_body("5"))
    [path] = site.tombstones()
    whole = path.read_bytes()
    assert len(Store.open(site.model).tombstones().hashes) == 2

    site.restore_database(empty)
    site.damage_tombstones()
    refused = site.recover()
    assert refused.status == 1
    assert f"{path} is damaged" in refused.stderr
    assert site.recoveries() == []
    path.write_bytes(whole)
    assert site.recover().status == 0

    # From then on the database has them all again.
    site.damage_tombstones()
    site.assert_forgotten()
    assert len(Store.open(site.model).tombstones().hashes) == 2

    site.restore_database(empty)
    site.damage_tombstones()
    assert site.recover().status == 1
    assert site.recover("--accept-lost", "tombstones").status == 0
    site.serve(only_a_start)


@pytest.mark.slow
def test_a_wrong_database_that_is_empty_stays_so(site: Site, make_database: Callable[[], str]) -> None:
    site.delete(node_body("3"))
    wrong = make_database()
    with pytest.raises(StateMismatch, match="does not know it") as refusal:
        asyncio.run(prepare(site.settings.model_copy(update={"database_url": wrong})))

    assert "DATABASE_URL" in refusal.value.remedy

    async def tables() -> list[Any]:
        connection = await asyncpg.connect(wrong)
        found = await connection.fetch(
            "SELECT FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        await connection.close()
        return list(found)

    assert asyncio.run(tables()) == []
    # The matching one is accepted unchanged.
    asyncio.run(prepare(site.settings))


def test_the_database_of_another_model_is_refused(site: Site, empty_database_url: str) -> None:
    async def as_another_left_it() -> None:
        await migrate.upgrade(empty_database_url)
        connection = await asyncpg.connect(empty_database_url)
        await connection.execute("INSERT INTO pointers VALUES ('theirs', 0, 1, '0-1', $1, $1)", "0" * 64)
        await connection.close()

    asyncio.run(as_another_left_it())
    with pytest.raises(StateMismatch, match="has served the model 'theirs'"):
        asyncio.run(prepare(site.settings.model_copy(update={"database_url": empty_database_url})))


@pytest.mark.slow
def test_versions_of_one_number_from_two_histories_are_told_apart(site: Site) -> None:
    first = site.moment()
    site.delete(node_body("3"))
    three_deleted = site.moment()
    site.restore_store(first)
    site.restore_database(first)
    # What is published would give the second history a higher fencing number.
    Heads(site.settings.home).clear()
    for publication in Layout.all_of(site.settings.home):
        publication.remove()
    site.delete(node_body("4"))
    site.restore_database(three_deleted)
    assert Store.open(site.model).current() == VersionRef(1, 1)
    site.refused("its digest differs")
    assert site.recover().status == 0
    [recovery] = site.recoveries()
    assert (recovery.version.deleted_nodes, recovery.unknown_nodes) == (1, 1)
    site.assert_forgotten()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("owner", "method"),
    [
        (Store, "set_current"),
        pytest.param(Store, "erase", marks=pytest.mark.slow),
        pytest.param(RecoveryRepository, "finish", marks=pytest.mark.slow),
    ],
)
def test_a_recovery_that_was_interrupted_is_gone_on_with(
    site: Site, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    earlier = site.moment()
    site.delete(*everything(site.world))
    site.restore_store(earlier)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("the machine went away")

    with monkeypatch.context() as patched:
        patched.setattr(owner, method, fails)
        with pytest.raises(RuntimeError, match="went away"):
            site.recover()
    if method == "set_current":
        # What was published before may contain what the recovery deletes.
        with pytest.raises(Unavailable, match="has not published the model"):
            predicted(admitted(site.settings.home), "3")
    site.refused("A recovery of this store was interrupted")
    assert site.recover().status == 0
    assert "Nothing was changed" in site.recover().stdout
    site.assert_forgotten()


@pytest.mark.ci
def test_requests_whose_keys_are_lost_fail_by_name_when_the_operator_says_so(site: Site) -> None:
    site.delete(node_body("3"))
    request = site.queue("4")
    shutil.rmtree(site.settings.home / "keys" / "requests")
    site.refused("One request is queued", KeyMissing)
    assert site.recover().status == 1
    examined = site.command("doctor")
    assert examined.status == 1
    assert "One request is queued whose encrypted ids cannot be read" in examined.stdout
    ran = site.recover("--accept-lost", "requests")
    assert ran.status == 0, ran.stderr
    assert "Send the failed requests again" in ran.stderr
    # Store and database match: no mismatch is reported, and nothing else has changed.
    assert "1 request failed because of lost keys. Nothing else was changed" in ran.stdout
    assert site.recovered_by_the_log() == []
    assert site.recoveries() == []

    async def look(lethe: Lethe) -> None:
        found = (await lethe.client.get(f"/deletions/{request}")).json()
        assert found["status"] == "failed"
        assert "Send a new request for the same data, then mark this one as handled" in found["failure"]

    site.serve(look)


@pytest.mark.slow
def test_a_lost_pepper_can_be_replaced_and_revokes_every_api_key(site: Site) -> None:
    site.serve(only_a_start)
    pepper = site.settings.home / "keys" / "api-pepper.key"
    pepper.unlink()
    site.refused("api-pepper.key is missing", KeyMissing)
    ran = site.recover("--accept-lost", "api-pepper")
    assert ran.status == 0, ran.stderr
    assert "Revoked 1 API key;" in ran.stderr
    assert pepper.exists()
    # LETHE_ADMIN_KEY is valid again under the new pepper.
    site.serve(only_a_start)
