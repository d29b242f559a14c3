"""Holds of a running Lethe: what waits, what goes on, and what the evidence says afterwards."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from service.queue.stream import DeletionStream
from service.settings import Settings
from tests.support.service.bodies import features_body, new_node, node_body
from tests.support.service.db_harness import until
from tests.support.service.running import Lethe, ask, running

REASON = {"reason": "Needed in a lawsuit."}


async def post(lethe: Lethe, path: str, body: dict[str, Any] | None = None, status: int = 200) -> dict[str, Any]:
    answer = await lethe.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def waits_for(lethe: Lethe, accepted: dict[str, Any], held: dict[str, Any]) -> None:
    async def is_behind() -> bool:
        return bool((await lethe.state(accepted))["waits_for"] == held["id"])

    await until(is_behind)


async def test_nothing_for_the_same_nodes_is_applied_before_a_release(
    settings: Settings, together: Callable[[int], None], redis: Redis
) -> None:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        together(100)
        before, held = await ask(lethe, node_body("5", "8")), await ask(lethe, node_body("5"))
        assert (await post(lethe, f"/deletions/{held['id']}/hold", REASON))["status"] == "queued"
        features = await ask(lethe, features_body("5"))
        other = await ask(lethe, node_body("9"))
        together(1)
        await lethe.completed(other)
        # An earlier one waits as well, so that nothing of the node is lost; the one that waits keeps its other node.
        for one in (before, features):
            await waits_for(lethe, one, held)
        # A later one for the node that only those that wait name.
        last = await ask(lethe, node_body("8"))
        await waits_for(lethe, last, held)
        assert (await lethe.client.get("/predict/5")).status_code == 200
        assert await lethe.is_ready()
        listed = (await lethe.client.get("/deletions", params={"held": True})).json()["deletions"]
        assert [one["id"] for one in listed] == [held["id"]]
        # The stream keeps none of them.
        stream = DeletionStream(redis, lethe.services.model)

        async def is_empty() -> bool:
            return await stream.length() == 0

        await until(is_empty)
        cancelled = await lethe.client.delete(last["links"]["self"])
        assert cancelled.json()["status"] == "cancelled"
        released = await post(lethe, f"/deletions/{held['id']}/release")
        assert released["due_at"] > held["due_at"]
        done = [await lethe.completed(one) for one in (before, held, features)]
        assert [one["already_deleted_by"] for one in done] == [None, before["id"], before["id"]]
        [stay] = (await lethe.receipt(before))["summary"].get("held", [None])
        assert stay is None
        [stay] = (await lethe.receipt(held))["summary"]["held"]
        assert (stay["reason"], stay["from"] < stay["until"]) == (REASON["reason"], True)
        assert "On hold" in (await lethe.client.get(f"{held['links']['self']}/receipt?format=html")).text
        wanted = ["deletion.accepted", "deletion.held", "deletion.released", "deletion.completed"]

        async def are_published() -> bool:
            events = (await lethe.client.get("/events", params={"limit": 200})).json()["events"]
            return [one["type"] for one in events if one["data"]["request"] == held["id"]] == wanted

        await until(are_published)


@pytest.mark.ci
async def test_a_deletion_behind_a_held_addition_waits_and_beats_it_whether_that_is_released_or_cancelled(
    settings: Settings, together: Callable[[int], None]
) -> None:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        together(100)
        added = await post(lethe, "/additions", {"nodes": [new_node("anna", features={"3": 1.0})]}, 202)
        await post(lethe, f"/deletions/{added['id']}/hold", REASON)
        deleted = await ask(lethe, node_body("anna"))
        together(1)
        await waits_for(lethe, deleted, added)
        together(2)
        await post(lethe, f"/deletions/{added['id']}/release")
        assert (await lethe.completed(added))["already_deleted_by"] == deleted["id"]
        assert (await lethe.completed(deleted))["failure"] is None
        assert (await lethe.client.get("/predict/anna")).status_code == 410

        # Where the addition is cancelled instead, the deletion is completed and remembered.
        together(100)
        added = await post(lethe, "/additions", {"nodes": [new_node("bert", features={"3": 1.0})]}, 202)
        await post(lethe, f"/deletions/{added['id']}/hold", REASON)
        deleted = await ask(lethe, node_body("bert", "9"))
        together(1)
        await waits_for(lethe, deleted, added)
        assert (await lethe.client.delete(added["links"]["self"])).json()["status"] == "cancelled"
        ended = await lethe.completed(deleted)
        assert (ended["failure"], ended["audit"]["deleted"]) == (None, 2)
        again = await post(lethe, "/additions", {"nodes": [new_node("bert", features={"3": 1.0})]}, 409)
        assert again["deleted"] == ["bert"]
        # What names only features waits for the node to join.
        together(2)
        added = await post(lethe, "/additions", {"nodes": [new_node("carl", features={"3": 1.0})]}, 202)
        features = await ask(lethe, features_body("carl"))
        assert (await lethe.completed(features))["failure"] is None
        assert (await lethe.client.get("/predict/carl")).status_code == 200


@pytest.mark.ci
async def test_a_stop_between_the_steps_of_a_hold_loses_nothing(
    settings: Settings, together: Callable[[int], None]
) -> None:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        together(100)
        held, behind = await ask(lethe, node_body("5")), await ask(lethe, node_body("5"))
        await post(lethe, f"/deletions/{held['id']}/hold", REASON)
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        together(1)
        await waits_for(lethe, behind, held)
        together(100)
        await post(lethe, f"/deletions/{held['id']}/release")
        # Stops wherever the unlearner is by then; any moment must do.
        await asyncio.sleep(0.3)
    together(1)
    async with running(settings) as lethe:
        for one in (held, behind):
            await lethe.completed(one)
