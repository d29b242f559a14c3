"""One batch from claim to erasure, in the order of durable steps.

Everything after `commit` is idempotent: `finish` repeats what a crash or an outage left undone, from what the database
and the store hold, without knowing how far it had come.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from uuid import uuid4

import structlog

from model_store.tombstones import KeptTombstone
from projector.forgetting.repair import RepairOutcome
from projector.forgetting.status import RepairStatus
from service import failure_points
from service.db.batches import BatchRepository
from service.db.engine import Connection, Engine
from service.db.repairs import RepairRepository
from service.db.requests import RequestRepository
from service.db.tombstones import TombstoneRepository
from service.db.transactions import fenced_transaction, transaction
from service.domain.records import BatchRecord, Pointer, RequestNorms, Tombstone
from service.failure_points import FailurePoint
from service.unlearning.prepared import Prepared
from service.vault.keyring import Keyring
from service.vault.request_keys import RequestKeys
from service.worker.kept_tombstones import as_kept
from service.worker.model_writer import ModelWriter
from service.worker.outcomes import Committed, Repair, applied, ended, figures
from service.worker.resolve import Deletion
from service.worker.stopwatch import Stopwatch


class BatchWorker:
    """Applies batches to one model under one lease."""

    def __init__(
        self,
        *,
        engine: Engine,
        writer: ModelWriter,
        keyring: Keyring,
        request_keys: RequestKeys,
        executor: Executor,
        repair_budget_s: float,
    ) -> None:
        """`repair_budget_s` is how long a batch may be repaired before it is served from its projected weights."""
        self._engine = engine
        self._keyring = keyring
        self._request_keys = request_keys
        self._executor = executor
        self.repair_budget_s = repair_budget_s
        #: Why the last repair had no blocks of the Hessian; at the start the log says why there will be none.
        self._without_blocks = writer.resident.why_no_blocks
        self._log = structlog.get_logger(__name__)
        self.writer = writer

    async def prepare(self, deletions: Sequence[Deletion], watch: Stopwatch) -> Prepared:
        """Step 4: the new state beside the old one; nothing visible changes."""
        removals = [deletion.removal for deletion in deletions]
        prepare = partial(self.writer.resident.prepare, removals, budget_s=self.repair_budget_s)
        prepared = await watch.time("project", prepare, self._executor)
        if prepared.outcome.status is not RepairStatus.NONE:
            watch.split("project", "repair", prepared.repair_s)
        reason = prepared.outcome.without_blocks
        if reason is not None and reason != self._without_blocks:
            self._log.info("repair.without_blocks", reason=reason)
        self._without_blocks = reason
        failure_points.reached(FailurePoint.COMPUTED)
        return prepared

    async def commit(self, deletions: Sequence[Deletion], prepared: Prepared, watch: Stopwatch) -> Committed:
        """Steps 5 to 7: version folder, pointer with tombstones, swap.

        Raises Unavailable when nothing was committed, LeaseLost, or RequestsWithdrawn when a request was cancelled
        meanwhile.
        """
        writer = self.writer
        rebuilt = prepared.outcome.coefficients is not None
        write = partial(writer.write, prepared.state, edges=prepared.live_graph.edges, rebuilt=rebuilt)
        pointer = await watch.time("write", write, self._executor)
        failure_points.reached(FailurePoint.WRITTEN)
        committed = self._committed(deletions, prepared, pointer, watch)

        async def record(connection: Connection) -> None:
            """What step 6 writes beside the pointer: the requests join the batch, tombstones are laid."""
            await BatchRepository(connection).insert(committed.record, pointer.fencing, committed.norms)
            await TombstoneRepository(connection).insert(self._tombstones(deletions), self._keyring.fingerprints())
            failure_points.reached(FailurePoint.COMMITTING)

        await writer.move_pointer(pointer, record)
        failure_points.reached(FailurePoint.COMMITTED)
        replace_state = partial(writer.resident.commit, prepared)
        swap = partial(writer.swap, pointer, replace_state, prepared.snapshot, prepared.edges)
        await watch.time("swap", swap, self._executor)
        failure_points.reached(FailurePoint.SWAPPED)
        return committed

    async def finish(self, committed: Committed, watch: Stopwatch) -> BatchRecord:
        """Steps 8 to 10: `applied`, erasure, measurement from disk, `completed`. Returns the record as completed."""
        await self.apply(committed)
        async with transaction(self._engine) as connection:
            tombstones = await TombstoneRepository(connection).of_requests(committed.requests)
        kept = as_kept(tombstones, self._keyring)
        await watch.time("erase", partial(self._erase, kept), self._executor)
        failure_points.reached(FailurePoint.ERASED)
        return await self._complete(committed, watch)

    async def apply(self, committed: Committed) -> None:
        """Step 8: the requests are `applied`; what they name is out of graph, weights and every prediction.

        A repair that ended in this batch has ended for all earlier requests that it concerns as well.
        """
        record = committed.record
        manifest = self.writer.manifest
        outcomes = [applied(committed, request, manifest) for request in committed.requests.values()]
        async with fenced_transaction(self._engine, self.writer.lease) as connection:
            await RequestRepository(connection).mark_applied(record.id, outcomes)
            if record.repair in (RepairStatus.CONVERGED, RepairStatus.NOT_CONVERGED):
                repairs = RepairRepository(connection)
                repair = Repair.of_batch(record)
                concerned = await repairs.concerned(record.model, record.repair)
                await repairs.end([ended(one, repair, manifest) for one in concerned])
            failure_points.reached(FailurePoint.APPLYING)
        failure_points.reached(FailurePoint.APPLIED)

    def _erase(self, tombstones: Sequence[KeptTombstone]) -> None:
        """Step 9, after the coefficients that go with repaired weights: the old ones knew what is being erased."""
        self.writer.keep_tombstones(tombstones)
        self.writer.write_coefficients()
        failure_points.reached(FailurePoint.COEFFICIENTS_WRITTEN)
        self.writer.erase()

    async def _complete(self, committed: Committed, watch: Stopwatch) -> BatchRecord:
        """Step 10: the span residual from the surviving rows on disk, `completed`, and the id keys destroyed."""
        residual = await watch.time("verify", self.writer.span_residual, self._executor)
        failure_points.reached(FailurePoint.MEASURED)
        record = replace(committed.record, span_residual=residual)
        payloads = {
            request: figures(record, committed.norms[request], queued.kind)
            for request, queued in committed.requests.items()
        }
        async with fenced_transaction(self._engine, self.writer.lease) as connection:
            await BatchRepository(connection).finish(record.id, span_residual=residual, durations_ms=watch.durations_ms)
            await RequestRepository(connection).mark_completed(payloads)
            failure_points.reached(FailurePoint.COMPLETING)
        failure_points.reached(FailurePoint.COMPLETED)
        await asyncio.to_thread(self._request_keys.destroy, list(committed.requests))
        failure_points.reached(FailurePoint.KEYS_DESTROYED)
        return replace(record, durations_ms=watch.durations_ms)

    def _tombstones(self, deletions: Sequence[Deletion]) -> list[Tombstone]:
        return [
            Tombstone(deletion.kind, digest, number, deletion.claimed.request.id)
            for deletion in deletions
            for subject in deletion.subjects
            for number, digest in [self._keyring.tombstone_hash(self.writer.pointer.model, deletion.kind, subject)]
        ]

    def _committed(
        self, deletions: Sequence[Deletion], prepared: Prepared, pointer: Pointer, watch: Stopwatch
    ) -> Committed:
        norms = {
            deletion.claimed.request.id: RequestNorms(
                deleted=len(deletion.subjects),
                injected_norm_before=norm.injected_before,
                injected_norm_after=norm.injected_after,
                channel_norm_before=norm.channel_before,
                channel_norm_after=norm.channel_after,
            )
            for deletion, norm in zip(deletions, prepared.projection.norms, strict=True)
        }
        requests = {deletion.claimed.request.id: deletion.claimed.request for deletion in deletions}
        return Committed(self._record(len(deletions), prepared, pointer, watch), requests, norms)

    def _record(self, requests: int, prepared: Prepared, pointer: Pointer, watch: Stopwatch) -> BatchRecord:
        before, projection, state = self.writer.pointer, prepared.projection, self.writer.resident.state
        at_start = self.writer.resident.certificate
        record = BatchRecord(
            id=uuid4(),
            model=pointer.model,
            requests=requests,
            nodes=len(prepared.nodes),
            features=len(prepared.feature_rows),
            edges=len(prepared.edges),
            model_version_before=before.version,
            model_version_after=pointer.version,
            weights_sha256_before=before.weights_sha256,
            weights_sha256_after=pointer.weights_sha256,
            rank_before=state.features.gram.rank,
            rank_after=prepared.state.features.gram.rank,
            directions_removed=projection.directions_removed,
            lost_direction_norm_before=projection.lost_direction_norm_before,
            lost_direction_norm_after=projection.lost_direction_norm_after,
            weight_change=projection.weight_change,
            coefficient_residual=projection.coefficient_residual,
            factor_method=projection.factor_method.value,
            device=str(state.features.W.device),
            durations_ms=dict(watch.durations_ms),
            live_nodes=int(prepared.state.live.sum()),
            distance_bound_start_relative=None if at_start is None else at_start.relative,
        )
        return _with_repair(record, prepared.outcome, self.writer.resident.factor_age_s)


def _with_repair(record: BatchRecord, outcome: RepairOutcome, factor_age_s: float) -> BatchRecord:
    """`record` with the certificate, and with what the repair did if it ended in this batch."""
    before, after = outcome.before, outcome.after
    record = replace(
        record,
        repair=outcome.status,
        factor_age_s=None if outcome.status is RepairStatus.NONE else factor_age_s,
        distance_bound_before=None if before is None else before.bound,
        distance_bound_before_relative=None if before is None else before.relative,
        distance_bound_after=None if after is None else after.bound,
        distance_bound_after_relative=None if after is None else after.relative,
    )
    if outcome.status in (RepairStatus.NONE, RepairStatus.PENDING):
        return record
    return replace(
        record,
        repair_iterations=outcome.iterations,
        repair_weight_change=outcome.weight_change,
        repair_version=record.model_version_after,
        repair_weights_sha256=record.weights_sha256_after,
        repair_tolerance=outcome.tolerance,
    )
