"""The composition root: what Lethe is made of, in the order it is started, and the process that serves it."""

import asyncio
import gc
import os
import random
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import UTC, datetime
from ipaddress import IPv4Network
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from model_store.replacement import finish_move
from model_store.store import Store
from projector.device import torch_device
from service.api.application import build
from service.api.auth import key_memory
from service.api.limits import RateLimits
from service.api.services import Services, Tombstones
from service.background import Background
from service.connections import Network
from service.dashboard.installation import install as install_dashboard
from service.db import migrate, roles
from service.db.engine import create_engine
from service.db.intake import Intake
from service.db.vault_keys import SLOTS, open_keyring, open_log_keys, open_request_keys
from service.description import model_description
from service.domain.states import RepairPolicy
from service.drill_schedule import DrillSchedule
from service.embedded import open_servers
from service.errors import ConfigurationError
from service.first_key import FirstKey, ensure_first_key
from service.gauges import keep_gauges
from service.http_protocol import protocol
from service.listening import facts_file, listen, stopped_by_signals, url_of, write_private
from service.observability.access import AccessLog
from service.observability.logging import configure_logging
from service.observability.metrics import UnlearningMetrics, new_registry
from service.queue.backoff import Backoff
from service.queue.batcher import BatchLimits
from service.queue.connection import connect
from service.queue.outage import Outage
from service.queue.relay import Relay
from service.queue.stream import DeletionStream
from service.queue.sweeper import Sweeper
from service.queue.unclaimed import Queue
from service.reader.predictions import Reader
from service.readiness import Readiness, probes
from service.settings import Settings
from service.unlearning.newton_process import NewtonProcess
from service.unlearning.placement import Placement
from service.vault.own_slots import OwnSlots
from service.vault.request_keys import RequestKeys
from service.worker.context import Context
from service.worker.log_signer import LogSigner
from service.worker.recovery import check_agreement, require_untouched
from service.worker.unlearner import Phase, Unlearner
from service.worker.unneeded_keys import UnneededKeys

#: Seconds that requests under way get at shutdown; the rest of `shutdown_grace_s` is the unlearner's.
_REQUESTS_GRACE_S = 2
#: Seconds until a Redis that does not answer is left alone, and failed attempts are counted here.
_COUNTING_S = 0.5
#: Longest time for which predictions and the unlearner's thread keep the interpreter from each other (seconds).
#: Python's own 5 ms are paid anew after every call to the disk and every product of matrices.
_SWITCH_S = 0.0002
#: New containers after which the youngest are searched for cycles; Python's own 700 are a few requests.
_COLLECT_AFTER = 10_000


def create_app(
    settings: Settings,
    *,
    on_failure: Callable[[BaseException], None] = lambda error: None,
    on_ready: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The application of one process, started and stopped by its lifespan.

    `settings` name a migrated database, a Redis and the folder of a model. `on_failure` is told when an activity that
    nothing can work without has ended, `on_ready` once everything works.
    """
    registry = new_registry()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with _running(settings, registry, on_failure, on_ready) as services:
                app.state.services = services
                yield
        except Exception as error:
            on_failure(error)
            raise

    app = build(
        max_body_bytes=settings.max_body_bytes,
        registry=registry,
        access_log=AccessLog(settings.log_format, settings.log_level),
        lifespan=lifespan,
    )
    install_dashboard(app)
    return app


@asynccontextmanager
async def _running(
    settings: Settings,
    registry: CollectorRegistry,
    on_failure: Callable[[BaseException], None],
    on_ready: Callable[[], None],
) -> AsyncIterator[Services]:
    """Everything the routes reach, and the activities beside them, until the end of the block."""
    database_url, redis_url = _servers(settings)
    async with AsyncExitStack() as stack:
        engine = create_engine(database_url, role=await _role(database_url))
        stack.push_async_callback(engine.dispose)
        redis = connect(redis_url)
        stack.push_async_callback(redis.aclose)
        # Connections of their own: whoever presents a key does not wait for a Redis that hangs.
        counting = connect(redis_url, socket_timeout_s=_COUNTING_S)
        stack.push_async_callback(counting.aclose)
        keyring = await open_keyring(engine, settings.home / "keys")
        log_keys = await open_log_keys(engine, settings.home / "keys")
        request_keys = await open_request_keys(engine, settings.home / "keys")
        finish_move(settings.model_dir)
        store = Store.open(settings.model_dir)
        model = store.manifest.name
        await check_agreement(engine, store, request_keys, model)
        own_slots = stack.enter_context(await asyncio.to_thread(OwnSlots.open, request_keys.folder, 0))
        intake = Intake(engine, own_slots, max_queued_nodes=settings.max_queued_nodes)
        stack.push_async_callback(intake.close)
        unneeded_keys = UnneededKeys(engine, request_keys)
        device = chosen_device(settings.device)
        reader = Reader.empty("the model is being loaded")
        stream = DeletionStream(redis, model)
        metrics = UnlearningMetrics(registry)
        background = Background(on_failure)
        context = Context(
            engine=engine,
            keyring=keyring,
            request_keys=request_keys,
            unneeded_keys=unneeded_keys,
            readers=reader,
            metrics=metrics,
            placement=Placement(
                device,
                RepairPolicy(settings.repair),
                stack.enter_context(NewtonProcess()),
                settings.repair_tolerance,
                settings.factor_age,
            ),
            # A thread of its own for disk and device, so that predictions never wait for it.
            executor=stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="unlearner")),
            outage=Outage("unlearner", Backoff(), random.Random()),
            model=model,
            repair_budget_s=settings.repair_budget,
            stop=background.stop,
        )
        limits = BatchLimits(max_nodes=settings.max_batch_nodes, max_wait_s=settings.max_wait_ms / 1000)
        unlearner = Unlearner(context, store, stream, limits=limits, lease_ttl_s=settings.lease_ttl_s)
        relay, sweeper = Relay(engine, stream), Sweeper(engine, stream)
        queue = Queue(engine, stream, (relay.outage, unlearner.claiming, sweeper.outage))
        keys = key_memory(engine, keyring)
        model_info = model_description(engine, lambda: unlearner.manifest, lambda: unlearner.resident)
        readiness = Readiness(
            probes(
                home=settings.home,
                model=model,
                engine=engine,
                queue=queue,
                keyring=keyring,
                log_keys=log_keys,
                own_slots=own_slots,
                reader=reader,
                condition=lambda: unlearner.condition,
                device=device,
            ),
            timeout_s=settings.readiness_timeout_s,
            condition=lambda: unlearner.condition,
        )

        services = Services(
            settings=settings,
            model=model,
            engine=engine,
            intake=intake,
            keyring=keyring,
            keys=keys,
            limits=RateLimits(counting, keyring.cursor_key),
            reader=reader,
            tombstones=Tombstones(engine, keyring, model),
            model_info=model_info,
            canaries=lambda: unlearner.manifest.canaries,
            readiness=readiness,
            registry=registry,
            metrics=metrics,
        )

        stack.push_async_callback(background.close, max(0.0, settings.shutdown_grace_s - _REQUESTS_GRACE_S))
        background.start("unlearner", unlearner.run())
        background.start("relay", relay.run(background.stop))
        background.start("sweeper", sweeper.run(background.stop))
        background.start("log", LogSigner(engine, log_keys, metrics).run(background.stop))
        background.start("keys", keys.run(background.stop))
        background.start("keys of id lists", unneeded_keys.run(background.stop))
        background.start("gauges", keep_gauges(services, queue, background.stop))
        if settings.drill_interval is not None:
            schedule = DrillSchedule(
                services, settings.drill_interval, lambda: unlearner.condition.phase is Phase.SERVING
            )
            background.start("drills", schedule.run(background.stop))
        background.start("announcement", _announce(readiness, on_ready, background.stop))

        yield services


async def _announce(readiness: Readiness, on_ready: Callable[[], None], stop: asyncio.Event) -> None:
    """Call `on_ready` once, when everything works for the first time."""
    while not stop.is_set():
        if all(check.ok for check in await readiness()):
            on_ready()
            return
        try:
            await asyncio.wait_for(stop.wait(), 0.1)
        except TimeoutError:
            continue


async def _role(database_url: str) -> str | None:
    """The role without the right to change events or log, if this login may work as it."""
    engine = create_engine(database_url, pool_size=1)
    try:
        return await roles.available(engine)
    finally:
        await engine.dispose()


def _servers(settings: Settings) -> tuple[str, str]:
    if settings.database_url is None or settings.redis_url is None:
        raise ConfigurationError("No Postgres or Redis is named.", "Set DATABASE_URL and REDIS_URL, or use `run`.")
    return settings.database_url, settings.redis_url


def chosen_device(name: str) -> torch.device:
    """The device that the setting means; `auto` is a CUDA device where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch_device(name)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, on servers of its own where none are named.

    Requests under way are answered, and the batch under way is finished or given up, within `shutdown_grace_s`.

    Raises:
        ConfigurationError: the port is in use, or a setting cannot work.
        AlreadyRunning: another process serves this LETHE_HOME.
        LetheError: what kept it from starting, or from going on.
    """
    configure_logging(settings.log_format, settings.log_level)
    sys.setswitchinterval(_SWITCH_S)
    with stopped_by_signals() as hand_over, ExitStack() as stack:
        bound = stack.enter_context(listen(settings.host, settings.port))
        settings = stack.enter_context(open_servers(settings))
        key = asyncio.run(prepare(settings))
        if key is not None:
            deliver(key, settings.home)
        url = url_of(bound)
        facts = {
            "url": url,
            "pid": os.getpid(),
            "model": str(settings.model_dir),
            "started_at": datetime.now(UTC).isoformat(),
        }
        stack.enter_context(facts_file(settings.home / "run" / "server.json", facts))

        def ready() -> None:
            _spare_collector()
            _tell(_greeting(url))

        server = _Server(settings, ready)
        hand_over(server.stop)
        server.serve(bound)


def server_config(app: ASGIApp, proxies: Sequence[Network] = ()) -> uvicorn.Config:
    """How uvicorn serves an application here; what `proxies` say of whom they forward is believed."""
    return uvicorn.Config(
        app,
        http=protocol(proxies),
        # Nothing here speaks WebSocket, and uvicorn's own protocols for it log the path.
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=[name for network in proxies for name in _names(network)],
        lifespan="on",
        timeout_graceful_shutdown=_REQUESTS_GRACE_S,
    )


def _names(network: Network) -> Iterator[str]:
    """How clients of a network are named, those of IPv4 also on a socket for both."""
    yield str(network)
    if isinstance(network, IPv4Network):
        yield f"::ffff:{network.network_address}/{96 + network.prefixlen}"


class _Server:
    """uvicorn around the application; an activity that fails stops it, and its error is raised."""

    def __init__(self, settings: Settings, on_ready: Callable[[], None]) -> None:
        self._failure: BaseException | None = None
        app = create_app(settings, on_failure=self._fail, on_ready=on_ready)
        self._uvicorn = uvicorn.Server(server_config(app, settings.proxies))

    def stop(self) -> None:
        """Stop in order, at the next turn of the event loop; before the start, right after it."""
        self._uvicorn.should_exit = True

    def serve(self, bound: socket.socket) -> None:
        """Serve until stopped; raises what a failed activity, or the start, raised."""
        try:
            self._uvicorn.run(sockets=[bound])
        except SystemExit:
            if self._failure is None:
                raise
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()


async def prepare(settings: Settings) -> FirstKey | None:
    """Bring the database to this version's schema, and see to a first key.

    Raises StateMismatch, with nothing changed, when it is not the database that belongs to model and keys.
    """
    database_url, _ = _servers(settings)
    finish_move(settings.model_dir)
    store, request_keys = Store.open(settings.model_dir), RequestKeys(settings.home / "keys" / SLOTS)
    if await migrate.current(database_url) is None:
        require_untouched(store, request_keys.count(), store.manifest.name)
    await migrate.upgrade(database_url)
    engine = create_engine(database_url)
    try:
        await check_agreement(engine, store, request_keys, store.manifest.name)
        return await ensure_first_key(engine, await open_keyring(engine, settings.home / "keys"), settings)
    finally:
        await engine.dispose()


def _spare_collector() -> None:
    """Let the collector of cycles leave alone what is there for good, once everything has been loaded.

    It went through all modules again and again, a sixth of the processor time under load, and held up predictions.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def deliver(key: FirstKey, home: Path) -> None:
    """Show a key that was made just now, once: on the terminal, or in a file only this user can read."""
    if sys.stdout.isatty():
        _tell(f"The first API key, shown this once:\n  {key.text}")
        return
    path = home / "run" / "admin.key"
    write_private(path, key.text)
    _tell(f"The first API key is in {path}")


def _greeting(url: str) -> str:
    return f"Lethe is ready.\n  Dashboard  {url}/dashboard\n  API        {url}\n  Docs       {url}/docs"


def _tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
