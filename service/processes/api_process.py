"""Build and start a process that answers callers. It does not import torch."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from model_store.naming import name_of
from service.access.api_keys import refuse_weak_keys
from service.access.key_memory import key_memory
from service.access.limits import NodeAllowance, RateLimits
from service.access.own_slots import OwnSlots
from service.db import roles, schema
from service.errors import LetheError
from service.observability.exposition import Exposition
from service.observability.logging import AccessLog
from service.observability.metrics import IntakeMetrics, new_registry
from service.predictions.downloads import Downloads
from service.predictions.reader import Reader
from service.predictions.served_model import Admission, model_description
from service.processes.key_folder import SLOTS, open_keyring
from service.processes.listening import Background, announce, stopped_by_signals, taken_if_free
from service.processes.readiness import Readiness, api_probes, holder_probes, reported_checks
from service.processes.supervisor import DRAIN
from service.queue.connection import connect
from service.queue.stream import DeletionStream
from service.requests.deletable import Deletions
from service.requests.drill_runs import CohortSearch, Drills
from service.requests.intake import Intake
from service.requests.tombstones import TombstoneLookup
from service.settings import Settings
from service.web.api.application import build
from service.web.connections import REQUESTS_GRACE_S, Network
from service.web.dashboard.installation import install as install_dashboard
from service.web.protocol import Connection, protocol
from service.web.services import Services, openid_connect


def server_config(app: ASGIApp, proxies: Sequence[Network] = ()) -> uvicorn.Config:
    """Configure uvicorn for an application; the forwarding headers of `proxies` are trusted."""
    return uvicorn.Config(
        app,
        http=protocol(proxies),
        # No WebSockets here, and uvicorn's own protocols for them log the path.
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=[name for network in proxies for name in _names(network)],
        lifespan="on",
        timeout_graceful_shutdown=REQUESTS_GRACE_S,
    )


class _DrainingServer(uvicorn.Server):
    """Can stop accepting, and exit when the connections have ended by themselves."""

    draining = False

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; returns whether to exit."""
        if self.draining:
            for server in self.servers:
                server.close()
            connections = [each for each in self.server_state.connections if isinstance(each, Connection)]
            for connection in connections:
                connection.drain()
            if not connections:
                return True
        return await super().on_tick(counter)


class Server:
    """Serves an application; a failed activity stops it, and `serve` raises the error."""

    def __init__(self) -> None:
        self._failure: BaseException | None = None
        self._stopping = False
        self._uvicorn: _DrainingServer | None = None

    def drain(self) -> None:
        """Accept nothing more, and stop when the open connections have ended; before the start, right after it."""
        if self._uvicorn is None:
            self.stop()
        else:
            self._uvicorn.draining = True

    def stop(self) -> None:
        """Stop gracefully at the next turn of the event loop; before the start, right after it."""
        self._stopping = True
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    def fail(self, error: BaseException) -> None:
        """Stop, and make `serve` raise the first error given."""
        self._failure = self._failure or error
        self.stop()

    def serve(self, config: uvicorn.Config, bound: socket.socket) -> None:
        """Serve until stopped; raises the error of a failed activity or of the start."""
        self._uvicorn = _DrainingServer(config)
        self._uvicorn.should_exit = self._stopping
        try:
            self._uvicorn.run(sockets=[bound])
        except SystemExit:
            if self._failure is None:
                raise
        if self._failure is not None:
            raise self._failure


def _names(network: Network) -> Iterator[str]:
    """Yield the address ranges of a network's clients, for IPv4 also as mapped on a dual-stack socket."""
    yield str(network)
    if isinstance(network, IPv4Network):
        yield f"::ffff:{network.network_address}/{96 + network.prefixlen}"


#: Redis timeout for the counters (seconds); on failure, this process counts failed attempts itself.
_COUNTING_S = 0.5
#: Seconds between two attempts to predict before this process accepts connections.
_USEFUL_S = 0.02


def run(
    settings: Settings,
    bound: socket.socket,
    notify_ready: Callable[[], None],
    name: str,
    restarts: int,
    beside: int | None = None,
) -> None:
    """Answer on `bound` until SIGTERM or `DRAIN`; calls `notify_ready` once everything works. `name` is its own.

    `restarts` is the number of times that the supervisor restarted this process. `beside` is the number of the Lethe
    that it takes over from: while that one answers, this process accepts nothing that it cannot predict.

    Raises any error that prevents the start or stops the process.
    """
    with stopped_by_signals() as hand_over:
        server = Server()
        app = create_app(
            settings, name, on_failure=server.fail, on_ready=notify_ready, restarts=restarts, beside=beside
        )
        hand_over(server.stop)
        signal.signal(DRAIN, lambda number, frame: server.drain())
        server.serve(server_config(app, settings.proxies), bound)


def create_app(
    settings: Settings,
    name: str = "api-0",
    *,
    on_failure: Callable[[BaseException], None] = lambda error: None,
    on_ready: Callable[[], None] = lambda: None,
    restarts: int = 0,
    beside: int | None = None,
) -> FastAPI:
    """Create the application of one process, started and stopped by its lifespan.

    `settings` name a migrated database, a Redis and the folder of a model. `on_failure` is called if an essential
    activity ends, `on_ready` once everything works.
    """
    registry = new_registry(restarts)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with _answering(settings, name, registry, on_failure, on_ready) as services:
                if beside is not None:
                    await _until_useful(services.reader, settings.home, beside)
                app.state.services = services
                yield
        except Exception as error:
            on_failure(error)
            raise

    app = build(
        max_body_bytes=settings.max_body_bytes,
        registry=registry,
        access_log=AccessLog(settings.log_format, settings.log_level, process=name),
        lifespan=lifespan,
    )
    install_dashboard(app)
    return app


async def _until_useful(reader: Reader, home: Path, beside: int) -> None:
    """Return once this process can predict, or the Lethe with the number `beside` has ended."""
    while True:
        with contextlib.suppress(LetheError):
            reader.predict_many(())
            return
        with taken_if_free(home, "api", beside) as has_ended:
            if has_ended:
                return
        await asyncio.sleep(_USEFUL_S)


@asynccontextmanager
async def _answering(
    settings: Settings,
    name: str,
    registry: CollectorRegistry,
    on_failure: Callable[[BaseException], None],
    on_ready: Callable[[], None],
) -> AsyncIterator[Services]:
    """Yield the services that the routes use, and run the background activities until the end of the block."""
    database_url, redis_url = settings.servers
    async with AsyncExitStack() as stack:
        engine = await roles.open_engine(settings.api_database_url or database_url, roles.API_ROLE)
        stack.push_async_callback(engine.dispose)
        await schema.require_current(engine)
        # Callers with a key must not wait for a hanging Redis.
        redis = connect(redis_url, socket_timeout_s=_COUNTING_S)
        stack.push_async_callback(redis.aclose)
        keyring = await open_keyring(engine, settings)
        await refuse_weak_keys(engine, settings.host)
        slots = stack.enter_context(await asyncio.to_thread(OwnSlots.open, settings.home / "keys" / SLOTS))
        model = name_of(settings.model_dir)
        intake = Intake(engine, slots, keyring, max_queued_nodes=settings.max_queued_nodes)
        stack.push_async_callback(intake.close)
        reader, keys, metrics = Reader(settings.home), key_memory(engine, keyring), IntakeMetrics(registry)
        tombstones = TombstoneLookup(engine, keyring, model)
        cohorts = CohortSearch(reader.canaries, reader.live, tombstones)

        def key_files() -> None:
            keyring.check_files()
            slots.check_file()

        own = api_probes(
            home=settings.home,
            model=model,
            engine=engine,
            redis=DeletionStream(redis, model).ping,
            keyring=keyring,
            key_files=key_files,
            predictions=lambda: reader.predict_many(()),
            max_wait_s=settings.max_wait_ms / 1000,
        )
        readiness = Readiness(
            [*own, *holder_probes(engine, model)],
            timeout_s=settings.readiness_timeout_s,
            state=reader.newest,
            others=lambda: reported_checks(engine, model),
        )
        exposition = Exposition(registry, name, settings.home / "run" / "metrics")
        await stack.enter_async_context(exposition.shared())
        background = Background(on_failure)
        stack.push_async_callback(background.close, settings.shutdown_grace_s)
        background.start("reader", Admission(engine, reader, settings.home, model).run(background.stop))
        background.start("keys", keys.run(background.stop))

        async def is_ready() -> bool:
            return all(check.ok for check in await readiness())

        background.start("announcement", announce(is_ready, on_ready, background.stop))
        limits = RateLimits(redis, keyring.cursor_key)
        yield Services(
            settings=settings,
            model=model,
            engine=engine,
            keyring=keyring,
            keys=keys,
            limits=limits,
            allowance=NodeAllowance(redis, model, settings.max_predicted_nodes),
            reader=reader,
            downloads=Downloads(reader, settings.home / "run"),
            model_info=partial(model_description, engine, model, lambda: reader.facts),
            deletions=Deletions(
                model=model,
                engine=engine,
                reader=reader,
                tombstones=tombstones,
                keyring=keyring,
                intake=intake,
                limits=limits,
                metrics=metrics,
                most_targets=settings.max_nodes_per_request,
                repairs=settings.repair == "always",
            ),
            drills=Drills(engine, model, intake, keyring, cohorts, metrics),
            readiness=readiness,
            exposition=exposition,
            metrics=metrics,
            openid=openid_connect(settings, engine, keyring, keys),
        )
