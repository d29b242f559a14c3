"""A served model with an MLP: its public nodes stay, all others can be forgotten."""

from pathlib import Path

import numpy as np
import pytest

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from projector.network.spec import ModelSpec
from service.domain.scopes import Scope
from service.settings import Settings
from tests.support.service.api_harness import serving as without_unlearner
from tests.support.service.bodies import node_body, refused
from tests.support.service.db_harness import until
from tests.support.service.running import Lethe, running, settings_of

pytestmark = pytest.mark.ci

NODES = 160


@pytest.fixture(scope="module")
def public() -> list[str]:
    graph = load_dataset(f"synthetic:n={NODES},d=12,classes=3,seed=3", data_dirs=[])
    return [graph.node_ids[row] for row in np.flatnonzero(graph.train_mask)[:40]]


@pytest.fixture(scope="module")
def private(public: list[str]) -> list[str]:
    return [str(row) for row in range(NODES) if str(row) not in public]


@pytest.fixture(scope="module")
def mlp_model(tmp_path_factory: pytest.TempPathFactory, public: list[str]) -> Path:
    """A trained model that is never served itself."""
    graph = load_dataset(f"synthetic:n={NODES},d=12,classes=3,seed=3", data_dirs=[])
    built = build_model(graph, ModelSpec(mlp_width=10), name="small", dataset="synthetic", split="full", public=public)
    folder = tmp_path_factory.mktemp("trained") / "model"
    built.write(folder)
    return folder


@pytest.fixture
def settings(mlp_model: Path, tmp_path: Path, database_url: str, redis_url: str) -> Settings:
    return settings_of(mlp_model, tmp_path / "home", database_url, redis_url)


async def test_public_nodes_are_refused_by_name_and_private_ones_are_forgotten(
    lethe: Lethe, public: list[str], private: list[str]
) -> None:
    named = [private[0], public[3], public[1]]
    answer = await lethe.client.post("/deletions", json=node_body(*named), headers={"Idempotency-Key": "one"})
    document = refused(answer, 409, "public-nodes")
    assert document["title"] == "Public nodes are never deleted"
    assert document["public"] == [public[3], public[1]]
    assert "trained on public nodes" in document["detail"]
    assert (await lethe.client.get("/deletions")).json()["deletions"] == []
    assert (await lethe.client.get(f"/predict/{private[0]}")).status_code == 200
    # The key was not used.
    accepted = await lethe.client.post("/deletions", json=node_body(private[0]), headers={"Idempotency-Key": "one"})
    assert accepted.status_code == 202
    await lethe.completed(accepted.json())

    state = await lethe.completed(await lethe.delete(*private[1:30]))
    assert state["audit"]["span_residual"] <= 1e-8
    refused(await lethe.client.get(f"/predict/{private[0]}"), 410, "node-deleted")
    assert (await lethe.client.get("/model")).json()["features"] == 10


async def test_a_request_that_was_queued_for_another_model_fails_with_the_reason(
    settings: Settings, database_url: str, public: list[str]
) -> None:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
    # This API knows no public nodes.
    named = [node for node in public if int(node) < 38][:2]
    async with without_unlearner(database_url, settings.home, model="small") as api:
        writer = await api.client(Scope.DELETIONS_WRITE)
        answers = [
            await writer.post("/deletions", json=node_body(*named)),
            await writer.post("/deletions", json={"kind": "features", "nodes": named[:1]}),
        ]
        accepted = [answer.json() for answer in answers]
    async with running(settings) as lethe:

        async def all_failed() -> bool:
            return [(await lethe.state(each))["status"] for each in accepted] == ["failed", "failed"]

        await until(all_failed)
        for each, count in zip(accepted, (2, 1), strict=True):
            state = await lethe.state(each)
            assert state["failure"].startswith(f"{count} of its nodes are public: ")
        assert (await lethe.client.get("/model")).json()["live_nodes"] == NODES
        for node in named:
            assert (await lethe.client.get(f"/predict/{node}")).status_code == 200
