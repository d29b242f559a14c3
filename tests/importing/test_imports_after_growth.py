"""A newly trained model beside what joined the served one, and beside labels that were withdrawn."""

from pathlib import Path

import numpy as np
import pytest

from model_store.store import Store
from service.domain.kinds import RequestKind
from service.domain.records import NodeContent
from service.domain.states import ImportStatus
from service.settings import Settings
from tests.support.service.db_harness import until
from tests.support.service.imports import asked
from tests.support.service.imports import ended as import_ended
from tests.support.service.joining_world import changed, ended, fitted, graph_of, take_in
from tests.support.service.repair_world import Served
from tests.support.service.repairs import repairing_settings as settings
from tests.support.service.running import running

__all__ = ["settings"]

pytestmark = pytest.mark.ci


async def test_a_model_that_lacks_added_nodes_is_refused_until_somebody_accepts_it(
    settings: Settings, small_model: Path
) -> None:
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        content = {name: NodeContent({"0": 1.0}) for name in ("first", "second")}
        [found] = await ended(lethe, await take_in(lethe, RequestKind.ADDITION, content, edges=[("first", "5")]))
        assert found.status == "completed", found.failure
        await ended(lethe, await take_in(lethe, RequestKind.NODE, nodes=["second"]))
        refused = await import_ended(settings, await asked(settings, small_model))
        assert refused.status is ImportStatus.REFUSED
        assert "lacks 1 of the 1 nodes that were added" in str(refused.refusal)
        assert "first" not in str(refused.refusal)
        assert (await lethe.client.get("/predict/first")).status_code == 200
        taken = await import_ended(settings, await asked(settings, small_model, without_added=True))
        assert taken.status is ImportStatus.COMPLETED, taken.refusal
        assert (await lethe.client.get("/predict/first")).status_code == 404
        again = await take_in(lethe, RequestKind.ADDITION, {"first": content["first"]}, edges=[("first", "5")])
        [found] = await ended(lethe, again)
        assert (found.status, found.joined) == ("completed", 2), found.failure


async def test_withdrawn_labels_are_taken_out_of_a_newly_trained_model(settings: Settings, small_model: Path) -> None:
    before = graph_of(small_model)
    first, second = map(str, np.flatnonzero(before.train_mask)[:2])
    async with running(settings) as lethe:
        await until(lethe.is_ready)
        await ended(lethe, await take_in(lethe, RequestKind.LABEL, nodes=[first, second]))
        taken = await import_ended(settings, await asked(settings, small_model, exclude_deleted=True))
        assert taken.status is ImportStatus.COMPLETED, taken.refusal
        assert taken.version is not None
        assert taken.version.deleted_labels == 2
        graph = changed(before, labels={first: -1, second: -1})
        assert Served(settings.model_dir).distance(fitted(small_model, graph)) < 1e-6
        assert not graph_of(settings.model_dir).train_mask[[int(first), int(second)]].any()
    store = Store.open(settings.model_dir)
    assert not store.is_ungrown(store.current())
