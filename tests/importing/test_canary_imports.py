"""Canaries from training through drills to the next model: drilled ones stay deleted, and new cohorts are new."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.store import Store
from projector.forgetting.canaries import Canaries
from projector.graph.graph import feature_rows
from projector.network.spec import ModelSpec
from service.cli.training import TrainingOptions, train_model
from service.domain.states import ImportStatus
from service.unlearner.staged import ImportRefused
from tests.support.service.db_harness import until
from tests.support.service.imports import asked, ended
from tests.support.service.running import NODES, Lethe, running, settings_of

pytestmark = pytest.mark.ci


def trained(folder: Path) -> Path:
    """Train a model with two cohorts of three canaries, as the command line does."""
    dataset = f"synthetic:n={NODES},d=12,classes=3,seed=3"
    train_model(dataset, folder, ModelSpec(), TrainingOptions(name="small", cohorts=2, cohort_nodes=3), data_dirs=[])
    return folder


def canaries_of(folder: Path) -> Canaries:
    canaries = Store.open(folder).manifest.canaries
    assert canaries is not None
    return canaries


async def drilled(lethe: Lethe) -> dict[str, Any]:
    """Return the next drill, after it was completed."""
    response = await lethe.client.post("/drills")
    assert response.status_code == 202, response.text
    await lethe.completed(response.json())
    newest: dict[str, Any] = (await lethe.client.get("/drills")).json()["drills"][0]
    return newest


async def test_what_was_drilled_stays_deleted_and_the_cohorts_of_a_new_training_are_new(
    tmp_path: Path, database_url: str, redis_url: str
) -> None:
    first, second = trained(tmp_path / "first"), trained(tmp_path / "second")
    settings = settings_of(first, tmp_path / "home", database_url, redis_url, repair="always")
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        cohort = canaries_of(first).cohort_ids(1)
        found = await drilled(lethe)
        assert (found["cohort"], found["passed"]) == (1, True)
        assert found["channel_norm_before"] > 0
        assert found["channel_norm_after"] <= 1e-12 * found["channel_norm_before"]
        gone = (await lethe.client.post("/predict", json={"nodes": [*cohort, "5"]})).json()
        assert gone["deleted"] == list(cohort)

        # The original model brings the cohort back: refused, or imported without it.
        with pytest.raises(ImportRefused, match="3 nodes"):
            await asked(settings, first)
        record = await ended(settings, await asked(settings, first, exclude_deleted=True))
        assert record.version is not None
        assert record.version.deleted_nodes == 3
        base = Store.open(settings.model_dir).load_base().graph
        assert base.node_ids[NODES:] == ("", "", "", *canaries_of(first).cohort_ids(2))
        assert not feature_rows(base.features, np.arange(base.nodes))[:, canaries_of(first).column(1)].any()
        found = await drilled(lethe)
        assert (found["cohort"], found["passed"]) == (2, True)
        used_up = await lethe.client.post("/drills")
        assert used_up.status_code == 409

        # A retrained model has untouched cohorts, and is drilled from the first.
        record = await ended(settings, await asked(settings, second))
        assert record.status is ImportStatus.COMPLETED
        found = await drilled(lethe)
        assert (found["cohort"], found["passed"]) == (1, True)
        assert (await lethe.client.get("/drills")).json()["cohorts"]["remaining"] == 1
        assert (await lethe.client.get("/model")).json()["live_nodes"] == NODES + 3
        assert lethe.failures == []
