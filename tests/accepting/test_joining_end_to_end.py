"""A node's life over HTTP: added, predicted, corrected, without its label, deleted, and back."""

from typing import Any

import httpx2
import pytest

from service.settings import Settings
from tests.support.service.bodies import node_body, refused
from tests.support.service.db_harness import until
from tests.support.service.repairs import repairing_settings as settings
from tests.support.service.running import NODES, Lethe, running

__all__ = ["settings"]

ROW = [0.25, -1.0, 0.5, 0.0, 1.5, 0.0, 0.0, 0.75, 0.0, -0.5, 0.0, 1.0]
OTHER = {"0": 2.0, "5": -1.5}


async def sent(lethe: Lethe, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A request that is accepted."""
    response = await lethe.client.post(path, json=body)
    assert response.status_code == 202, response.text
    accepted: dict[str, Any] = response.json()
    return accepted


async def done(lethe: Lethe, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The state of a request once it is completed."""
    return await ended(lethe, await sent(lethe, path, body), "completed")


async def ended(lethe: Lethe, accepted: dict[str, Any], status: str) -> dict[str, Any]:
    async def has_ended() -> bool:
        return (await lethe.state(accepted))["status"] in ("completed", "failed")

    await until(has_ended)
    state = await lethe.state(accepted)
    assert state["status"] == status, state
    return state


async def predicted(lethe: Lethe, node: str) -> dict[str, float]:
    response = await lethe.client.get(f"/predict/{node}")
    assert response.status_code == 200, response.text
    probabilities: dict[str, float] = response.json()["probabilities"]
    return probabilities


async def test_a_node_joins_is_corrected_objects_leaves_and_comes_back(lethe: Lethe, settings: Settings) -> None:
    model = (await lethe.client.get("/model")).json()
    label, other = model["classes"][:2]
    refused(await lethe.client.get("/predict/anna"), 404, "not-found")

    body = {"nodes": [{"id": "anna", "features": ROW, "label": label}], "edges": [["anna", "12"], ["3", "anna"]]}
    state = await done(lethe, "/additions", body)
    assert (state["kind"], state["guarantee"], state["repair"]) == ("addition", "retrained", "converged")
    assert state["explanation"]
    audit = state["audit"]
    assert (audit["nodes_joined"], audit["edges_joined"], audit["joined"]) == (1, 2, 3)
    first = await predicted(lethe, "anna")
    after = (await lethe.client.get("/model")).json()
    assert (after["live_nodes"], after["edges"]) == (NODES + 1, model["edges"] + 2)
    refused(
        await lethe.client.post("/additions", json={"nodes": [{"id": "anna", "features": ROW}]}), 409, "known-nodes"
    )
    refused(await lethe.client.post("/additions", json={"edges": [["12", "anna"]]}), 409, "known-edges")

    state = await done(lethe, "/corrections", {"nodes": [{"id": "anna", "features": OTHER, "label": other}]})
    assert (state["audit"]["features_joined"], state["audit"]["labels_joined"]) == (1, 1)
    second = await predicted(lethe, "anna")
    assert second != first
    state = await done(lethe, "/deletions", {"kind": "label", "nodes": ["anna"]})
    assert (state["guarantee"], state["audit"]["training_norm_after"]) == ("retrained", 0)
    assert state["audit"]["training_norm_before"] > 0
    third = await predicted(lethe, "anna")
    assert third[other] < second[other]

    await done(lethe, "/deletions", node_body("anna"))
    refused(await lethe.client.get("/predict/anna"), 410, "node-deleted")
    again: dict[str, Any] = {"nodes": [{"id": "anna", "features": ROW}], "edges": [["anna", "12"]]}
    assert refused(await lethe.client.post("/additions", json=again), 409, "deleted-nodes")["deleted"] == ["anna"]
    again["nodes"][0]["rejoin"] = True
    state = await done(lethe, "/additions", again)
    assert state["audit"]["rejoined"] == 1
    await predicted(lethe, "anna")

    for accepted in (await lethe.client.get("/deletions")).json()["deletions"]:
        assert (await lethe.client.get(f"/deletions/{accepted['id']}/receipt")).status_code == 200


@pytest.mark.ci
async def test_what_joined_is_the_same_after_a_restart(settings: Settings) -> None:
    nodes: list[dict[str, Any]] = [{"id": "anna", "features": ROW}, {"id": "bert", "features": OTHER}]

    async def seen(client: httpx2.AsyncClient) -> tuple[Any, Any]:
        everybody = [*map(str, range(NODES)), "anna", "bert"]
        model = (await client.get("/model")).json()
        # The bound is computed anew from the rows on disk, and is the same up to rounding.
        facts = {name: value for name, value in model.items() if not name.startswith("distance_bound")}
        return (await client.post("/predict", json={"nodes": everybody})).json(), facts

    async with running(settings) as lethe:
        await until(lethe.is_ready)
        classes = (await lethe.client.get("/model")).json()["classes"]
        nodes[0]["label"] = classes[0]
        await done(lethe, "/additions", {"nodes": nodes, "edges": [["anna", "bert"], ["bert", "7"]]})
        await done(lethe, "/corrections", {"nodes": [{"id": "7", "features": ROW}]})
        before = await seen(lethe.client)
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        assert await seen(lethe.client) == before
