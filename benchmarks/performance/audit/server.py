"""The application over a filled database, served on loopback without a model, for the audit's benchmark."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import uvicorn
from prometheus_client import CollectorRegistry

from benchmarks.performance.audit.events import MODEL
from service.access.api_keys import ApiKeyRepository, new_api_key
from service.access.key_memory import key_memory
from service.access.keyring import Keyring
from service.access.limits import NodeAllowance, RateLimits
from service.access.own_slots import OwnSlots
from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.lease_report import Check
from service.domain.scopes import Scope
from service.errors import Unavailable
from service.log.signed_checkpoints import CheckpointRepository
from service.log.signing_keys import LogKeys
from service.observability.exposition import Exposition
from service.observability.logging import AccessLog
from service.observability.metrics import IntakeMetrics
from service.predictions.downloads import Downloads
from service.predictions.reader import Reader
from service.predictions.served_model import ModelInfo
from service.queue.connection import connect
from service.requests.deletable import Deletions
from service.requests.drill_runs import CohortSearch, Drills
from service.requests.intake import Intake
from service.requests.tombstones import TombstoneLookup
from service.settings import Settings
from service.web.api.application import build
from service.web.dashboard.installation import install as install_dashboard
from service.web.services import Services


@contextlib.asynccontextmanager
async def served(engine: Engine, home: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client with an audit:read key and a dashboard session. The log is signed."""
    registry, keyring = CollectorRegistry(), Keyring.open(home / "keys")
    app = build(
        max_body_bytes=1 << 20,
        registry=registry,
        access_log=AccessLog("json", "warning", (home / "log").open("w"), process="api-0"),
    )
    install_dashboard(app)
    with OwnSlots.open(home / "keys" / "requests") as own_slots:
        intake = Intake(engine, own_slots, keyring, max_queued_nodes=None)
        tombstones, metrics = TombstoneLookup(engine, keyring, MODEL), IntakeMetrics(registry)
        cohorts = CohortSearch(lambda: None, lambda nodes: (), tombstones)
        settings, reader = Settings(home=home), Reader(home)
        # Its one key is valid, and nothing is counted.
        redis = connect("redis://127.0.0.1:1")
        limits = RateLimits(redis, keyring.cursor_key)
        app.state.services = Services(
            settings=settings,
            model=MODEL,
            engine=engine,
            keyring=keyring,
            keys=key_memory(engine, keyring),
            limits=limits,
            allowance=NodeAllowance(redis, MODEL, settings.max_predicted_nodes),
            reader=reader,
            downloads=Downloads(reader, home / "run"),
            model_info=_no_model,
            deletions=Deletions(
                MODEL,
                engine,
                reader,
                tombstones,
                keyring,
                intake,
                limits,
                metrics,
                settings.max_nodes_per_request,
                True,
            ),
            drills=Drills(engine, MODEL, intake, keyring, cohorts, metrics),
            readiness=_no_checks,
            exposition=Exposition(registry, "api-0", home / "run" / "metrics"),
            metrics=metrics,
        )
        key = new_api_key()
        async with transaction(engine) as connection:
            name = f"benchmark {key.id}"
            await ApiKeyRepository(connection).create(key.id, name, [Scope.AUDIT_READ], keyring.api_key_hash(key.text))
            # A checkpoint that an earlier run signed also works; its key is lost with that run.
            if await CheckpointRepository(connection).latest() is None:
                await CheckpointRepository(connection).sign(LogKeys.open(home / "keys"))
        # Names the protocol, since asyncio disables the delay of small packets only then.
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        running = asyncio.create_task(server.serve(sockets=[bound]))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        headers = {"Authorization": f"Bearer {key.text}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
            await _sign_in(client, key.text)
            yield client
        server.should_exit = True
        await running
        await intake.close()


async def opened(client: httpx2.AsyncClient, page: str) -> int:
    """Load a dashboard page with its files, as a browser with an empty cache does.

    Returns the number of bytes. Requests are sequential, so a browser is at least as fast.
    """
    answer = await client.get(page)
    answer.raise_for_status()
    size = len(answer.content)
    for found in re.findall(r'(?:src|href)="(/dashboard/static[^"]*)"', answer.text):
        part = await client.get(found.replace("&amp;", "&"))
        part.raise_for_status()
        size += len(part.content)
    return size


async def _sign_in(client: httpx2.AsyncClient, key: str) -> None:
    form = await client.get("/dashboard/login")
    token = re.search(r'name="form_token" value="([^"]+)"', form.text)
    assert token is not None
    headers = {"Origin": str(client.base_url).rstrip("/")}
    answer = await client.post("/dashboard/login", data={"form_token": token[1], "key": key}, headers=headers)
    if answer.status_code != 303:
        raise Unavailable("The dashboard did not let the benchmark in.", "Look at the answer of /dashboard/login.")


async def _no_model() -> ModelInfo:
    raise Unavailable("This benchmark serves the audit alone, and no model.", "Ask a `./lethe serve`.")


async def _no_checks() -> list[Check]:
    return []
