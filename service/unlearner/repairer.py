"""Repairs that outlast their batch's budget: continued in idle time, and committed as separate versions.

A repair works in slices, so that a new request waits for at most one of them. A batch that arrives meanwhile goes first
and continues from the weights reached. At the end, the commit of the repair's version adds one `repaired` event to
every waiting request. A converged repair also covers earlier requests whose repair did not converge, and adds an event
to these.
"""

import time
from functools import partial
from typing import ClassVar

import structlog

from projector.errors import WorkersLost
from projector.forgetting.status import RepairStatus
from service import failure_points
from service.db.engine import Connection
from service.db.transactions import fenced_transaction, transaction
from service.domain.states import Cause, EventType, RepairPolicy
from service.domain.versions import Version
from service.failure_points import FailurePoint
from service.log.events import EventRepository
from service.log.leaves import ModelCertified
from service.observability.tracing import stepped
from service.unlearner.committed import PreparedRepair
from service.unlearner.context import Context
from service.unlearner.new_version import CauseSteps, NewVersion, Stopwatch
from service.unlearner.outcomes import ended, repair_given_up
from service.unlearner.pending_repairs import PendingRepairs
from service.unlearner.version_writer import VersionWriter

#: Maximum work between two checks for new requests (seconds).
_SLICE_S = 0.25
_FAILED = "The repair was abandoned after an error; an operator should check the log of the service."
_SWITCHED_OFF = "The repair was abandoned: the operator turned repair off for this model."


class RepairSteps(CauseSteps):
    """The steps that a repair adds to those of every version."""

    cause: ClassVar[Cause] = Cause.REPAIR

    def __init__(self, context: Context, writer: VersionWriter) -> None:
        self._context = context
        self._writer = writer

    async def record(self, connection: Connection, version: Version) -> None:
        """Record the outcome for all requests that it concerns."""
        repairs = PendingRepairs(connection)
        concerned = await repairs.concerned(version.model, version.repair)
        await repairs.end([ended(one, version, self._writer.manifest) for one in concerned])

    async def done(self, version: Version) -> None:
        """Count the repair."""
        metrics = self._context.metrics
        metrics.repaired(version.repair, seconds=version.durations_ms.get("repair", 0.0) / 1000)
        if version.span_residual is not None:
            metrics.measured(version.span_residual, version.repair)


class CertificationSteps(RepairSteps):
    """The steps of the first version with a promise: those of a repair, and a log entry with the promise."""

    cause: ClassVar[Cause] = Cause.CERTIFICATION

    async def record(self, connection: Connection, version: Version) -> None:
        """Log the promise and record the outcome for all requests that wait for a repair."""
        await EventRepository(connection).append_unrequested(EventType.CERTIFIED, ModelCertified(version))
        await super().record(connection, version)


class Repairer:
    """Continues the repair of one model a slice at a time, then makes the factor for the next repair."""

    def __init__(self, context: Context, writer: VersionWriter) -> None:
        self._context = context
        self._writer = writer
        #: Time spent on the repair of a version so far.
        self._watch, self._watched_version = Stopwatch(), -1
        #: The version whose repair or next factor could not be computed.
        self._failed_version: int | None = None
        self._log = structlog.get_logger(__name__)

    def is_due(self) -> bool:
        """Whether there is work for idle time; call on the executor, since it may have to ask all workers."""
        resident = self._writer.resident
        is_due = resident.repair_in_progress is not None or resident.prefactor_due or resident.draw_due
        return self._failed_version != resident.committed.state.version and is_due

    async def step(self) -> None:
        """Work for one slice; a slice that ends the repair also commits it.

        A repair or factor that cannot be computed is given up and reported, and deletions continue without it. Raises
        Unavailable and LeaseLost if the repair cannot be committed, without losing it, and WorkersLost.
        """
        resident = self._writer.resident
        repairing = resident.repair_in_progress is not None
        if self._watched_version != resident.committed.state.version:
            self._watch, self._watched_version = Stopwatch(), resident.committed.state.version
        until = time.monotonic() + _SLICE_S
        try:
            if not repairing and resident.draw_due:
                await self._context.run(resident.draw_ahead)
                return
            if not repairing:
                await self._context.run(lambda: resident.preconditioner_cache.advance(until))
                return
            advance = partial(resident.advance_repair, until)
            prepared = await self._watch.time("repair", advance, self._context.executor)
        except WorkersLost:
            raise
        except Exception:  # noqa: BLE001 - a failed repair must not stop deletions
            if repairing:
                await self._failed()
            else:
                self._failed_version = resident.committed.state.version
                self._log.exception("repair.prefactor_failed")
            return
        if prepared is not None:
            failure_points.reached(FailurePoint.COMPUTED, Cause.REPAIR)
            await stepped("repair", self._conclude(prepared, RepairSteps(self._context, self._writer)))

    async def resume(self) -> None:
        """Start a session: resume the repair that requests wait for, or give it up if none is wanted."""
        resident = self._writer.resident
        async with transaction(self._context.engine) as connection:
            pending = await PendingRepairs(connection).count_pending(self._context.model)
        if not pending and resident.repair_in_progress is not None:
            # An earlier session gave it up.
            self._failed_version = resident.committed.state.version
        elif pending and self._context.placement.policy is RepairPolicy.NEVER:
            await self._give_up(RepairStatus.NONE, _SWITCHED_OFF)
        elif pending and resident.repair_in_progress is None:
            try:
                await self._context.run(resident.begin_repair)
            except WorkersLost:
                raise
            except Exception:  # noqa: BLE001 - as in `step`
                await self._failed()

    async def keep_promise(self) -> None:
        """Start a session: if the weights do not keep the current promise, publish a version that does.

        The weights are repaired as far as needed, before any deletion. Raises NotPublishable if that failed, and
        Unavailable, LeaseLost and WorkersLost.
        """
        resident, context = self._writer.resident, self._context
        if context.placement.promise is None:
            return
        # A database restored from a backup may lack versions that were published, so they count.
        highest = max(resident.committed.state.version, await context.run(lambda: context.publisher.noted))
        if highest == resident.committed.state.version and resident.keeps_promise:
            return
        if resident.repair_in_progress is None:
            await context.run(resident.begin_repair)
        context.work.begin("Repairing the model, to publish it with noise")
        watch, prepared = Stopwatch(), None
        while prepared is None and not context.stop.is_set():
            advance = partial(resident.advance_repair, time.monotonic() + _SLICE_S, highest + 1)
            prepared = await watch.time("repair", advance, context.executor)
        if prepared is not None:
            self._watch = watch
            failure_points.reached(FailurePoint.COMPUTED, Cause.CERTIFICATION)
            await stepped("certification", self._conclude(prepared, CertificationSteps(context, self._writer)))

    async def _conclude(self, prepared: PreparedRepair, steps: RepairSteps) -> None:
        """Commit a finished repair as a version and finish it; once committed, it cannot be given up."""
        writer, context, watch = self._writer, self._context, self._watch
        async with transaction(context.engine) as connection:
            waiting = await PendingRepairs(connection).concerned(context.model, prepared.outcome.status)

        new = NewVersion(
            state=prepared.state,
            edges=writer.resident.committed.live_graph.edges,
            outcome=prepared.outcome,
            rebuilt=prepared.outcome.coefficients is not None,
            requests=len(waiting),
            publication=prepared.publication,
            snapshot=prepared.snapshot,
            replace_state=lambda: writer.resident.commit_repair(prepared),
        )
        version = await writer.write(new, steps, watch)
        await writer.commit(version, new, steps, watch)
        await context.retry(partial(writer.finish, version, steps, watch))

    async def _failed(self) -> None:
        """Inside an except clause: give up the repair of the committed version."""
        self._failed_version = self._writer.resident.committed.state.version
        self._log.exception("repair.failed")
        self._context.metrics.repaired(RepairStatus.NOT_CONVERGED, seconds=None)
        await self._context.retry(partial(self._give_up, RepairStatus.NOT_CONVERGED, _FAILED))

    async def _give_up(self, status: RepairStatus, reason: str) -> None:
        """Record for every waiting request that there will be no repair."""
        async with fenced_transaction(self._context.engine, self._writer.lease) as connection:
            repairs = PendingRepairs(connection)
            pending = await repairs.pending(self._context.model)
            await repairs.end([repair_given_up(one, status, reason, self._writer.manifest) for one in pending])
        self._log.warning("repair.given_up", requests=len(pending), reason=reason)
