"""The unlearner's own address: whether it is well, and metrics for those who may read them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from service.domain.lease_report import Check, Condition, Phase
from service.domain.scopes import Scope
from service.http.addresses import url_of
from service.observability.exposition import Exposition
from service.observability.metrics import UnlearningMetrics
from service.processes.listening import listen
from service.processes.unlearner_address import serve, unlearner_app
from tests.support.service.api_harness import Api, serving


class Unlearner:
    """What its address asks."""

    def __init__(self, api: Api) -> None:
        self.condition = Condition(Phase.SERVING)
        self.checks = (Check("device", True, "cpu"),)
        registry = CollectorRegistry()
        UnlearningMetrics(registry).queued(3)
        self.app = unlearner_app(
            condition=lambda: self.condition,
            readiness=self._readiness,
            exposition=Exposition(registry, "unlearner"),
            keys=api.services.keys,
            limits=api.services.limits,
        )

    async def _readiness(self) -> tuple[Check, ...]:
        return self.checks

    def client(self, address: str = "127.0.0.1", **headers: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, client=(address, 4711))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path / "home") as running:
        yield running


async def test_it_is_well_unless_something_that_it_needs_does_not_work(api: Api) -> None:
    unlearner = Unlearner(api)
    async with unlearner.client("203.0.113.9") as client:
        for phase in (Phase.SERVING, Phase.WAITING_FOR_LEASE, Phase.LOADING):
            unlearner.condition = Condition(phase)
            answer = await client.get("/healthz")
            assert (answer.status_code, answer.json()["status"], answer.json()["phase"]) == (200, "healthy", phase)
        for phase in (Phase.FAILED, Phase.HELD_UP):
            unlearner.condition = Condition(phase, "The disk is full.")
            answer = await client.get("/healthz")
            assert (answer.status_code, answer.json()["reason"]) == (503, "The disk is full.")
        unlearner.condition = Condition(Phase.SERVING)
        unlearner.checks = (Check("device", False, "It failed with RuntimeError.", "See the log of the service."),)
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()["checks"][0]["name"]) == (503, "device")


async def test_metrics_are_open_here_and_need_a_key_that_may_read_elsewhere(api: Api) -> None:
    unlearner = Unlearner(api)
    async with unlearner.client() as here:
        assert 'lethe_queued_nodes{process="unlearner"} 3.0' in (await here.get("/metrics")).text
    async with unlearner.client("203.0.113.9") as stranger:
        refused = await stranger.get("/metrics")
        assert (refused.status_code, refused.json()["type"]) == (401, "urn:lethe:problem:unauthenticated")
        assert refused.headers["www-authenticate"]
        assert refused.json()["remedy"]
    for scope, status in ((Scope.DELETIONS_WRITE, 403), (Scope.AUDIT_READ, 200)):
        _, key = await api.key(scope)
        async with unlearner.client("203.0.113.9", Authorization=f"Bearer {key}") as keyed:
            assert (await keyed.get("/metrics")).status_code == status


async def test_it_answers_on_a_port_of_its_own_until_told_to_stop(api: Api) -> None:
    stop = asyncio.Event()
    with listen("127.0.0.1", 0) as bound:
        url = url_of(bound)
        serving_it = asyncio.create_task(serve(Unlearner(api).app, bound, stop))
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/predict/1")).status_code == 404
        stop.set()
        await serving_it
