"""Repairs that outlast their batch's budget: carried on in idle time, and committed as versions of their own.

A repair works in slices, so that whoever holds the executor never makes a new request wait longer than one of them. A
batch that comes in between overtakes it, and it starts again from there. Once it has ended:

1. Its weights are written to a version folder.
2. One fenced transaction moves the pointer, records the repair, and tells every request that waited for it, with one
   `repaired` event each. If it converged, so are the earlier requests told whose repair fell short: it covers them.
3. State and predictions are swapped.
4. The span coefficients that go with the new weights are written; older versions leave the disk.
5. The span residual is measured from disk, and the repair is finished.

After step 2 a crash or an outage loses nothing: `finish` repeats steps 4 and 5.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TypeVar
from uuid import uuid4

import numpy as np
import structlog

from projector.forgetting.status import RepairStatus
from service import failure_points
from service.db.engine import Connection, Engine
from service.db.repairs import RepairRepository
from service.db.transactions import fenced_transaction, transaction
from service.domain.records import Pointer, RepairRecord
from service.domain.states import RepairPolicy
from service.failure_points import FailurePoint
from service.observability.metrics import UnlearningMetrics
from service.queue.outage import Outage
from service.unlearning.prepared import PreparedRepair
from service.worker.model_writer import ModelWriter
from service.worker.outcomes import Repair, ended, without_version
from service.worker.stopwatch import Stopwatch

#: Longest work between two looks for new requests (seconds).
_SLICE_S = 0.25
_FAILED = (
    "The repair was given up because it could not be computed; an operator should look into the log of the service."
)
_SWITCHED_OFF = "The repair was given up before it ended: the operator has turned repair off for this model."

_NO_EDGES = np.empty((0, 2), dtype=np.int64)

T = TypeVar("T")


class Repairer:
    """Carries on the repair of one model, and the upkeep for the next one, a slice at a time."""

    def __init__(
        self,
        *,
        engine: Engine,
        writer: ModelWriter,
        executor: Executor,
        outage: Outage,
        metrics: UnlearningMetrics,
        stop: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._executor = executor
        self._outage = outage
        self._metrics = metrics
        self._stop = stop
        #: What the repair of a version has cost so far.
        self._watch, self._watched_version = Stopwatch(), -1
        #: The version of which repair or upkeep could not be computed.
        self._failed_version: int | None = None
        self._log = structlog.get_logger(__name__)

    @property
    def due(self) -> bool:
        """Whether there is something to do in idle time."""
        resident = self._writer.resident
        if self._failed_version == resident.state.version:
            return False
        return resident.repairing is not None or resident.upkeep_due

    async def step(self) -> None:
        """Works for one slice, at the end of the repair until it is committed.

        What cannot be computed, for whatever reason, is given up and told: deletions go on without it. Raises
        Unavailable and LeaseLost when the repair cannot be committed, which loses nothing of it.
        """
        resident = self._writer.resident
        repairing = resident.repairing is not None
        if self._watched_version != resident.state.version:
            self._watch, self._watched_version = Stopwatch(), resident.state.version
        until = time.monotonic() + _SLICE_S
        try:
            if not repairing:
                await self._run(lambda: resident.advance_upkeep(until))
                return
            prepared = await self._watch.time("repair", lambda: resident.advance_repair(until), self._executor)
        except Exception:  # noqa: BLE001 - a repair that cannot be computed must not stop deletions
            if repairing:
                await self._failed()
            else:
                self._failed_version = resident.state.version
                self._log.exception("repair.upkeep_failed")
            return
        if prepared is not None:
            failure_points.reached(FailurePoint.REPAIR_COMPUTED)
            await self.finish(await self._commit(prepared, self._watch), self._watch)

    async def finish(self, record: RepairRecord, watch: Stopwatch) -> None:
        """Steps 4 and 5, again until they are done: the repair is committed."""
        await self._outage.outlast(partial(self._finish, record, watch), self._stop)

    async def resume(self, policy: RepairPolicy) -> None:
        """At the start of a session: the repair that requests wait for goes on, or is given up when none is wanted."""
        resident = self._writer.resident
        async with transaction(self._engine) as connection:
            pending = await RepairRepository(connection).count_pending(self._writer.pointer.model)
        if not pending and resident.repairing is not None:
            # An earlier session has given it up.
            self._failed_version = resident.state.version
        elif pending and policy is RepairPolicy.NEVER:
            await self._give_up(RepairStatus.NONE, _SWITCHED_OFF)
        elif pending and resident.repairing is None:
            try:
                await self._run(resident.begin_repair)
            except Exception:  # noqa: BLE001 - as in `step`
                await self._failed()

    async def _commit(self, prepared: PreparedRepair, watch: Stopwatch) -> RepairRecord:
        """Steps 1 to 3."""
        writer = self._writer
        rebuilt, edges = prepared.outcome.coefficients is not None, writer.resident.live_graph.edges
        write = partial(writer.write, prepared.state, edges=edges, rebuilt=rebuilt)
        pointer = await watch.time("write", write, self._executor)
        failure_points.reached(FailurePoint.REPAIR_WRITTEN)
        record = _record(prepared, writer.pointer, pointer, watch)

        async def note(connection: Connection) -> None:
            """What step 2 writes beside the pointer."""
            repairs = RepairRepository(connection)
            concerned = await repairs.concerned(record.model, record.status)
            await repairs.insert(replace(record, requests=len(concerned)), pointer.fencing)
            await repairs.end([ended(one, Repair.of_version(record), writer.manifest) for one in concerned])
            failure_points.reached(FailurePoint.REPAIR_COMMITTING)

        await writer.move_pointer(pointer, note)
        failure_points.reached(FailurePoint.REPAIR_COMMITTED)
        replace_state = partial(writer.resident.commit_repair, prepared)
        swap = partial(writer.swap, pointer, replace_state, prepared.snapshot, _NO_EDGES)
        await watch.time("swap", swap, self._executor)
        failure_points.reached(FailurePoint.REPAIR_SWAPPED)
        self._metrics.repaired(record.status, seconds=record.durations_ms["repair"] / 1000)
        return record

    async def _finish(self, record: RepairRecord, watch: Stopwatch) -> None:
        writer = self._writer
        await watch.time("erase", writer.write_coefficients, self._executor)
        failure_points.reached(FailurePoint.REPAIR_COEFFICIENTS_WRITTEN)
        await watch.time("erase", writer.erase, self._executor)
        failure_points.reached(FailurePoint.REPAIR_ERASED)
        residual = await watch.time("verify", writer.span_residual, self._executor)
        async with fenced_transaction(self._engine, writer.lease) as connection:
            await RepairRepository(connection).finish(
                record.id, span_residual=residual, durations_ms=watch.durations_ms
            )
        failure_points.reached(FailurePoint.REPAIR_FINISHED)
        self._metrics.measured(residual, record.status)
        self._log.info(
            "repair.completed",
            version=record.model_version_after,
            status=record.status.value,
            iterations=record.iterations,
            products=record.products,
            bound_relative=record.distance_bound_after_relative,
            durations_ms=dict(record.durations_ms) | watch.durations_ms,
        )

    async def _failed(self) -> None:
        """Inside an except clause: the repair of the committed version cannot be computed."""
        self._failed_version = self._writer.resident.state.version
        self._log.exception("repair.failed")
        self._metrics.repaired(RepairStatus.NOT_CONVERGED, seconds=None)
        give_up = partial(self._give_up, RepairStatus.NOT_CONVERGED, _FAILED)
        await self._outage.outlast(give_up, self._stop)

    async def _give_up(self, status: RepairStatus, reason: str) -> None:
        """Tells every request that waits for a repair that there will be none."""
        async with fenced_transaction(self._engine, self._writer.lease) as connection:
            repairs = RepairRepository(connection)
            pending = await repairs.pending(self._writer.pointer.model)
            await repairs.end([without_version(one, status, reason, self._writer.manifest) for one in pending])
        self._log.warning("repair.given_up", requests=len(pending), reason=reason)

    async def _run(self, work: Callable[[], T]) -> T:
        """Blocking `work` on the executor, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _record(prepared: PreparedRepair, before: Pointer, after: Pointer, watch: Stopwatch) -> RepairRecord:
    outcome = prepared.outcome
    if outcome.before is None or outcome.after is None:
        raise ValueError("a repair without a certificate")
    return RepairRecord(
        id=uuid4(),
        model=after.model,
        status=outcome.status,
        # Known only inside the transaction that tells them.
        requests=0,
        model_version_before=before.version,
        model_version_after=after.version,
        weights_sha256_before=before.weights_sha256,
        weights_sha256_after=after.weights_sha256,
        iterations=outcome.iterations or 0,
        products=outcome.products or 0,
        weight_change=outcome.weight_change,
        distance_bound_before=outcome.before.bound,
        distance_bound_after=outcome.after.bound,
        distance_bound_before_relative=outcome.before.relative,
        distance_bound_after_relative=outcome.after.relative,
        device=str(prepared.state.features.W.device),
        durations_ms=dict(watch.durations_ms),
        repair_tolerance=outcome.tolerance,
    )
