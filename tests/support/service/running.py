"""The whole service in one process, over a small model, with its client."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from model_store.build import build_model
from model_store.datasets.load import load_dataset
from projector.network.spec import ModelSpec
from service.processes.api_process import create_app
from service.processes.prepare import prepare
from service.processes.unlearner_process import unlearning
from service.settings import Settings
from service.unlearner.batcher import BatchLimits, QueuedWork, Take, Wait, decide
from service.web.services import Services
from tests.support.processes.lethe_process import copied
from tests.support.service.bodies import node_body
from tests.support.service.db_harness import until

NODES = 160


@dataclass(frozen=True)
class Lethe:
    """A running service, and a client with all scopes."""

    client: httpx2.AsyncClient
    settings: Settings
    services: Services
    #: Errors passed to `on_failure`.
    failures: list[BaseException]

    async def is_ready(self) -> bool:
        return (await self.client.get("/readyz")).status_code == 200

    async def has_failed(self) -> bool:
        return bool(self.failures)

    async def metrics(self) -> str:
        """Return the metrics of all processes."""
        return (await self.client.get("/metrics")).text

    async def delete(self, *nodes: str, **headers: str) -> dict[str, Any]:
        response = await self.client.post("/deletions", json=node_body(*nodes), headers=headers)
        assert response.status_code == 202, response.text
        accepted: dict[str, Any] = response.json()
        return accepted

    async def state(self, accepted: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = (await self.client.get(accepted["links"]["self"])).json()
        return state

    async def completed(self, accepted: dict[str, Any]) -> dict[str, Any]:
        async def is_completed() -> bool:
            return bool((await self.state(accepted))["status"] == "completed")

        await until(is_completed)
        return await self.state(accepted)

    async def receipt(self, accepted: dict[str, Any]) -> dict[str, Any]:
        """Wait until its subject is signed, and return the receipt."""
        path = f"{accepted['links']['self']}/receipt"

        async def is_signed() -> bool:
            return (await self.client.get(path)).status_code == 200

        await until(is_signed)
        receipt: dict[str, Any] = (await self.client.get(path)).json()
        return receipt


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model that is never served itself."""
    graph = load_dataset(f"synthetic:n={NODES},d=12,classes=3,seed=3", data_dirs=[])
    built = build_model(graph, ModelSpec(), name="small", dataset="synthetic", split="full")
    folder = tmp_path_factory.mktemp("trained") / "model"
    built.write(folder)
    return folder


def settings_of(model: Path, home: Path, database_url: str, redis_url: str, *, repair: str = "never") -> Settings:
    """Return settings that serve a copy of `model` in `home`."""
    copied(model, home / "model")
    return Settings(
        home=home,
        database_url=database_url,
        redis_url=redis_url,
        admin_key="the-first-key",
        device="cpu",
        repair=repair,
        share=home / "share",
        # Readiness must not fail because other tests keep the machine busy.
        readiness_timeout_s=20.0,
    )


@asynccontextmanager
async def running(settings: Settings, name: str = "api-0", unlearner: str = "unlearner") -> AsyncIterator[Lethe]:
    """Run the service over a database that is prepared first.

    `name` and `unlearner` are the names of its two processes.
    """
    await prepare(settings)
    failures: list[BaseException] = []
    app = create_app(settings, name, on_failure=failures.append)
    async with AsyncExitStack() as stack:
        # Both processes in one, each with its own objects.
        await stack.enter_async_context(unlearning(settings, unlearner, on_failure=failures.append))
        await stack.enter_async_context(app.router.lifespan_context(app))
        client = await stack.enter_async_context(
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app),
                base_url="http://localhost",
                headers={"Authorization": "Bearer the-first-key"},
            )
        )
        yield Lethe(client, settings, app.state.services, failures)


@pytest.fixture
def settings(small_model: Path, tmp_path: Path, database_url: str, redis_url: str) -> Settings:
    return settings_of(small_model, tmp_path / "home", database_url, redis_url)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes the next batch wait for that many requests."""
    least = 0

    def gate(waiting: Sequence[QueuedWork], limits: BatchLimits, now: float) -> Take | Wait:
        nonlocal least
        if len(waiting) < least:
            return Wait(None)
        least = 0
        return decide(waiting, limits, now)

    def hold(requests: int) -> None:
        nonlocal least
        least = requests

    monkeypatch.setattr("service.unlearner.batcher.decide", gate)
    return hold


async def ask(lethe: Lethe, body: dict[str, Any]) -> dict[str, Any]:
    response = await lethe.client.post("/deletions", json=body)
    assert response.status_code == 202, response.text
    accepted: dict[str, Any] = response.json()
    return accepted
