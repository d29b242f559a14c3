"""The whole service in one process: called over HTTP, applied, audited, and gone from predictions."""

import shutil

from service.db.roles import API_ROLE
from service.db.transactions import transaction
from service.predictions.layout import Layout
from tests.support.service.bodies import refused
from tests.support.service.db_harness import until
from tests.support.service.running import NODES, Lethe


async def test_a_node_is_forgotten_and_the_record_says_how(lethe: Lethe) -> None:
    # By a process whose role cannot change the log.
    async with transaction(lethe.services.engine) as connection:
        assert (await connection.exec_driver_sql("SELECT current_user")).scalar_one() == API_ROLE
    before = (await lethe.client.get("/model")).json()
    assert (before["version"], before["live_nodes"], before["span_residual"]) == (0, NODES, None)
    assert (await lethe.client.get("/predict/12")).status_code == 200

    accepted = await lethe.delete("12", "57")
    state = await lethe.completed(accepted)
    assert state["received_at"] <= state["applied_at"] <= state["completed_at"]
    assert (state["guarantee"], state["repair"]) == ("span", "none")
    assert state["explanation"]
    audit = state["audit"]
    assert (audit["model_version_before"], audit["model_version_after"]) == (0, 1)
    assert audit["batch"]["nodes"] == 2
    assert audit["injected_norm_before"] > 0
    assert audit["injected_norm_after"] == 0
    assert 0 <= audit["span_residual"] < 1e-8
    assert audit["durations_ms"]["project"] > 0

    refused(await lethe.client.get("/predict/12"), 410, "node-deleted")
    after = (await lethe.client.get("/model")).json()
    assert (after["version"], after["live_nodes"]) == (1, NODES - 2)
    assert after["edges"] < before["edges"]
    assert after["span_residual"] == audit["span_residual"]
    assert after["weights_sha256"] == audit["weights_sha256_after"]

    again = await lethe.delete("57", "58")
    assert again["already_deleted"] == {"57": accepted["id"]}
    await lethe.completed(again)
    listed = (await lethe.client.get("/deletions", params={"status": "completed"})).json()["deletions"]
    assert [one["id"] for one in listed] == [again["id"], accepted["id"]]
    await assert_a_publication_that_somebody_has_removed_is_written_again(lethe)


async def assert_a_publication_that_somebody_has_removed_is_written_again(lethe: Lethe) -> None:
    [lost] = Layout.all_of(lethe.settings.home)
    shutil.rmtree(lost.path)
    await lethe.completed(await lethe.delete("7"))

    async def is_answered() -> bool:
        return (await lethe.client.get("/predict/8")).status_code == 200

    await until(is_answered)
    assert (await lethe.client.get("/predict/7")).status_code == 410
    assert lost not in Layout.all_of(lethe.settings.home)
