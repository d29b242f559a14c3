"""Repairs that outlast their batch's budget: carried on in idle time, and committed as versions of their own.

A repair works in slices, so that whoever holds the executor never makes a new request wait longer than one of them. A
batch that comes in between overtakes it, and goes on from the weights reached. At its end every request that waited for
it is told, with one `repaired` event each, in the commit of its version; if it converged, so are the earlier requests
told whose repair fell short: it covers them.
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
from service.unlearner.committed import PreparedRepair
from service.unlearner.context import Context
from service.unlearner.new_version import CauseSteps, NewVersion, Stopwatch
from service.unlearner.outcomes import ended, repair_given_up
from service.unlearner.pending_repairs import PendingRepairs
from service.unlearner.version_writer import VersionWriter

#: Longest work between two looks for new requests (seconds).
_SLICE_S = 0.25
_FAILED = "The repair was abandoned after an error; an operator should check the log of the service."
_SWITCHED_OFF = "The repair was abandoned: the operator turned repair off for this model."


class RepairSteps(CauseSteps):
    """What a repair adds to the steps of every version."""

    cause: ClassVar[Cause] = Cause.REPAIR

    def __init__(self, context: Context, writer: VersionWriter) -> None:
        self._context = context
        self._writer = writer

    async def record(self, connection: Connection, version: Version) -> None:
        """All whom it concerns are told."""
        repairs = PendingRepairs(connection)
        concerned = await repairs.concerned(version.model, version.repair)
        await repairs.end([ended(one, version, self._writer.manifest) for one in concerned])

    async def done(self, version: Version) -> None:
        """It is counted."""
        metrics = self._context.metrics
        metrics.repaired(version.repair, seconds=version.durations_ms.get("repair", 0.0) / 1000)
        if version.span_residual is not None:
            metrics.measured(version.span_residual, version.repair)


class CertificationSteps(RepairSteps):
    """What the first version with a promise adds to those of a repair: the log tells what is promised from here on."""

    cause: ClassVar[Cause] = Cause.CERTIFICATION

    async def record(self, connection: Connection, version: Version) -> None:
        """The promise is logged, and whoever waited for a repair is told."""
        await EventRepository(connection).append_unrequested(EventType.CERTIFIED, ModelCertified(version))
        await super().record(connection, version)


class Repairer:
    """Carries on the repair of one model, and the factor for the next one, a slice at a time."""

    def __init__(self, context: Context, writer: VersionWriter) -> None:
        self._context = context
        self._writer = writer
        #: What the repair of a version has cost so far.
        self._watch, self._watched_version = Stopwatch(), -1
        #: The version of which repair or the next factor could not be computed.
        self._failed_version: int | None = None
        self._log = structlog.get_logger(__name__)

    def is_due(self) -> bool:
        """Whether there is something to do in idle time; on the executor, since all workers may have to be asked."""
        resident = self._writer.resident
        is_due = resident.repair_in_progress is not None or resident.prefactor_due or resident.draw_due
        return self._failed_version != resident.committed.state.version and is_due

    async def step(self) -> None:
        """Works for one slice, at the end of the repair until it is committed.

        What cannot be computed, for whatever reason, is given up and told: deletions go on without it. Raises
        Unavailable and LeaseLost when the repair cannot be committed, which loses nothing of it, and WorkersLost.
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
        except Exception:  # noqa: BLE001 - a repair that cannot be computed must not stop deletions
            if repairing:
                await self._failed()
            else:
                self._failed_version = resident.committed.state.version
                self._log.exception("repair.prefactor_failed")
            return
        if prepared is not None:
            failure_points.reached(FailurePoint.COMPUTED, Cause.REPAIR)
            await self._conclude(prepared, RepairSteps(self._context, self._writer))

    async def resume(self) -> None:
        """At the start of a session: the repair that requests wait for goes on, or is given up when none is wanted."""
        resident = self._writer.resident
        async with transaction(self._context.engine) as connection:
            pending = await PendingRepairs(connection).count_pending(self._context.model)
        if not pending and resident.repair_in_progress is not None:
            # An earlier session has given it up.
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
        """At the start of a session: weights that are not published as is promised now become a version that is.

        They are repaired for it as far as they have to be, before anything is deleted from them. Raises NotPublishable
        when that did not succeed, and Unavailable, LeaseLost and WorkersLost.
        """
        resident, context = self._writer.resident, self._context
        if context.placement.promise is None:
            return
        # Of a database restored from a backup: what it does not know was published all the same, and is counted.
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
            await self._conclude(prepared, CertificationSteps(context, self._writer))

    async def _conclude(self, prepared: PreparedRepair, steps: RepairSteps) -> None:
        """A finished repair becomes a version, and is taken to its end: committed, it cannot be given up."""
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
        """Inside an except clause: the repair of the committed version cannot be computed."""
        self._failed_version = self._writer.resident.committed.state.version
        self._log.exception("repair.failed")
        self._context.metrics.repaired(RepairStatus.NOT_CONVERGED, seconds=None)
        await self._context.retry(partial(self._give_up, RepairStatus.NOT_CONVERGED, _FAILED))

    async def _give_up(self, status: RepairStatus, reason: str) -> None:
        """Tells every request that waits for a repair that there will be none."""
        async with fenced_transaction(self._context.engine, self._writer.lease) as connection:
            repairs = PendingRepairs(connection)
            pending = await repairs.pending(self._context.model)
            await repairs.end([repair_given_up(one, status, reason, self._writer.manifest) for one in pending])
        self._log.warning("repair.given_up", requests=len(pending), reason=reason)
