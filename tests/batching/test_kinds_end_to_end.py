"""Nodes, features and edges forgotten: over HTTP, in one batch, repeated, and across a kill at the worst moment."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_store.base.erasure import Erasure
from model_store.store import Store
from model_store.versions import VersionRef
from service.settings import Settings
from tests.support.service.bodies import edge_body, features_body, node_body
from tests.support.service.db_harness import until
from tests.support.service.kinds_world import CHANNEL, NODES, World, closest
from tests.support.service.running import Lethe, ask, running, settings_of
from tests.support.service.sites import trained

__all__ = ["trained"]

#: The precision of predictions against a computation from scratch.
TOLERANCE = 1e-9


@pytest.fixture
def world(trained: Path) -> World:
    return World(trained)


@pytest.fixture
def settings(trained: Path, tmp_path: Path, database_url: str, redis_url: str) -> Settings:
    return settings_of(trained, tmp_path / "home", database_url, redis_url)


async def difference(lethe: Lethe, world: World) -> float:
    """Return the largest difference of live nodes' predictions from those computed from scratch."""
    expected = world.predictions()
    given: list[dict[str, Any]] = []

    async def is_given() -> bool:
        """There is no answer after a lease has expired, which may happen on a busy machine."""
        response = await lethe.client.post("/predict", json={"nodes": list(expected)})
        assert response.status_code in (200, 503)
        given.extend([response.json()] if response.status_code == 200 else [])
        return bool(given)

    await until(is_given)
    answer = given[0]
    found = {one["node"]: one["probabilities"] for one in answer["predictions"]}
    return closest(found, expected, list(expected))


async def test_features_are_forgotten_and_their_node_stays(lethe: Lethe, world: World) -> None:
    before = (await lethe.client.get("/model")).json()
    accepted = await ask(lethe, features_body(CHANNEL, "12"))
    state = await lethe.completed(accepted)
    assert (state["kind"], state["guarantee"], state["repair"], state["count"]) == ("features", "span", "none", 2)
    assert "The nodes themselves stay" in state["explanation"]
    audit = state["audit"]
    assert audit["batch"] | {"id": None} == {
        "id": None,
        "requests": 1,
        "nodes": 0,
        "features": 2,
        "edges": 0,
        "labels": 0,
    }
    assert audit["deleted"] == 2
    assert (audit["directions_removed"], audit["rank_before"] - audit["rank_after"]) == (1, 1)
    assert audit["injected_norm_before"] > 0
    assert audit["injected_norm_after"] == 0
    assert audit["channel_norm_before"] > 1e3 * audit["channel_norm_after"]
    assert audit["span_residual"] < 1e-8

    world.features = {CHANNEL, "12"}
    assert await difference(lethe, world) < TOLERANCE
    assert (await lethe.client.get("/predict/12")).status_code == 200
    after = (await lethe.client.get("/model")).json()
    assert (after["live_nodes"], after["edges"]) == (before["live_nodes"], before["edges"])
    assert world.left_on_disk(lethe.settings.model_dir) == set()

    again = await ask(lethe, features_body("12"))
    assert again["already_deleted"] == {"12": accepted["id"]}
    settled = await lethe.completed(again)
    assert (settled["already_deleted_by"], settled["applied_at"]) == (accepted["id"], None)
    assert (await lethe.completed(await ask(lethe, node_body("12"))))["audit"]["batch"]["nodes"] == 1
    world.nodes = {"12"}
    assert await difference(lethe, world) < TOLERANCE


@pytest.mark.ci
async def test_edges_are_forgotten_by_the_graph_alone(lethe: Lethe, world: World) -> None:
    before = (await lethe.client.get("/model")).json()
    edge = world.edge()
    accepted = await ask(lethe, edge_body((edge[1], edge[0])))
    state = await lethe.completed(accepted)
    assert (state["kind"], state["guarantee"], state["repair"], state["count"]) == ("edge", "graph_only", "none", 1)
    assert "no norms" in state["explanation"]
    audit = state["audit"]
    assert audit["batch"] | {"id": None} == {
        "id": None,
        "requests": 1,
        "nodes": 0,
        "features": 0,
        "edges": 1,
        "labels": 0,
    }
    for name in ("injected_norm_before", "injected_norm_after", "channel_norm_before", "channel_norm_after"):
        assert audit[name] is None
    assert (audit["directions_removed"], audit["weight_change"], audit["factor_method"]) == (0, 0, "none")
    assert audit["weights_sha256_before"] == audit["weights_sha256_after"]

    world.edges = {edge}
    assert await difference(lethe, world) < TOLERANCE
    after = (await lethe.client.get("/model")).json()
    assert (after["live_nodes"], after["edges"]) == (before["live_nodes"], before["edges"] - 1)
    assert world.left_on_disk(lethe.settings.model_dir) == set()

    again = await ask(lethe, edge_body(edge))
    assert list(again["already_deleted"].values()) == [accepted["id"]]
    assert (await lethe.completed(again))["already_deleted_by"] == accepted["id"]
    never = ("0", next(node for node in map(str, range(NODES)) if node not in {"0", *world.neighbours("0")}))
    response = await lethe.client.post("/deletions", json=edge_body(never))
    assert (response.status_code, response.json()["type"]) == (404, "urn:lethe:problem:unknown-edges")


@pytest.mark.ci
async def test_all_kinds_are_applied_in_one_batch_and_the_widest_does_the_work(
    lethe: Lethe, world: World, together: Callable[[int], None]
) -> None:
    """The node comes last and still removes its features and its edge."""
    near, away = ("30", world.neighbours("30")[0]), world.edge("30", CHANNEL)
    together(6)
    bodies = {
        "features of the node": features_body("30"),
        "edge of the node": edge_body(near),
        "features": features_body(CHANNEL, "30"),
        "edge": edge_body(away),
        "both edges": edge_body(near, away),
        "node": node_body("30"),
    }
    accepted = {name: await ask(lethe, body) for name, body in bodies.items()}
    states = {name: await lethe.completed(one) for name, one in accepted.items()}
    applied = {name: state for name, state in states.items() if state["audit"] is not None}
    assert set(applied) == {"features", "edge", "node"}
    batches = {name: state["audit"]["batch"] | {"id": None} for name, state in applied.items()}
    together_in_one = {"id": None, "requests": 2, "nodes": 1, "features": 0, "edges": 1, "labels": 0}
    # Part of it was removed with the node, so it waited until that was applied.
    afterwards = {"id": None, "requests": 1, "nodes": 0, "features": 1, "edges": 0, "labels": 0}
    assert batches == {"node": together_in_one, "edge": together_in_one, "features": afterwards}
    guarantees = {name: state["guarantee"] for name, state in applied.items()}
    assert guarantees == {"features": "span", "edge": "graph_only", "node": "span"}
    assert applied["node"]["audit"]["injected_norm_before"] > 0
    assert applied["edge"]["audit"]["injected_norm_before"] is None
    assert (states["features"]["count"], applied["features"]["audit"]["deleted"]) == (2, 1)
    assert "1 of the 2 nodes' features" in states["features"]["explanation"]

    node, edge = accepted["node"]["id"], accepted["edge"]["id"]
    for name in ("features of the node", "edge of the node"):
        assert (states[name]["already_deleted_by"], states[name]["applied_at"]) == (node, None)
        assert f"request {node}, together with a node" in states[name]["explanation"]
    assert states["both edges"]["already_deleted_by"] in (node, edge)
    assert all(request in states["both edges"]["explanation"] for request in (node, edge))

    world.nodes, world.features, world.edges = {"30"}, {CHANNEL}, {near, away}
    assert await difference(lethe, world) < TOLERANCE
    assert world.left_on_disk(lethe.settings.model_dir) == set()
    for name, body in bodies.items():
        again = await lethe.completed(await ask(lethe, body))
        assert again["applied_at"] is None, name
    assert lethe.failures == []


def deletions(world: World) -> dict[str, dict[str, Any]]:
    """Return one request of each kind, and record them in `world` as done."""
    edge = world.edge(CHANNEL, "30")
    world.nodes, world.features, world.edges = {"30"}, {CHANNEL}, {edge}
    return {"node": node_body("30"), "features": features_body(CHANNEL), "edge": edge_body(edge)}


@pytest.mark.ci
async def test_what_cannot_be_erased_yet_is_served_by_nobody(
    settings: Settings, world: World, together: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses the erasure, also after a restart, when only the batch still knows which edges were deleted."""
    erase = Store.erase

    def refuses(self: Store, erasure: Erasure, *, fencing: int, keep: VersionRef | None = None) -> None:
        if self.current().version > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        erase(self, erasure, fencing=fencing, keep=keep)

    bodies = deletions(world)

    async with running(settings) as lethe:
        await until(lethe.is_ready)
        monkeypatch.setattr(Store, "erase", refuses)
        together(3)
        accepted = {kind: await ask(lethe, body) for kind, body in bodies.items()}
        await until(lambda: all_applied(lethe, accepted))
        assert await difference(lethe, world) < TOLERANCE
    assert world.left_on_disk(settings.model_dir) == {"node", "features", "edge"}

    async with running(settings) as lethe:

        async def is_served() -> bool:
            return (await lethe.client.get("/predict/1")).status_code == 200

        await until(is_served)
        assert await difference(lethe, world) < TOLERANCE
        for kind, body in bodies.items():
            again = await ask(lethe, body)
            assert list(again["already_deleted"].values()) == [accepted[kind]["id"]]
        assert await all_applied(lethe, accepted)
        monkeypatch.setattr(Store, "erase", erase)
        for one in accepted.values():
            assert (await lethe.completed(one))["audit"]["span_residual"] < 1e-8
        assert world.left_on_disk(settings.model_dir) == set()
        assert await difference(lethe, world) < TOLERANCE
        assert (await lethe.completed(await ask(lethe, node_body(CHANNEL))))["audit"]["injected_norm_before"] == 0


async def all_applied(lethe: Lethe, accepted: dict[str, dict[str, Any]]) -> bool:
    return {(await lethe.state(one))["status"] for one in accepted.values()} == {"applied"}
