"""How well each version predicts what is left, and who is shown it."""

from pathlib import Path

import numpy as np
import pytest

from model_store.store import Store
from projector.graph.graph import Graph
from service.domain.scopes import Scope
from service.settings import Settings
from tests.support.clients.signing_in import sign_in
from tests.support.service.db_harness import until
from tests.support.service.joining_world import graph_of
from tests.support.service.published import with_key
from tests.support.service.repairs import repairing_settings as settings
from tests.support.service.running import NODES, Lethe, running

__all__ = ["settings"]

pytestmark = pytest.mark.ci

FIGURES = ("edges", "training_nodes", "score_validation", "score_test")


async def expected(lethe: Lethe, graph: Graph, held_out: set[int]) -> float:
    """The share of these nodes that the service predicts rightly."""
    nodes = sorted(held_out)
    answer = await lethe.client.post("/predict", json={"nodes": list(map(str, nodes))})
    labels = [int(one["label"]) for one in answer.json()["predictions"]]
    return float(np.mean(np.array(labels) == graph.labels[nodes]))


async def test_each_version_states_what_is_left_and_how_well_it_is_predicted(
    settings: Settings, small_model: Path
) -> None:
    graph, manifest = graph_of(small_model), Store.open(small_model).manifest
    validation, test = set(np.flatnonzero(graph.val_mask).tolist()), set(np.flatnonzero(graph.test_mask).tolist())
    trained = int(graph.train_mask.sum())
    async with running(settings) as lethe:
        await until(lethe.is_ready)

        async def drift() -> dict[str, float]:
            model = (await lethe.client.get("/model")).json()
            return {name: model[name] for name in FIGURES}

        first = await drift()
        assert first["training_nodes"] == trained
        assert (first["score_validation"], first["score_test"]) == (manifest.accuracy.val, manifest.accuracy.test)

        # One of each leaves, one test node becomes a training node, and one training node objects.
        gone = [min(validation), min(test), int(np.flatnonzero(graph.train_mask)[0])]
        learnt, objecting = max(test), int(np.flatnonzero(graph.train_mask)[1])
        await lethe.completed(await lethe.delete(*map(str, gone)))
        body = {"nodes": [{"id": str(learnt), "label": manifest.classes[0]}]}
        await lethe.completed((await lethe.client.post("/corrections", json=body)).json())
        objection = {"kind": "label", "nodes": [str(objecting)]}
        await lethe.completed((await lethe.client.post("/deletions", json=objection)).json())
        last = await drift()
        assert last["training_nodes"] == trained - 1
        assert last["edges"] < first["edges"]
        assert last["score_validation"] == await expected(lethe, graph, validation - {gone[0]})
        assert last["score_test"] == await expected(lethe, graph, test - {gone[1], learnt})

        # The others may not see them: with the graph, they would reveal who left.
        lines = {
            f'lethe_model_edges{{process="unlearner"}} {last["edges"]:.1f}',
            f'lethe_model_training_nodes{{process="unlearner"}} {last["training_nodes"]:.1f}',
            f'lethe_model_score{{nodes="test",process="unlearner"}} {last["score_test"]}',
            f'lethe_model_score{{nodes="validation",process="unlearner"}} {last["score_validation"]}',
        }

        async def are_shown() -> bool:
            return lines <= {*(await lethe.metrics()).splitlines()}

        await until(are_shown)
        reader = await with_key(lethe, Scope.PREDICTIONS_READ)
        assert [
            name for name in ("edges", "training_nodes", "score") if f"model_{name}" in await reader.metrics()
        ] == []
        assert {(await reader.client.get("/model")).json()[name] for name in FIGURES} == {None}

        await sign_in(lethe.client, "the-first-key")
        page = (await lethe.client.get("/dashboard/model")).text
        rows = page.partition("Latest versions, newest first")[2].partition("</table>")[0]
        assert f'{NODES - 3:,}</td>\n<td class="number">{last["edges"]:,}</td>' in rows
        assert rows.count("<tr>") == 1 + 3
    # As read from the disk.
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        assert await drift() == last
