"""Compute a batch of requests as a version, and update its requests from commit to erasure."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from uuid import UUID

import structlog

from projector.forgetting.projection import Norms
from projector.forgetting.status import RepairStatus
from service import failure_points
from service.db.engine import Connection
from service.db.transactions import fenced_transaction, transaction
from service.domain.figures import BatchDetails, RequestNorms
from service.domain.kinds import Part
from service.domain.records import BatchRecord, RequestAudit, Tombstone
from service.domain.states import Cause, RequestStatus
from service.domain.versions import Version, batch_record
from service.failure_points import FailurePoint
from service.log.leaves import AuditFigures
from service.predictions.version_rows import Batch, BatchRepository
from service.requests.lookup import RequestRepository
from service.requests.moves import RequestMoves
from service.requests.tombstones import TombstoneRepository
from service.unlearner.claims import Change
from service.unlearner.committed import Prepared
from service.unlearner.context import Context
from service.unlearner.deleted_parts import for_store
from service.unlearner.joining_batch import JoiningBatch
from service.unlearner.new_version import CauseSteps, NewVersion, Stopwatch, grown_model
from service.unlearner.outcomes import applied, ended
from service.unlearner.pending_repairs import PendingRepairs
from service.unlearner.version_writer import VersionWriter


class BatchSteps(CauseSteps):
    """The steps that a batch adds to those of every version."""

    cause = Cause.BATCH

    def __init__(
        self,
        context: Context,
        writer: VersionWriter,
        batch: Batch,
        tombstones: Sequence[Tombstone] = (),
        lifted: Mapping[UUID, Sequence[bytes]] = MappingProxyType({}),
    ) -> None:
        """`tombstones` mark the batch's deletions and are inserted in its commit.

        `lifted` are hashes of what joins again, by the request that says so: their tombstones become void.
        """
        self._context = context
        self._writer = writer
        self._batch = batch
        self._tombstones = tombstones
        self._lifted = lifted

    async def record(self, connection: Connection, version: Version) -> None:
        """Add the requests to the batch and insert the tombstones."""
        await BatchRepository(connection).insert(version, self._batch.details, self._batch.norms)
        fingerprints = self._context.keyring.fingerprints()
        repository = TombstoneRepository(connection)
        await repository.lift(version.model, self._lifted)
        await repository.insert(version.model, self._tombstones, fingerprints)

    async def apply(self, version: Version) -> None:
        """Mark the requests `applied`: their targets are out of the graph, the weights and every prediction.

        A repair that ended in this batch also ends the repairs of all earlier requests that it covers.
        """
        record, manifest = self._record_of(version), self._writer.manifest
        outcomes = [applied(record, self._batch.norms[one.id], one, manifest) for one in self._batch.requests.values()]
        async with fenced_transaction(self._context.engine, self._writer.lease) as connection:
            await RequestMoves(connection).mark_applied(version.id, outcomes)
            if version.repair in (RepairStatus.CONVERGED, RepairStatus.NOT_CONVERGED):
                repairs = PendingRepairs(connection)
                concerned = await repairs.concerned(version.model, version.repair)
                await repairs.end([ended(one, version, manifest) for one in concerned])
            failure_points.reached(FailurePoint.APPLYING, self.cause)
        failure_points.reached(FailurePoint.APPLIED, self.cause)
        async with transaction(self._context.engine) as connection:
            tombstones = await TombstoneRepository(connection).of_requests(self._batch.requests)
        await self._context.run(partial(self._writer.keep_tombstones, for_store(tombstones, self._context.keyring)))

    async def complete(self, connection: Connection, version: Version) -> None:
        """Mark the requests `completed` and drop their ciphertexts."""
        record, norms = self._record_of(version), self._batch.norms
        requests = self._batch.requests.values()
        contents = {one.id: AuditFigures(one.kind, RequestAudit(record, norms[one.id])) for one in requests}
        await RequestMoves(connection).mark_completed(contents)

    async def done(self, version: Version) -> None:
        """Destroy the requests' keys and count the batch."""
        await self._context.unneeded_keys.destroy_dropped()
        failure_points.reached(FailurePoint.KEYS_DESTROYED, self.cause)
        async with transaction(self._context.engine) as connection:
            ages = await RequestRepository(connection).ages_in_batch(version.id)
        metrics = self._context.metrics
        metrics.completed(self._record_of(version))
        for to_applied, to_completed in ages:
            metrics.reached(RequestStatus.APPLIED, to_applied)
            metrics.reached(RequestStatus.COMPLETED, to_completed)

    def _record_of(self, version: Version) -> BatchRecord:
        end = version if version.repair_version == version.number else None
        return batch_record(version, self._batch.details, end)


class BatchPreparation:
    """Computes batches on one model under one lease (step 4)."""

    def __init__(self, context: Context, writer: VersionWriter) -> None:
        self._context = context
        self._writer = writer
        #: Why the last repair had no preconditioner. Starts with the reason that the log gives at startup.
        self._without_preconditioner = writer.resident.preconditioner_cache.why_none
        #: Whether the last repair attempted within a batch ended there.
        self._fitted = True
        self._log = structlog.get_logger(__name__)

    async def prepare(self, changes: Sequence[Change], watch: Stopwatch) -> tuple[NewVersion, BatchSteps]:
        """Compute the new state beside the old one; nothing visible changes."""
        context, resident = self._context, self._writer.resident
        removals = [change.removal for change in changes]
        # In a stream of batches whose repairs exceed the budget, skip the attempt: it would delay every batch.
        hopeless = resident.repair_in_progress is not None and not self._fitted
        joins = JoiningBatch.of(changes, resident.committed, self._writer.manifest)
        prepare = partial(resident.prepare, removals, joins, budget_s=0.0 if hopeless else context.repair_budget_s)
        context.work.begin("Computing the changed model")
        prepared = await watch.time("project", prepare, context.executor)
        if not hopeless:
            self._fitted = prepared.outcome.status is not RepairStatus.PENDING
        if prepared.outcome.status is not RepairStatus.NONE:
            watch.split("project", "repair", prepared.repair_s)
        reason = prepared.outcome.without_preconditioner
        if reason is not None and reason != self._without_preconditioner:
            self._log.info("repair.without_preconditioner", reason=reason)
        self._without_preconditioner = reason
        failure_points.reached(FailurePoint.COMPUTED, Cause.BATCH)
        edit = prepared.edit
        model = None if edit is None else grown_model(self._writer.manifest, resident.committed, prepared.nodes, edit)
        deleted = _deleted(changes, prepared)
        new = NewVersion(
            state=prepared.state,
            edges=prepared.live_graph.edges,
            outcome=prepared.outcome,
            rebuilt=prepared.outcome.coefficients is not None or edit is not None,
            requests=len(changes),
            deleted=deleted,
            deleted_edges=prepared.edges,
            directions_removed=prepared.projection.directions_removed,
            publication=prepared.publication,
            snapshot=prepared.snapshot,
            edit=edit,
            model=model,
            replace_state=lambda: resident.commit(prepared),
        )
        batch = self._batch(changes, prepared, joins)
        return new, BatchSteps(context, self._writer, batch, self._dead(changes), self._lifted(changes))

    def _batch(self, changes: Sequence[Change], prepared: Prepared, joins: JoiningBatch) -> Batch:
        projection, at_start = prepared.projection, self._writer.resident.committed.certificate
        unrepaired = prepared.outcome.status is RepairStatus.NONE
        # Whether a preconditioner exists or will be built before the next batch. The last is looked up in files.
        factored = not unrepaired and (
            self._writer.resident.preconditioner is not None
            or self._writer.resident.preconditioner_cache.why_none is None
        )
        nodes, edges, features, labels = joins.counts
        details = BatchDetails(
            rank_before=self._writer.resident.committed.state.features.gram.rank,
            weight_change=projection.weight_change,
            coefficient_residual=projection.coefficient_residual,
            lost_direction_norm_before=projection.lost_direction_norm_before,
            lost_direction_norm_after=projection.lost_direction_norm_after,
            factor_method=projection.factor_method.value,
            distance_bound_start_relative=None if at_start is None else at_start.relative,
            factor_age_s=self._context.placement.factor_age_s if factored else None,
            nodes_joined=nodes,
            edges_joined=edges,
            features_joined=features,
            labels_joined=labels,
            directions_gained=projection.directions_gained,
        )
        norms = {
            change.claimed.request.id: _norms(change, norm)
            for change, norm in zip(changes, projection.norms, strict=True)
        }
        return Batch(details, {one.claimed.request.id: one.claimed.request for one in changes}, norms)

    def _dead(self, changes: Sequence[Change]) -> list[Tombstone]:
        return [
            Tombstone(request.kind, digest, number, request.id)
            for request, targets in ((change.claimed.request, change.targets) for change in changes)
            for target in targets
            for number, digest in [self._context.keyring.tombstone_hash(self._context.model, request.kind, target)]
        ]

    def _lifted(self, changes: Sequence[Change]) -> dict[UUID, list[bytes]]:
        keyring, model = self._context.keyring, self._context.model
        return {
            change.claimed.request.id: [
                digest
                for part, target in change.joins.lifted
                for digest in keyring.tombstone_hashes(model, part, [target])
            ]
            for change in changes
            if change.joins.lifted
        }


def _deleted(changes: Sequence[Change], prepared: Prepared) -> tuple[int, int, int, int]:
    """Return the numbers of deleted nodes, features, edges and labels; what is replaced does not count."""
    named = dict.fromkeys(Part, 0)
    for change in changes:
        if not change.joins:
            named[change.claimed.part] += len(change.targets)
    # Nodes of queued additions were never in the graph.
    return len(prepared.nodes), named[Part.FEATURES], len(prepared.edges), named[Part.LABELS]


def _norms(change: Change, norm: Norms) -> RequestNorms:
    joins = change.joins
    return RequestNorms(
        deleted=len(change.targets),
        injected_norm_before=norm.injected_before,
        injected_norm_after=norm.injected_after,
        channel_norm_before=norm.channel_before,
        channel_norm_after=norm.channel_after,
        training_norm_before=norm.training_before,
        training_norm_after=norm.training_after,
        joined=joins.count if joins else None,
        rejoined=joins.rejoined if joins else None,
    )
