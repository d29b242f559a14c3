"""Predictions while deletions arrive: each matches exactly the model version it names, and none is stale."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx2
import msgspec
import numpy as np
import pytest

from lethe_client.results import Deletion, Prediction, Predictions
from tests.support.models.recomputation import Recomputation
from tests.support.models.trained_models import SMALL, Models
from tests.support.processes.lethe_process import LetheProcess, authorization

pytestmark = pytest.mark.ci

#: Number of concurrent predictions.
ASKERS = 8
#: Maximum number of concurrent deletions, so that even a slow machine makes many batches.
DELETERS = 5


@dataclass(frozen=True)
class Answer:
    """The answer of one prediction, and the state known before it was requested."""

    node: str
    status: int
    prediction: Prediction | None
    #: The latest version that had been reported `applied`.
    reported_version: int
    #: Whether the node's own deletion had been reported `applied`.
    reported_gone: bool


@dataclass
class Traffic:
    """Deletions at random times among predictions of random nodes; time is counted in predictions begun."""

    http: httpx2.AsyncClient
    nodes: list[str]
    rng: np.random.Generator
    deletions: int
    predictions: int
    answers: list[Answer] = field(default_factory=list)
    #: Node -> the version without it, once reported `applied`.
    applied: dict[str, int] = field(default_factory=dict)
    #: Nodes whose deletion was requested.
    asked: set[str] = field(default_factory=set)
    _begun: int = 0
    _followed: dict[str, str] = field(default_factory=dict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DELETERS))

    async def run(self) -> None:
        """Run until the last deletion is applied."""
        doomed = [str(node) for node in self.rng.choice(self.nodes, size=self.deletions, replace=False)]
        moments = np.sort(self.rng.integers(self.predictions, size=self.deletions)).tolist()
        self._due = list(zip(moments, doomed, strict=True))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(tasks))
            for _ in range(ASKERS):
                tasks.create_task(self._ask_on(tasks))

    async def _ask_on(self, tasks: asyncio.TaskGroup) -> None:
        while self._begun < self.predictions:
            self._begun += 1
            while self._due and self._due[0][0] < self._begun:
                tasks.create_task(self._delete(self._due.pop(0)[1]))
            await self._ask()

    async def _ask(self) -> None:
        node = str(self.rng.choice(self.nodes))
        known = max(self.applied.values(), default=0), node in self.applied
        response = await self.http.get(f"/predict/{node}")
        prediction = None
        if response.status_code == 200:
            prediction = msgspec.json.decode(response.content, type=Prediction)
        self.answers.append(Answer(node, response.status_code, prediction, *known))

    async def _delete(self, node: str) -> None:
        await self._turns.acquire()
        self.asked.add(node)
        response = await self.http.post("/deletions", json={"kind": "node", "nodes": [node]})
        assert response.status_code == 202, response.text
        self._followed[response.json()["links"]["self"]] = node

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        """Poll the requests, oldest first, until each has been reported `applied`.

        Even on a slow machine there are answers after each deletion, as many as reports. Polling without a limit would
        slow the service most on the slowest machine.
        """
        while len(self.applied) < self.deletions:
            # They are applied in about this order. Polling all of them at full speed would leave the service no time to
            # apply any.
            for link, node in list(self._followed.items()):
                deletion = msgspec.json.decode((await self.http.get(link)).content, type=Deletion)
                if deletion.audit is None:
                    break
                self.applied[node] = deletion.audit.model_version_after
                del self._followed[link]
                self._turns.release()
                if self._begun >= self.predictions:
                    for _ in range(ASKERS):
                        tasks.create_task(self._ask())
            await asyncio.sleep(0.01)


async def predicted_while_deleting(
    lethe: LetheProcess, scratch: Recomputation, *, deletions: int, predictions: int, seed: int
) -> None:
    limits = httpx2.Limits(max_connections=ASKERS + 8)
    async with httpx2.AsyncClient(base_url=lethe.url, headers=authorization(), limits=limits, timeout=60.0) as http:
        traffic = Traffic(http, list(scratch.graph.node_ids), np.random.default_rng(seed), deletions, predictions)
        await traffic.run()
        response = await http.post("/predict", json={"nodes": traffic.nodes})
    last = msgspec.json.decode(response.content, type=Predictions)

    assert len(traffic.answers) >= predictions
    by_version: dict[int, list[Prediction]] = {}
    for answer in traffic.answers:
        if answer.prediction is None:
            assert answer.status == 410
            assert answer.node in traffic.asked
        else:
            assert not answer.reported_gone
            assert answer.prediction.node == answer.node
            assert answer.prediction.model_version >= answer.reported_version
            by_version.setdefault(answer.prediction.model_version, []).append(answer.prediction)
    # Predictions, deletions and their reports overlapped.
    assert len(by_version) >= 10
    assert len({answer.reported_version for answer in traffic.answers}) >= 5
    assert any(answer.reported_gone for answer in traffic.answers)

    for version, answered in by_version.items():
        gone = [node for node, without in traffic.applied.items() if without <= version]
        assert {one.node for one in answered}.isdisjoint(gone)
        assert scratch.error(answered, scratch.probabilities(gone, scratch.weights(gone))) <= 1e-9
    assert last.model_version == max(traffic.applied.values())
    assert set(last.deleted) == set(traffic.applied)
    scratch.assert_predictions(last, traffic.applied)


async def test_every_answer_is_the_value_of_the_version_it_names_or_410(
    models: Models, serve: Callable[..., LetheProcess]
) -> None:
    lethe, scratch = serve(models.trained(SMALL), max_wait_ms=5), models.recomputation(SMALL)
    await predicted_while_deleting(lethe, scratch, deletions=50, predictions=500, seed=8)
