"""The unlearner: wait for the lease, load the committed version, and apply batches until stopped."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import structlog

from model_store.store import Store
from projector.errors import ExplainedError, WorkersLost
from service import failure_points
from service.db import lease as leases
from service.domain.lease_report import Check, Condition, LeaseReport, Phase
from service.domain.records import Lease
from service.domain.states import Cause, RepairPolicy
from service.errors import LeaseLost, Unavailable
from service.failure_points import FailurePoint
from service.observability.tracing import stepped
from service.predictions.facts import VersionFacts
from service.queue.outage import Outage, as_outage
from service.queue.stream import DeletionStream
from service.unlearner.agreement import steps_of_cause
from service.unlearner.batcher import BatchLimits, Claims, Take
from service.unlearner.context import Context
from service.unlearner.importer import Importer
from service.unlearner.lease_keeper import LeaseKeeper, give_back, holding
from service.unlearner.loading import Checkpointer, Loader
from service.unlearner.new_version import Stopwatch, committed_facts
from service.unlearner.placement import NotPublishable
from service.unlearner.processing import Processor
from service.unlearner.repairer import Repairer
from service.unlearner.resident import Resident
from service.unlearner.staged import Candidate
from service.unlearner.workers import Team

#: Maximum blocking read of the stream, and interval of the checks for imports and expired factors (seconds).
_POLL_S = 0.5
#: Interval of progress lines in the log (seconds).
_PROGRESS_S = 10.0
#: Consecutive unexpected failures, without a batch between them, before the unlearner gives up.
_MAX_UNFORESEEN = 10


@dataclass(frozen=True)
class _Session:
    """The workers on the committed model under one lease."""

    processor: Processor
    repairer: Repairer
    checkpointer: Checkpointer


class Unlearner:
    """Writes one model. `run` returns after the current batch once `stop` is set."""

    def __init__(
        self,
        context: Context,
        store: Store,
        stream: DeletionStream,
        team: Team,
        *,
        limits: BatchLimits,
        lease_ttl_s: float,
        home: str,
        owns_database: bool = False,
        after_failure: bool = False,
    ) -> None:
        """`home` is the id of the LETHE_HOME; `owns_database` is true for a private database in it.

        `after_failure`: whether this process replaces one that ended unexpectedly.
        """
        self._context = context
        self._team = team
        self._lease_ttl_s = lease_ttl_s
        self._home = home
        self._owns_database = owns_database
        self._consumer = f"unlearner-{uuid4().hex}"
        self._claims = Claims(
            engine=context.engine, stream=stream, model=context.model, consumer=self._consumer, limits=limits
        )
        self._log = structlog.get_logger(__name__)
        self._importer = Importer(context)
        #: It holds the model, with its manifest, and the writer of its versions.
        self.loader = Loader(context, store, self._importer, team, home)
        #: `time.monotonic()` of the next check for an import.
        self._ask_at = 0.0
        #: `time.monotonic()` of the next cleanup of the disk.
        self._tidy_at = 0.0
        self._unforeseen = 0
        #: Whether the next lease must count a failure. Outages pass by themselves and do not count.
        self._after_failure = after_failure
        #: The outage that makes batches fail, until one succeeds or no request waits.
        self.carrying_out = Outage("batches")
        #: The lease acquired last.
        self._lease: Lease | None = None
        #: Results of the checks that only this process can make; the checker sets them, and others read them.
        self.checks: tuple[Check, ...] = ()
        self._condition = Condition()
        #: Whether deletions, or repairs for them, are running. Their progress goes to the log alone: it would reveal to
        #: write-only callers whether there was something to delete.
        self._is_deleting = False

    @property
    def condition(self) -> Condition:
        """Current phase and, if it is stuck, the reason."""
        if self._condition.phase in (Phase.LOADING, Phase.SERVING) and self._context.outage.reason is not None:
            return Condition(Phase.HELD_UP, self._context.outage.reason)
        said = None if self._is_deleting else self._context.work.status
        if self._condition.phase is Phase.SERVING and self.carrying_out.reason is not None:
            return Condition(Phase.HELD_UP, self.carrying_out.reason)
        if self._condition.phase is Phase.SERVING:
            return Condition(Phase.SERVING, self._importer.reason or said)
        if self._condition.phase is Phase.LOADING:
            return Condition(Phase.LOADING, said)
        return self._condition

    @property
    def report(self) -> LeaseReport:
        """The status published to other processes."""
        resident = self.resident
        repair = None if resident is None else resident.repair_in_progress
        return LeaseReport(self.condition, repair, str(self._context.placement.device), self.checks)

    @property
    def claiming(self) -> Outage:
        """The outage that prevents claims, if any."""
        return self._claims.outage

    @property
    def resident(self) -> Resident | None:
        """The model on the device, once loaded."""
        writer = self.loader.writer
        return None if writer is None else writer.resident

    @property
    def served(self) -> VersionFacts | None:
        """Facts about the committed version, once it is loaded.

        None while its certificate is pending, too, since computing it would block a loop.
        """
        resident = self.resident
        if resident is None or not resident.committed.has_certificate:
            return None
        return committed_facts(resident.committed, self._context.ledger)

    def live(self, nodes: Sequence[str]) -> list[str]:
        """Return the external ids among these that are live nodes. Raises Unavailable before a version is loaded."""
        resident = self.resident
        if resident is None:
            raise Unavailable("The model is loading.", "Try again in a moment.")
        return [node for node in nodes if node in resident.committed.node_ids]

    async def run(self) -> None:
        """Run sessions under the lease until stopped; an outage or a loss starts a new session."""
        beside = {
            asyncio.create_task(self._watch_age(), name="factor-age"),
            asyncio.create_task(self._log_work(), name="progress"),
        }
        try:
            while not self._context.stop.is_set():
                async with contextlib.AsyncExitStack() as held:
                    await self._attempt(held)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            if self._lease is not None:
                await give_back(self._context.engine, self._lease)
        self._condition = Condition(Phase.STOPPED)

    async def _watch_age(self) -> None:
        """Drop expired factors from memory, whatever else the unlearner waits for."""
        while True:
            await asyncio.sleep(_POLL_S)
            # On the executor, where no repair runs meanwhile.
            await self._context.run(self._drop_expired)

    async def _log_work(self) -> None:
        """Log the progress of long work."""
        while True:
            await asyncio.sleep(_PROGRESS_S)
            if step := self._context.work.status:
                self._log.info("unlearner.working", step=step)

    def _drop_expired(self) -> None:
        resident = self.resident
        if resident is not None:
            resident.drop_expired()

    async def _attempt(self, held: contextlib.AsyncExitStack) -> None:
        """Run one session; after an outage, wait.

        The lease in `held` is renewed during that wait as well. Nobody else takes it, and predictions continue.
        """
        try:
            await self._session(held)
            self._context.outage.over()
        except LeaseLost as error:
            self._log.warning("lease.lost", reason=error.detail)
        except WorkersLost as error:
            self._team.lost()
            self._log.warning("workers.lost", reason=error.detail, remedy=error.remedy)
        except (Unavailable, NotPublishable, OSError) as error:
            # The wait must not keep the frames, which hold computed data.
            outage = as_outage(error).with_traceback(None)
            self._condition = Condition(Phase.FAILED, str(outage))
            await self._context.outage.pause(outage)
        except ExplainedError as error:
            # Store and database contradict each other, a key is missing, a file is damaged, the device is too small, or
            # the model cannot be repaired. A retry changes nothing.
            self._condition = Condition(Phase.FAILED, str(error))
            self._log.error("unlearner.refused", reason=error.detail, remedy=error.remedy)
            raise
        except Exception as error:
            # Unexpected, so it may pass. Predictions are served meanwhile, and readiness reports it.
            self._log.exception("unlearner.failed", attempt=self._unforeseen)
            self._condition = Condition(Phase.FAILED, f"It failed with {type(error).__name__}; check the log.")
            self._after_failure = True
            self._unforeseen += 1
            if self._unforeseen > _MAX_UNFORESEEN:
                raise
            await self._context.outage.pause(Unavailable(str(self._condition.reason), "See the log."))

    async def _session(self, held: contextlib.AsyncExitStack) -> None:
        self._condition = Condition(Phase.WAITING_FOR_LEASE)
        lease = await leases.acquire(
            self._context.engine,
            self._context.model,
            self._consumer,
            self._lease_ttl_s,
            above=await self._context.run(self._context.publisher.highest_fencing),
            after_failure=self._after_failure,
            home=self._home,
            take_over=self._owns_database,
        )
        if lease is None:
            # Another process claims now; earlier outages of this one no longer matter.
            self._claims.outage.over()
            self.carrying_out.over()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._context.stop.wait(), self._lease_ttl_s / 4)
            return
        self._lease, self._after_failure = lease, False
        # Clear the previous session's outage; this session reports its own.
        self._context.outage.reason = None
        # An import prepared under an earlier lease may rest on a version that another holder has replaced.
        self._importer.give_up()
        keeper = await held.enter_async_context(holding(self._context.engine, lease, lambda: self.report))
        failure_points.reached(FailurePoint.LEASED)
        self._condition = Condition(Phase.LOADING)
        try:
            with keeper.blaming_loss():
                # No variable holds the session: an import replaces it and must free its model.
                await self._serve(await stepped("start", self._start(keeper)), keeper)
        finally:
            self._context.work.end()
            await self._context.run(self._team.close)

    async def _start(self, keeper: LeaseKeeper, candidate: Candidate | None = None) -> _Session:
        """Load the committed version and finish its open steps; `candidate`, just imported, is loaded already."""
        context = self._context
        writer, unfinished = await self.loader.load(keeper, candidate)
        session = _Session(Processor(context, writer), Repairer(context, writer), Checkpointer(context, writer))
        failure_points.reached(FailurePoint.LOADED)
        if unfinished is None and writer.resident.keeps_promise:
            await writer.show()
            await context.run(writer.erase)
        elif unfinished is not None:
            steps = await steps_of_cause(context, writer, self.loader.store, unfinished)
            # Once committed, it must be finished: retry until done.
            with self._deleting():
                await context.retry(partial(writer.finish, unfinished, steps, Stopwatch()))
        # Only now are store and database known to belong together: an interrupted import has ended.
        await context.retry(context.unneeded_keys.begin)
        await session.repairer.resume()
        await session.repairer.keep_promise()
        failure_points.reached(FailurePoint.RESUMED)
        context.work.end()
        policy = context.placement.policy
        reason = await context.run(lambda: writer.resident.preconditioner_cache.why_none)
        if policy is RepairPolicy.ALWAYS and reason is not None:
            self._log.info("repair.without_preconditioner", reason=reason)
        return session

    async def _serve(self, session: _Session, keeper: LeaseKeeper) -> None:
        self._condition = Condition(Phase.SERVING)
        keeper.wake()
        self._log.info("unlearner.serving", model=self._context.model)
        claims, stop = self._claims, self._context.stop
        claims.start_again()
        while not stop.is_set():
            keeper.check()
            self._team.check()
            candidate = await self._import(keeper)
            if candidate is not None and self._team.wanted > 1:
                return  # the others load it as well
            if candidate is not None:
                # Claimed requests resolve by external id in the new model.
                session = await stepped("start", self._start(keeper, candidate))
            decision = claims.decide()
            if isinstance(decision, Take):
                batch = self._process(session.processor, decision.requests)
                await stepped("batch", batch, claims.traceparents(decision.requests))
                continue
            if claims.none:
                await self._tidy()
                if not self._importer.is_under_way and await self._context.run(self._team.late):
                    return  # they take part in the next session
            repairs = claims.none and await self._context.run(session.repairer.is_due)
            idle = repairs or (claims.none and session.checkpointer.due) or self._importer.is_under_way
            seconds = _POLL_S if decision.seconds is None else min(decision.seconds, _POLL_S)
            await claims.wait(0.0 if idle else seconds, stop)
            if claims.none:
                self.carrying_out.over()
            if idle and claims.none and not self._importer.is_under_way:
                with self._deleting():
                    await (session.repairer if repairs else session.checkpointer).step()

    async def _tidy(self) -> None:
        """Between batches, once per lease duration, remove what former lease holders left on the disk."""
        writer = self.loader.writer
        if writer is None or time.monotonic() < self._tidy_at:
            return
        self._tidy_at = time.monotonic() + self._lease_ttl_s
        await self._context.run(writer.tidy)
        self._context.work.end()

    async def _import(self, keeper: LeaseKeeper) -> Candidate | None:
        """Work on a waiting import for one slice; check for one every `_POLL_S` until it begins."""
        writer, store = self.loader.writer, self.loader.store
        if writer is None or (time.monotonic() < self._ask_at and not self._importer.is_under_way):
            return None
        self._ask_at = time.monotonic() + _POLL_S
        wanted = await self._importer.open()
        if wanted is None:
            return None
        return await self._importer.step(wanted, writer.pointer, store, writer.resident.committed.node_ids, keeper)

    async def _process(self, processor: Processor, count: int) -> None:
        """Process the first `count` claimed requests to their end; deferred ones keep waiting."""
        failure_points.reached(FailurePoint.BATCHED)
        try:
            with self._deleting():
                deferred = await processor.process(self._claims.first(count))
        except (Unavailable, NotPublishable, OSError) as error:
            self.carrying_out.failed(error)
            raise
        self.carrying_out.over()
        self._unforeseen = 0
        self._team.worked()
        self._context.outage.over()
        await self._claims.done(count, deferred)
        failure_points.reached(FailurePoint.ACKNOWLEDGED, Cause.BATCH)

    @contextlib.contextmanager
    def _deleting(self) -> Iterator[None]:
        self._is_deleting = True
        try:
            yield
        finally:
            self._is_deleting = False
            self._context.work.end()
