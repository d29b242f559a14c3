"""Nodes outside the graph, predicted by a running service: as the library does, and as if they had joined."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.store import Store
from projector.model import Model, fit
from service.domain.scopes import Scope
from tests.support.service.bodies import node_body, refused
from tests.support.service.joining_world import graph_of
from tests.support.service.published import with_key
from tests.support.service.running import Lethe

#: A number that nothing else prints.
MARKED = 0.4830261957
ROWS = [[MARKED, -1.0, 0.5, 0.0, 1.5, 0.0, 0.0, 0.75, 0.0, -0.5, 0.0, 1.0], [0.0] * 12, [*[0.0] * 11, -2.5]]
NEIGHBOURS = [["3", "12", "57"], ["12"], []]


async def predicted(lethe: Lethe, rows: Any = ROWS, neighbours: Any = NEIGHBOURS) -> np.ndarray:
    nodes = [{"features": row, "neighbours": around} for row, around in zip(rows, neighbours, strict=True)]
    response = await lethe.client.post("/predict-new", json={"nodes": nodes})
    assert response.status_code == 200, response.text
    return np.array([list(one["probabilities"].values()) for one in response.json()["predictions"]])


def expected(model: Model) -> np.ndarray:
    return model.predict_new(np.array(ROWS), [[int(node) for node in around] for around in NEIGHBOURS])


async def test_they_are_those_of_the_library_before_and_after_deletions(
    lethe: Lethe, small_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = fit(graph_of(small_model), Store.open(small_model).manifest.spec)
    np.testing.assert_allclose(await predicted(lethe), expected(model), atol=1e-9)
    sparse = [{str(at): value for at, value in enumerate(row) if value} for row in ROWS]
    assert np.array_equal(await predicted(lethe, sparse), await predicted(lethe))

    # A neighbour of a neighbour, and an edge of one, leave.
    around = graph_of(small_model).adjacency
    second = next(int(node) for node in around.indices[around.indptr[12] : around.indptr[13]] if node not in (3, 57))
    third = next(int(node) for node in around.indices[around.indptr[57] : around.indptr[58]] if node != second)
    before = await predicted(lethe)
    accepted = await lethe.delete(str(second))
    edges = {"kind": "edge", "edges": [["57", str(third)]]}
    await lethe.completed((await lethe.client.post("/deletions", json=edges)).json())
    await lethe.completed(accepted)
    model, _ = model.forget(nodes=[second], repair=False)
    model, _ = model.forget(edges=[[57, third]], repair=False)
    after = await predicted(lethe)
    np.testing.assert_allclose(after, expected(model), atol=1e-9)
    assert (np.abs(after - before).max(axis=1) > 1e-6).tolist() == [True, True, False]

    await lethe.completed(await lethe.delete("12"))
    one = {"nodes": [{"features": ROWS[0], "neighbours": ["12"]}]}
    assert refused(await lethe.client.post("/predict-new", json=one), 409, "deleted-nodes")["deleted"] == ["12"]
    other = await with_key(lethe, Scope.PREDICTIONS_NEW)
    assert refused(await other.client.post("/predict-new", json=one), 404, "unknown-nodes")["unknown"] == ["12"]
    output = "".join(capfd.readouterr())
    assert "version.completed" in output
    assert str(MARKED) not in output


@pytest.mark.ci
async def test_they_are_those_of_the_nodes_once_they_join_and_what_could_not_join_is_refused(lethe: Lethe) -> None:
    """Without a repair, who joins without a label changes no weights."""
    before = await predicted(lethe)
    for place, (row, around) in enumerate(zip(ROWS, NEIGHBOURS, strict=True)):
        body = {
            "nodes": [{"id": "anna", "features": row, "rejoin": True}],
            "edges": [["anna", node] for node in around],
        }
        response = await lethe.client.post("/additions", json=body)
        assert response.status_code == 202, response.text
        await lethe.completed(response.json())
        there = (await lethe.client.get("/predict/anna")).json()["probabilities"]
        np.testing.assert_allclose(list(there.values()), before[place], atol=1e-9)
        await lethe.completed((await lethe.client.post("/deletions", json=node_body("anna"))).json())
    # Features that are too long are refused.
    nodes = [{"features": ROWS[0]}, {"features": [1e6] * 12}]
    document = refused(await lethe.client.post("/predict-new", json={"nodes": nodes}), 422, "unfit-features")
    assert document["unfit"] == [1]
    assert "times as long" in document["detail"]
    assert "add_nodes" not in document["detail"]
