"""A process that ends at each failure point of a batch by which something joins: all of it joins once."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.store import Store
from projector.graph.graph import feature_rows
from service import failure_points
from service.domain.kinds import RequestKind
from service.domain.records import NodeContent
from service.domain.states import Cause
from service.failure_points import FailurePoint
from service.settings import Settings
from tests.support.everyday import everyday
from tests.support.kills.faults import points_of
from tests.support.service.db_harness import until
from tests.support.service.joining_world import changed, ended, fitted, graph_of, take_in
from tests.support.service.repair_world import Served, events
from tests.support.service.running import running, settings_of, small_model

pytestmark = pytest.mark.ci

__all__ = ["small_model"]

#: Of each version whose repair goes on after it, of one that is repaired at once, and of one that never is.
POLICIES: dict[str, dict[str, Any]] = {
    "deferred": {"repair": "always", "repair_budget": 0.0},
    "always": {"repair": "always"},
    "never": {},
}
FEATURES, CORRECTED = (0.5, *[0.0] * 10, -1.25), (*[0.0] * 11, 2.0)


class Ended(BaseException):
    """Stands for the end of the process: nothing of Lethe catches it."""


@contextmanager
def ends_at(point: FailurePoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FailurePoint]]:
    """Let the first batch end at `point`; yields the points at which one has ended."""
    met: list[FailurePoint] = []

    def reached(at: FailurePoint, cause: Cause | None = None) -> None:
        if met or (at is point and cause is Cause.BATCH):
            met.append(at)
            raise Ended

    with monkeypatch.context() as patched:
        patched.setattr(failure_points, "reached", reached)
        yield met


@pytest.mark.parametrize(
    ("point", "policy"),
    everyday(
        [(point, policy) for point in points_of(Cause.BATCH) for policy in POLICIES],
        (FailurePoint.COMMITTED, "deferred"),
        (FailurePoint.GROWING, "never"),
    ),
)
async def test_a_batch_joins_once_wherever_the_process_ends(
    point: FailurePoint,
    policy: str,
    small_model: Path,
    tmp_path: Path,
    database_url: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: Settings = settings_of(small_model, tmp_path / "home", database_url, redis_url).model_copy(
        update=POLICIES[policy]
    )
    before = graph_of(small_model)
    old = str(np.flatnonzero(before.train_mask)[0])
    label = int(before.labels[int(old)] == 0)
    name = Store.open(small_model).manifest.classes
    content = {"new": NodeContent(FEATURES, name[1]), "bare": NodeContent({})}
    with ends_at(point, monkeypatch) as met:
        async with running(settings, "api-0", "first") as lethe:
            await until(lethe.is_ready)
            added = await take_in(lethe, RequestKind.ADDITION, content, edges=[("new", "5"), ("new", "bare")])

            async def has_met() -> bool:
                return bool(met)

            await until(has_met)
    async with running(settings, "api-0", "second") as lethe:
        await until(lethe.is_ready)
        corrected = await take_in(lethe, RequestKind.CORRECTION, {old: NodeContent(CORRECTED, name[label])})
        for found in await ended(lethe, added, corrected):
            assert (found.status, found.failure) == ("completed", None)
        graph = changed(before, {"new": (FEATURES, 1), "bare": ([0.0] * 12, -1)}, [("new", "5"), ("new", "bare")])
        graph = changed(graph, features={old: CORRECTED}, labels={old: label})
        served = Served(settings.model_dir)
        if policy != "never":
            wanted = fitted(small_model, graph)

            async def is_near() -> bool:
                return served.distance(wanted) < 1e-6

            await until(is_near)
        kept = graph_of(settings.model_dir)
        rows = np.arange(graph.nodes)
        assert (kept.adjacency != graph.adjacency).nnz == 0
        assert np.array_equal(feature_rows(kept.features, rows), feature_rows(graph.features, rows))
        assert np.array_equal(kept.train_mask, graph.train_mask)
        once = ["applied", "completed"] if policy == "never" else ["applied", "completed", "repaired"]

        async def is_recorded_once() -> bool:
            recorded = await events(settings.database_url)
            return served.is_tidy() and all(sorted(recorded[str(one)]) == once for one in (added, corrected))

        await until(is_recorded_once)
