"""Nodes, edges, features and labels that join: from the queue to the disk, and the weights of an independent fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sqlalchemy import text

from model_store.build import build_model
from model_store.store import Store
from model_store.work import Work
from projector.forgetting.status import TOLERANCE
from projector.graph.graph import Graph, feature_rows
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import NodeContent
from service.unlearner.measurement import measure
from tests.support.models.small_graphs import with_weights
from tests.support.service.db_harness import until
from tests.support.service.joining_world import changed, ended, fitted, graph_of, take_in
from tests.support.service.repair_world import Served, without
from tests.support.service.repairs import repairing_settings as settings
from tests.support.service.running import Lethe, running, settings_of

__all__ = ["settings"]

#: Relative distance of repaired weights from those of an independent fit.
NEAR = 1e-6

NEW = "a node that joins"


def holds(lethe: Lethe, *needles: bytes) -> bool:
    """Whether a file of the model has any of `needles`."""
    files = [path.read_bytes() for path in lethe.settings.model_dir.rglob("*") if path.is_file()]
    return any(needle in file for needle in needles for file in files)


def drawn(seed: int, columns: int = 12) -> tuple[float, ...]:
    return tuple(np.random.default_rng(seed).standard_normal(columns).round(3).tolist())


def same_on_disk(lethe: Lethe, graph: Graph) -> bool:
    """Whether the store holds exactly `graph`."""
    kept, rows = graph_of(lethe.settings.model_dir), np.arange(graph.nodes)
    trained = graph.train_mask
    return (
        (kept.adjacency != graph.adjacency).nnz == 0
        and np.array_equal(feature_rows(kept.features, rows), feature_rows(graph.features, rows))
        and np.array_equal(kept.train_mask, trained)
        and np.array_equal(kept.labels[trained], graph.labels[trained])
    )


async def test_a_node_that_joins_is_predicted_and_learned(lethe: Lethe, small_model: Path) -> None:
    features = drawn(1)
    classes = Store.open(small_model).manifest.classes
    added = await take_in(
        lethe,
        RequestKind.ADDITION,
        {"new": NodeContent(features, classes[2]), "bare": NodeContent({"3": 1.5})},
        edges=[("new", "5"), ("bare", "new"), ("17", "40")],
    )
    [found] = await ended(lethe, added)
    assert (found.status, found.guarantee, found.failure) == ("completed", "retrained", None)
    assert (found.nodes_joined, found.edges_joined, found.joined, found.deleted) == (2, 3, 5, 0)
    bare = np.zeros(12)
    bare[3] = 1.5
    graph = changed(
        graph_of(small_model),
        {"new": (features, 2), "bare": (bare.tolist(), -1)},
        [("new", "5"), ("bare", "new"), ("17", "40")],
    )
    served = Served(lethe.settings.model_dir)
    assert served.distance(fitted(small_model, graph)) < NEAR
    assert served.is_tidy()
    answer = await lethe.client.post("/predict", json={"nodes": ["new", "bare", "5"]})
    assert answer.status_code == 200
    assert same_on_disk(lethe, graph)


@pytest.mark.ci
async def test_features_and_labels_are_corrected_and_labels_withdrawn(lethe: Lethe, small_model: Path) -> None:
    before, classes = graph_of(small_model), Store.open(small_model).manifest.classes
    first, second, third = map(str, np.flatnonzero(before.train_mask)[:3])
    features, other = drawn(2), drawn(3)
    corrected = await take_in(
        lethe,
        RequestKind.CORRECTION,
        {first: NodeContent(features), second: NodeContent(other, classes[int(before.labels[int(second)] == 0)])},
    )
    [found] = await ended(lethe, corrected)
    assert (found.status, found.guarantee) == ("completed", "retrained"), found.failure
    assert (found.features_joined, found.labels_joined, found.joined, found.deleted) == (2, 1, 2, 0)
    labels = {second: int(before.labels[int(second)] == 0)}
    graph = changed(before, features={first: features, second: other}, labels=labels)
    served = Served(lethe.settings.model_dir)
    assert served.distance(fitted(small_model, graph)) < NEAR
    assert same_on_disk(lethe, graph)

    withdrawn = await take_in(lethe, RequestKind.LABEL, nodes=[second, third])
    [found] = await ended(lethe, withdrawn)
    assert (found.status, found.guarantee, found.deleted) == ("completed", "retrained", 2), found.failure
    assert (found.training_norm_before > 0, found.training_norm_after) == (True, 0)
    graph = changed(graph, labels={second: -1, third: -1})
    assert served.distance(fitted(small_model, graph)) < NEAR
    assert same_on_disk(lethe, graph)

    again = await take_in(lethe, RequestKind.LABEL, nodes=[third])
    [found] = await ended(lethe, again)
    assert (found.status, found.already_deleted_by) == ("completed", withdrawn)


@pytest.mark.ci
async def test_what_was_added_is_deleted_and_may_join_again_where_the_caller_says_so(
    lethe: Lethe, small_model: Path
) -> None:
    before, features = graph_of(small_model), drawn(4)
    add = {NEW: NodeContent(features)}
    [added] = await ended(lethe, await take_in(lethe, RequestKind.ADDITION, add, edges=[(NEW, "5")]))
    assert added.status == "completed", added.failure
    [deleted] = await ended(lethe, await take_in(lethe, RequestKind.NODE, nodes=[NEW]))
    assert (deleted.status, deleted.deleted) == ("completed", 1), deleted.failure
    assert Served(lethe.settings.model_dir).distance(fitted(small_model, before)) < NEAR
    assert not holds(lethe, NEW.encode(), np.array(features).tobytes())

    [beaten] = await ended(lethe, await take_in(lethe, RequestKind.ADDITION, add))
    assert (beaten.status, beaten.batch_id, beaten.already_deleted_by) == ("completed", None, deleted.id)
    assert beaten.explanation.startswith("Nothing joined")
    back = {NEW: NodeContent(features, rejoin=True)}
    [rejoined] = await ended(lethe, await take_in(lethe, RequestKind.ADDITION, back, edges=[(NEW, "6")]))
    assert (rejoined.status, rejoined.joined, rejoined.rejoined) == ("completed", 2, 1), rejoined.failure
    assert (await lethe.client.get(f"/predict/{NEW}")).status_code == 200
    [again] = await ended(lethe, await take_in(lethe, RequestKind.NODE, nodes=[NEW]))
    assert (again.status, again.deleted) == ("completed", 1), again.failure
    [beaten] = await ended(lethe, await take_in(lethe, RequestKind.ADDITION, add))
    assert (beaten.status, beaten.already_deleted_by) == ("completed", again.id)


@pytest.mark.ci
async def test_a_deletion_beats_an_addition_that_is_still_queued_and_additions_join_in_order(
    lethe: Lethe, small_model: Path, together: Callable[[int], None]
) -> None:
    before = graph_of(small_model)
    together(2)
    added = await take_in(lethe, RequestKind.ADDITION, {"new": NodeContent(drawn(5))})
    deleted = await take_in(lethe, RequestKind.NODE, nodes=["new"])
    beaten, done = await ended(lethe, added, deleted)
    assert (done.status, done.deleted, done.failure) == ("completed", 1, None)
    assert (beaten.status, beaten.already_deleted_by) == ("completed", deleted), beaten.failure
    assert Served(lethe.settings.model_dir).distance(fitted(small_model, before)) < NEAR
    async with transaction(lethe.services.engine) as connection:
        assert await connection.scalar(text("SELECT count(*) FROM queued_joins")) == 0
    await assert_a_later_deletion_beats_a_node_that_is_queued_to_rejoin(lethe, together)
    await assert_a_chain_of_additions_joins_in_the_order_of_arrival(lethe, together)


async def assert_a_later_deletion_beats_a_node_that_is_queued_to_rejoin(
    lethe: Lethe, together: Callable[[int], None]
) -> None:
    [first] = await ended(lethe, await take_in(lethe, RequestKind.NODE, nodes=["5"]))
    together(2)
    again = await take_in(lethe, RequestKind.ADDITION, {"5": NodeContent(drawn(6), rejoin=True)})
    deleted = await take_in(lethe, RequestKind.NODE, nodes=["5"])
    beaten, done = await ended(lethe, again, deleted)
    assert (first.deleted, done.status, done.deleted) == (1, "completed", 1), done.failure
    assert (beaten.status, beaten.already_deleted_by) == ("completed", deleted), beaten.failure
    assert (await lethe.client.get("/predict/5")).status_code == 410


async def assert_a_chain_of_additions_joins_in_the_order_of_arrival(
    lethe: Lethe, together: Callable[[int], None]
) -> None:
    together(3)
    ids = [
        await take_in(lethe, RequestKind.ADDITION, {node: NodeContent(drawn(7))}, edges=[(node, neighbour)])
        for node, neighbour in (("a", "6"), ("b", "a"), ("c", "b"))
    ]
    for found in await ended(lethe, *ids):
        assert (found.status, found.joined) == ("completed", 2), found.failure


@pytest.mark.ci
async def test_what_does_not_fit_fails_alone_and_nothing_of_it_joins(lethe: Lethe) -> None:
    rows, columns = graph_of(lethe.settings.model_dir).adjacency.nonzero()
    there = str(rows[0]), str(columns[0])
    wrong: list[tuple[RequestKind, dict[str, NodeContent], list[tuple[str, str]], str]] = [
        (RequestKind.ADDITION, {"5": NodeContent({})}, [], "in the graph already"),
        (RequestKind.ADDITION, {"a": NodeContent({})}, [("a", "nobody")], "not in the graph"),
        (RequestKind.ADDITION, {}, [there], "edge that it adds is in the graph already"),
        (RequestKind.ADDITION, {"a": NodeContent((1.0,))}, [], "12 columns"),
        (RequestKind.ADDITION, {"a": NodeContent({"12": 1.0})}, [], "12 columns"),
        (RequestKind.ADDITION, {"a": NodeContent({}, "nothing")}, [], "not among the model's classes"),
        (RequestKind.ADDITION, {"a": NodeContent({"0": 1e9})}, [], "times as long"),
        (RequestKind.CORRECTION, {"nobody": NodeContent({})}, [], "not in the graph"),
    ]
    ids = [await take_in(lethe, kind, content, edges=pairs) for kind, content, pairs, _ in wrong]
    good = await take_in(lethe, RequestKind.ADDITION, {"good": NodeContent({"0": 1.0})})
    for found, (_, _, _, reason) in zip(await ended(lethe, *ids), wrong, strict=True):
        assert (found.status, reason in (found.failure or "")) == ("failed", True), (reason, found.failure)
    [found] = await ended(lethe, good)
    assert (found.status, found.joined) == ("completed", 1), found.failure


@pytest.mark.ci
async def test_edges_join_and_leave_a_weighted_graph(
    small_model: Path, tmp_path: Path, database_url: str, redis_url: str
) -> None:
    plain, manifest = graph_of(small_model), Store.open(small_model).manifest
    graph = replace(plain, adjacency=with_weights(plain.adjacency), weighted=True)
    build_model(graph, manifest.spec, name="small", dataset="d", split="full").write(tmp_path / "weighted")
    settings = settings_of(tmp_path / "weighted", tmp_path / "home", database_url, redis_url, repair="always")
    gone, cut = np.argwhere(np.triu(graph.adjacency.toarray()))[[0, 40]].tolist()
    assert not set(gone) & set(cut)
    old = [graph.adjacency[edge[0], edge[1]].tobytes() for edge in (gone, cut)]
    features, node = drawn(1), str(gone[0])
    edges: list[tuple[Any, ...]] = [
        ("new", str(gone[1]), 2.5),
        ("new", str(cut[0])),
        (str(gone[1]), str(cut[0]), 0.125),
    ]
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        assert holds(lethe, *old)
        body = {"nodes": [{"id": "new", "features": features, "label": manifest.classes[1]}], "edges": edges}
        added = (await lethe.client.post("/additions", json=body)).json()
        assert (await lethe.completed(added))["guarantee"] == "retrained"
        await lethe.completed(await lethe.delete(node))
        pair = [str(end) for end in cut]
        answer = await lethe.client.post("/deletions", json={"kind": "edge", "edges": [pair]})
        await lethe.completed(answer.json())
        # The edge comes back with another weight.
        answer = await lethe.client.post("/additions", json={"edges": [[*pair, 7.0]]})
        await lethe.completed(answer.json())
        expected = without(changed(graph, {"new": (features, 1)}, [*edges, (*pair, 7.0)]), nodes=[node])
        assert Served(lethe.settings.model_dir).distance(fitted(small_model, expected)) < NEAR
        kept = graph_of(lethe.settings.model_dir)
        assert kept.weighted
        assert (kept.adjacency != expected.adjacency).nnz == 0
        assert not holds(lethe, *old)
        before = (await lethe.client.post("/predict", json={"nodes": ["new", *pair]})).json()
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        assert (await lethe.client.post("/predict", json={"nodes": ["new", *pair]})).json() == before
        store = Store.open(lethe.settings.model_dir)
        ref = store.current()
        found = measure(store, ref, digest=store.version_digest(ref), device=torch.device("cpu"), work=Work())
        assert found.distance_bound_relative is not None
        assert found.distance_bound_relative <= TOLERANCE
