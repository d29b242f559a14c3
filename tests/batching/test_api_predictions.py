"""Predictions over HTTP: live, unknown, deleted, and without a lease."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from model_store.versions import VersionRef
from service.domain.scopes import Scope
from tests.support.service.api_harness import CLASSES, NODES, Api, publish, serving
from tests.support.service.bodies import node_body, refused
from tests.support.service.publications import load, published_model


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path, max_nodes_per_request=50) as api:
        yield api


async def test_every_node_is_predicted_from_the_snapshot(api: Api) -> None:
    reader = await api.client(Scope.PREDICTIONS_READ, Scope.PREDICTIONS_EXACT)
    for row, node in enumerate(NODES):
        response = await reader.get(f"/predict/{quote(node, safe='')}")
        expected = dict(zip(CLASSES, api.snapshot.probabilities[row].tolist(), strict=True))
        assert response.json() == {
            "node": node,
            "label": max(expected, key=lambda name: expected[name]),
            "probabilities": expected,
            "model_version": 1,
        }


async def test_probabilities_are_rounded_and_labels_are_those_of_the_exact_ones(api: Api) -> None:
    probabilities = api.snapshot.probabilities.copy()
    probabilities[3], probabilities[4], probabilities[5] = (0.3329, 0.3338, 0.3333), (0.5, 0.0, 0.5), (1.0, 0.0, 0.0)
    api.snapshot = replace(api.snapshot, version=2, probabilities=probabilities)
    publish(api.services.reader, api.publisher, api.snapshot)
    for scopes, decimals in (((), 2), ((Scope.PREDICTIONS_EXACT,), None)):
        reader = await api.client(Scope.PREDICTIONS_READ, *scopes)
        predictions = (await reader.post("/predict", json={"nodes": list(NODES)})).json()["predictions"]
        for one, exact in zip(predictions, probabilities.tolist(), strict=True):
            shown = exact if decimals is None else [round(value, decimals) for value in exact]
            assert one["probabilities"] == dict(zip(CLASSES, shown, strict=True))
            assert one["label"] == CLASSES[exact.index(max(exact))]
            alone = (await reader.get(f"/predict/{quote(one['node'], safe='')}")).json()
            assert alone == {**one, "model_version": 2}
        assert (predictions[3]["label"], predictions[4]["label"]) == ("b", "a")


async def test_full_probabilities_are_a_right_beside_that_to_predict(api: Api) -> None:
    client = await api.client(Scope.PREDICTIONS_EXACT)
    for answer in (await client.get("/predict/1"), await client.post("/predict", json={"nodes": ["1"]})):
        assert refused(answer, 403, "missing-scope")["scope"] == "predictions:read"


async def test_a_deleted_node_is_gone_to_those_who_may_know_and_unknown_to_others(api: Api) -> None:
    writer = await api.client(Scope.DELETIONS_WRITE)
    await api.forget(["7"], (await writer.post("/deletions", json=node_body("7"))).json()["id"])
    reader = await api.client(Scope.PREDICTIONS_READ)
    informed = await api.client(Scope.PREDICTIONS_READ, Scope.DELETIONS_READ)

    refused(await informed.get("/predict/7"), 410, "node-deleted")
    hidden = refused(await reader.get("/predict/7"), 404, "not-found")
    unknown = refused(await reader.get("/predict/nobody"), 404, "not-found")
    assert hidden == unknown
    refused(await informed.get("/predict/nobody"), 404, "not-found")

    body = {"nodes": ["7", "8", "nobody"]}
    answer = (await informed.post("/predict", json=body)).json()
    assert (answer["model_version"], answer["unknown"], answer["deleted"]) == (2, ["nobody"], ["7"])
    folded = (await reader.post("/predict", json=body)).json()
    assert (folded["unknown"], folded["deleted"]) == (["7", "nobody"], [])


async def test_nothing_is_predicted_while_that_is_withheld_and_deletions_are_accepted(api: Api) -> None:
    reader = await api.client(Scope.PREDICTIONS_READ)
    api.publisher.withhold(VersionRef(1, 1), 2)
    response = await reader.get("/predict/1")
    refused(response, 503, "unavailable")
    assert int(response.headers["retry-after"]) >= 1
    refused(await reader.post("/predict", json={"nodes": ["1"]}), 503, "unavailable")
    # Deletions do not wait for it.
    api_key = await api.client(Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)
    assert (await api_key.post("/deletions", json=node_body("1"))).status_code == 202
    model = published_model(api.nodes, api.snapshot, classes=CLASSES)
    load(api.publisher, VersionRef(1, 1), model, api.snapshot, 2)
    assert (await reader.get("/predict/1")).status_code == 200


async def test_the_model_is_described(api: Api) -> None:
    reader = await api.client(Scope.PREDICTIONS_READ, Scope.AUDIT_READ)
    model = (await reader.get("/model")).json()
    assert model["lambda"] == 1e-4
    assert model["classes"] == list(CLASSES)
    assert (model["name"], model["rank"], model["guarantee"], model["repair"]) == ("tiny", 16, "span", "pending")
    assert (model["distance_bound"], model["distance_bound_relative"]) == (0.5, 0.02)
    assert model["repair_progress"] == {"iterations": 3, "products": 17, "distance_bound_relative": 0.004}
