"""Build and start the process that unlearns."""

import asyncio
import math
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from model_store.memory import free_memory
from model_store.replacement import finish_move
from model_store.store import Store
from service.db import roles, schema
from service.domain.lease_report import Check, Phase
from service.home_id import id_of
from service.log.signed_checkpoints import LogSigner
from service.observability.exposition import Exposition
from service.observability.metrics import UnlearningMetrics, new_registry
from service.predictions.facts import VersionFacts
from service.predictions.newcomers import answered
from service.processes.gauges import keep_gauges
from service.processes.key_folder import open_keyring, open_log_keys, open_request_keys
from service.processes.listening import Background, announce, stopped_by_signals
from service.processes.private_servers import owns_database
from service.processes.readiness import Readiness
from service.processes.unlearner_health import Health, shared_health
from service.processes.unlearner_probes import keep_looking, unlearner_probes
from service.queue.connection import connect
from service.queue.stream import DeletionStream
from service.requests.decisions import FailedRequests, FollowUp
from service.requests.delivery import ClaimWatch, Relay, Sweeper
from service.requests.drill_runs import CohortSearch
from service.requests.tombstones import TombstoneLookup
from service.settings import Settings
from service.unlearner.batcher import BatchLimits
from service.unlearner.context import Context
from service.unlearner.induction import Induction
from service.unlearner.loop import Unlearner
from service.unlearner.placement import chosen_device
from service.unlearner.workers import MeetingPlace, Team
from service.web.connections import REQUESTS_GRACE_S
from service.webhooks.posting import Poster
from service.webhooks.sending import Webhooks, WebhookSender


def run(settings: Settings, notify_ready: Callable[[], None], name: str, restarts: int) -> None:
    """Unlearn until SIGTERM; calls `notify_ready` once it serves, which a standby does not.

    `name` is this process's own in its home. `restarts` is the number of times that the supervisor restarted it.

    Raises any error that prevents the start or stops the process.
    """
    with stopped_by_signals() as hand_over:
        asyncio.run(_run(settings, notify_ready, name, restarts, hand_over))


async def _run(
    settings: Settings,
    notify_ready: Callable[[], None],
    name: str,
    restarts: int,
    hand_over: Callable[[Callable[[], None]], None],
) -> None:
    loop, ended, failures = asyncio.get_running_loop(), asyncio.Event(), list[BaseException]()

    def stop() -> None:
        # Called in a signal handler: the loop may be asleep.
        loop.call_soon_threadsafe(ended.set)

    hand_over(stop)

    def fail(error: BaseException) -> None:
        failures.append(error)
        ended.set()

    async with unlearning(settings, name, on_failure=fail, on_ready=notify_ready, restarts=restarts):
        await ended.wait()
    if failures:
        raise failures[0]


@asynccontextmanager
async def unlearning(
    settings: Settings,
    name: str = "unlearner",
    *,
    on_failure: Callable[[BaseException], None],
    on_ready: Callable[[], None] = lambda: None,
    restarts: int = 0,
) -> AsyncIterator[None]:
    """Run the unlearner and its background activities until the end of the block.

    `settings` name a migrated database, a Redis and the folder of a model. `on_failure` is called if an essential
    activity ends.
    """
    database_url, redis_url = settings.servers
    async with AsyncExitStack() as stack:
        engine = await roles.open_engine(settings.unlearner_database_url or database_url, roles.UNLEARNER_ROLE)
        stack.push_async_callback(engine.dispose)
        await schema.require_current(engine)
        redis = connect(redis_url)
        stack.push_async_callback(redis.aclose)
        keyring = await open_keyring(engine, settings)
        log_keys = await open_log_keys(engine, settings.home / "keys")
        request_keys = await open_request_keys(engine, settings.home / "keys", keyring)
        finish_move(settings.model_dir)
        store = Store.open(settings.model_dir)
        model = store.manifest.name
        device = chosen_device(settings.device)
        registry = new_registry(restarts)
        metrics, background = (
            UnlearningMetrics(registry, with_noise=settings.certify is not None),
            Background(on_failure),
        )
        context = Context.of(
            settings,
            engine,
            keyring,
            request_keys,
            model,
            name="unlearner",
            metrics=metrics,
            # A separate thread for disk and device, so that the lease is renewed meanwhile.
            executor=stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="unlearner")),
            # With a promise, unrepaired weights are not published.
            repair_budget_s=settings.repair_budget if settings.certify is None else math.inf,
            stop=background.stop,
        )
        stream = DeletionStream(redis, model)
        limits = BatchLimits(max_nodes=settings.max_batch_nodes, max_wait_s=settings.max_wait_ms / 1000)
        team = Team(MeetingPlace.of(settings), settings.workers, device)
        metrics.workers.set_function(lambda: team.count)
        metrics.workers_wanted.set(team.wanted)
        if (erasures := context.erasures) is not None:
            metrics.ledger_failing.set_function(lambda: erasures.failing_s)
        unlearner = Unlearner(
            context,
            store,
            stream,
            team,
            limits=limits,
            lease_ttl_s=settings.lease_ttl_s,
            home=await asyncio.to_thread(id_of, settings.home),
            owns_database=owns_database(settings),
            after_failure=restarts > 0,
        )
        relay, sweeper = Relay(engine, stream), Sweeper(engine, stream)
        activities = (relay.outage, unlearner.claiming, sweeper.outage, unlearner.carrying_out)
        queue = ClaimWatch(engine, stream, activities, limits.max_wait_s)
        tombstones = TombstoneLookup(engine, keyring, model)
        cohorts = CohortSearch(lambda: unlearner.loader.manifest.canaries, unlearner.live, tombstones)

        def key_files() -> None:
            keyring.check_files()
            log_keys.check_files(settings.home / "keys")

        readiness = Readiness(
            unlearner_probes(
                queue=queue,
                key_files=key_files,
                device=device,
                team=team,
                restarts=restarts,
                ledger=context.erasures,
            ),
            timeout_s=settings.readiness_timeout_s,
            state=lambda: unlearner.condition,
        )

        async def health() -> Health:
            return Health(unlearner.condition, await readiness())

        def found(checks: tuple[Check, ...]) -> None:
            unlearner.checks = checks

        exposition = Exposition(registry, name, settings.home / "run" / "metrics")
        await stack.enter_async_context(exposition.shared())
        await stack.enter_async_context(shared_health(settings.home, name, health))
        induction = Induction(context, lambda: unlearner.loader.writer)
        await stack.enter_async_context(answered(settings.home, name, induction.answer))
        signer = LogSigner(engine, log_keys, metrics)
        # Callbacks run in reverse: this one runs after all activities have ended.
        stack.push_async_callback(signer.sign_last)
        stack.push_async_callback(background.close, max(0.0, settings.shutdown_grace_s - REQUESTS_GRACE_S))
        background.start("unlearner", unlearner.run())
        background.start("relay", relay.run(background.stop))
        background.start("sweeper", sweeper.run(background.stop))
        background.start("log", signer.run(background.stop))
        background.start("keys of id lists", context.unneeded_keys.run(background.stop))
        sender = WebhookSender(settings.home / "keys", settings.private_receivers, Poster())
        background.start("webhooks", Webhooks(engine, sender).run(background.stop))
        failed = FailedRequests(engine, model, request_keys, tombstones)
        background.start(
            "follow-up", FollowUp(engine, failed, timedelta(days=settings.keep_failed_days)).run(background.stop)
        )

        def served() -> VersionFacts | None:
            # After losing its lease it still has the model in memory.
            return None if unlearner.condition.phase is Phase.WAITING_FOR_LEASE else unlearner.served

        gauges = keep_gauges(
            metrics, engine, model, cohorts, queue, served, partial(_room, settings.home), background.stop
        )
        background.start("gauges", gauges)
        background.start("checks", keep_looking(readiness, found, background.stop))

        async def is_serving() -> bool:
            return unlearner.condition.phase is Phase.SERVING

        background.start("announcement", announce(is_serving, on_ready, background.stop))
        yield


def _room(home: Path) -> tuple[float, float]:
    """Return the free bytes on the disk of `home` and in memory; NaN if unknown."""
    memory = free_memory()
    try:
        disk: float = shutil.disk_usage(home).free
    except OSError:
        disk = math.nan
    return disk, math.nan if memory is None else memory
