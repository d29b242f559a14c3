"""The whole service in one process: called over HTTP, applied, audited, and gone from predictions."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from service.db.roles import API_ROLE
from service.db.transactions import transaction
from service.predictions.layout import Layout
from service.settings import Settings
from tests.support.service.bodies import refused
from tests.support.service.db_harness import until
from tests.support.service.running import NODES, Lethe, running


@pytest.fixture
async def lethe(settings: Settings) -> AsyncIterator[Lethe]:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        yield lethe


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


async def test_a_predictions_version_is_never_older_than_one_reported_applied(lethe: Lethe) -> None:
    done = asyncio.Event()
    seen: list[int] = []

    async def answer_of(*nodes: str) -> Any:
        """Return the first answer. There is none after the lease has expired, which may happen on a busy machine."""
        given: list[Any] = []

        async def is_given() -> bool:
            response = await lethe.client.post("/predict", json={"nodes": nodes})
            assert response.status_code in (200, 503)
            given.extend([response.json()] if response.status_code == 200 else [])
            return bool(given)

        await until(is_given)
        return given[0]

    async def predict() -> None:
        while not done.is_set():
            seen.append((await answer_of("100", "101"))["model_version"])
            await asyncio.sleep(0)  # an answer from memory never waits, so nothing else would run

    async def delete(node: int) -> None:
        accepted = await lethe.delete(str(node))

        async def is_applied() -> bool:
            return bool((await lethe.state(accepted))["status"] in ("applied", "completed"))

        await until(is_applied)
        version = (await lethe.state(accepted))["audit"]["model_version_after"]
        answer = await answer_of(str(node), "100")
        assert answer["deleted"] == [str(node)]
        assert answer["model_version"] >= version

    predicting = asyncio.create_task(predict())
    await asyncio.gather(*(delete(node) for node in range(10)))
    done.set()
    await predicting
    assert seen == sorted(seen)


@pytest.mark.slow
async def test_a_second_of_each_answers_as_the_first_and_takes_over_from_it(settings: Settings) -> None:
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        lethe = await first.enter_async_context(running(settings))
        await until(lethe.is_ready)
        other = await second.enter_async_context(running(settings, "api-1", "unlearner2"))
        await until(other.is_ready)
        accepted = await lethe.delete("7")
        state = await lethe.completed(accepted)
        assert state["audit"]["model_version_after"] == 1
        assert await other.state(accepted) == state
        refused(await other.client.get("/predict/7"), 410, "node-deleted")
        page = (await other.client.get("/metrics")).text
        for name in ("api-0", "api-1", "unlearner", "unlearner2"):
            assert f'process_start_time_seconds{{process="{name}"}}' in page
        await first.aclose()
        taken_over = await other.completed(await other.delete("8"))
        assert taken_over["audit"]["model_version_after"] == 2
        assert lethe.failures == other.failures == []


async def test_a_publication_that_somebody_has_removed_is_written_again(lethe: Lethe) -> None:
    [lost] = Layout.all_of(lethe.settings.home)
    shutil.rmtree(lost.path)
    await lethe.completed(await lethe.delete("7"))

    async def is_answered() -> bool:
        return (await lethe.client.get("/predict/8")).status_code == 200

    await until(is_answered)
    assert (await lethe.client.get("/predict/7")).status_code == 410
    assert lost not in Layout.all_of(lethe.settings.home)
