"""`lethe recover`: continue with a store and a database of different moments, as after a restored backup."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import numpy as np
import scipy.sparse as sp
import structlog
from numpy.typing import NDArray

from model_store.base.erasure import Erasure
from model_store.replacement import Replacement
from model_store.store import Store
from model_store.tombstones import TombstoneRecord
from model_store.versions import VersionRef, VersionState
from projector.forgetting.repair import RepairOutcome
from projector.forgetting.status import RepairStatus
from service import failure_points
from service.db.engine import Connection
from service.db.transactions import fenced_transaction, transaction
from service.domain.kinds import Part
from service.domain.records import Tombstone
from service.domain.states import Cause, EventType, ImportStatus
from service.domain.versions import Recovery, Version
from service.errors import Conflict, StateMismatch
from service.failure_points import FailurePoint
from service.log.events import EventRepository
from service.log.leaves import ModelRecovered
from service.predictions.version_rows import BatchRepository, PointerRepository, VersionRepository
from service.requests.lookup import RequestRepository
from service.requests.moves import SEND_ANEW, RequestMoves
from service.requests.tombstones import TombstoneRepository
from service.unlearner.agreement import check_agreement, steps_of_cause
from service.unlearner.causes import ImportRepository, RecoveryRepository
from service.unlearner.context import Context
from service.unlearner.deleted_parts import (
    DeletedParts,
    find_deleted_parts,
    missing_tombstones,
    only_in_store,
    reconcile,
    unreadable,
)
from service.unlearner.joining_batch import JoiningBatch
from service.unlearner.lease_keeper import LeaseKeeper, pointer_to
from service.unlearner.new_version import CauseSteps, NewVersion, Stopwatch, published_model
from service.unlearner.resident import Resident
from service.unlearner.securing import Replay, missing_from_database
from service.unlearner.version_writer import VersionWriter

_KEY_LOST = (
    "The ids that this request names cannot be read any more: their key was lost, and a recovery continued without it. "
    f"{SEND_ANEW[0].upper()}{SEND_ANEW[1:]}"
)


@dataclass(frozen=True)
class Recovered:
    """Results of a recovery."""

    #: None if store and database agreed and the store held no deleted data: no model was changed then.
    recovery: Recovery | None
    #: Requests that failed because their keys were lost.
    failed: int
    #: Requests of a batch interrupted between commit and end.
    completed: int
    #: Deleted nodes in the store's own record that the database lacks.
    kept: int = 0
    #: Whether unreadable tombstones of the store were given up.
    gave_up_tombstones: bool = False
    #: Requests that the erasure ledger records and the database lacks, with their kinds.
    lost_requests: Mapping[UUID, str] = field(default_factory=dict)


class RecoverySteps(CauseSteps):
    """The steps that a recovery adds to those of every version."""

    cause = Cause.RECOVERY

    def __init__(self, context: Context, recovery_of: Callable[[Version], Recovery], own: Sequence[Tombstone]) -> None:
        """`recovery_of` returns the record of a version; `own` are tombstones that only the store has."""
        self._context = context
        self._recovery_of = recovery_of
        self._own = own
        #: Number of requests that failed (keys lost).
        self.failed = 0

    async def record(self, connection: Connection, version: Version) -> None:
        """Record and log the recovery, and insert the tombstones that the database lacked."""
        recovery = self._recovery_of(version)
        await RecoveryRepository(connection).insert(recovery)
        fingerprints = self._context.keyring.fingerprints()
        tombstones = TombstoneRepository(connection)
        await tombstones.insert(version.model, self._own, fingerprints, recovery=version.id)
        await EventRepository(connection).append_unrequested(EventType.RECOVERED, ModelRecovered(recovery))

    async def complete(self, connection: Connection, version: Version) -> None:
        """Finish this recovery and those interrupted before it."""
        await RecoveryRepository(connection).finish(version.model, requests_failed=self.failed)


class Recoverer:
    """Recovers one model under its lease."""

    def __init__(self, context: Context, store: Store, keeper: LeaseKeeper) -> None:
        self._context = context
        self._store = store
        self._keeper = keeper
        self._gave_up_tombstones = False
        self._replay = Replay()
        #: Nodes still in the store that only the erasure ledger records as deleted.
        self._by_ledger = 0
        self._log = structlog.get_logger(__name__)

    async def recover(
        self, lost: Collection[UUID] = (), *, accept_lost_tombstones: bool = False, with_ledger: bool = False
    ) -> Recovered:
        """Run the whole recovery; `lost` are the requests whose keys are lost for good.

        `accept_lost_tombstones`: continue with the readable part of the store's own tombstones. `with_ledger`: delete
        again what only the erasure ledger records; otherwise the database must know all of it.

        Raises StoreDamaged, StateMismatch if the database belongs to another model, KeyMissing, RepairImpossible,
        NotPublishable and DeviceError; only an operator can fix these. Raises Unavailable and LeaseLost, after which it
        must be run again.
        """
        context = self._context
        await self._install_import()
        async with transaction(context.engine) as connection:
            await PointerRepository(connection).require_only(context.model)
        base = await context.run(partial(self._store.load_base, context.work))
        current = self._store.current()
        if with_ledger:
            self._replay = await missing_from_database(context, current)
        elif context.erasures is not None:
            # Read, so that what this recovery deletes is appended.
            await context.run(context.erasures.open)
        own = await only_in_store(context.engine, await self._kept(accept_lost_tombstones), context.keyring)
        replayed = self._replay.tombstones
        also = await missing_tombstones(context.engine, replayed, context.keyring, or_void=False)
        own = list({one.hash: one for one in (*own, *also)}.values())
        deleted_parts = await find_deleted_parts(
            context.engine, context.keyring, context.model, base.graph, own, context.work
        )
        state = await context.run(lambda: self._store.read_version(current))
        remaining = deleted_parts.within(state.live, state.featured, base.graph.train_mask)
        names = base.graph.node_ids.take(remaining.nodes)
        hashes = context.keyring.tombstone_hashes(context.model, Part.NODES, names)
        self._by_ledger = len({hashes[one.hash] for one in also if one.hash in hashes})
        agreed = self._store.live_edges(current) == _edges_between(base.graph.adjacency, state)
        untouched = agreed and not remaining and not own and self._replay.summary is None
        if untouched and not await self._lost_in_batch(lost) and await self._agree():
            failed = await self._fail(lost)
            return Recovered(None, failed, 0, gave_up_tombstones=self._gave_up_tombstones)
        return await self._go_on(current, state, remaining, deleted_parts, own, lost)

    async def _go_on(
        self,
        current: VersionRef,
        state: VersionState,
        remaining: DeletedParts,
        deleted_parts: DeletedParts,
        own: Sequence[Tombstone],
        lost: Collection[UUID],
    ) -> Recovered:
        """Recover, once it is known that there is something to do."""
        context, watch = self._context, Stopwatch()
        async with transaction(context.engine) as connection:
            committed = await PointerRepository(connection).read(context.model)
            unfinished = await VersionRepository(connection).unfinished(context.model)
            await context.ledger.load(connection, context.model)
        unknown = await self._unknown_nodes(state, remaining)
        known = [current.version, *(ref.version for ref in self._store.versions()), context.publisher.noted]
        known.append(self._replay.number)
        number = 1 + max(known if committed is None else [*known, committed.version])
        resident, new = await context.run(lambda: self._without(remaining, state, current, number, deleted_parts.edges))
        failure_points.reached(FailurePoint.COMPUTED, Cause.RECOVERY)
        before = pointer_to(self._store, current, context.model)
        # Read the lease before writing to the disk: it may have expired during the computation.
        writer = VersionWriter(context, self._keeper, self._store, resident, before, deleted_parts.edges)
        # The earlier publication may contain deleted data.
        await context.run(writer.withhold)
        database_before = None if committed is None else committed.folder
        recovery_of = partial(
            Recovery,
            database_before=database_before,
            store_before=current.folder,
            unknown_nodes=unknown,
            ledger=self._replay.summary,
        )
        steps = RecoverySteps(context, recovery_of, own)
        version = await writer.write(new, steps, watch)
        await writer.commit(version, new, steps, watch)
        self._log.warning("recovery.committed", version=number, store=current.folder, unknown_nodes=unknown)
        # Before the erasure, the store's own record receives what only the database had; after a crash, the next start
        # does this.
        await reconcile(context, self._store, self._keeper)
        steps.failed = await self._fail(lost)
        completed = 0
        for one in unfinished:
            if one.cause is not Cause.RECOVERY:
                await writer.finish(one, await steps_of_cause(context, writer, self._store, one), Stopwatch())
                completed += one.requests if one.cause is Cause.BATCH else 0
        await writer.finish(version, steps, watch)
        kept = sum(one.kind.rules.removes is Part.NODES for one in own)
        return Recovered(
            recovery_of(version),
            steps.failed,
            completed,
            kept,
            self._gave_up_tombstones,
            self._replay.requests or {},
        )

    async def _kept(self, accept_lost: bool) -> TombstoneRecord:
        """Return the store's own tombstones; raise StoreDamaged if unreadable ones may be missing from the database."""
        kept = await self._context.run(self._store.tombstones)
        if not kept.damaged:
            return kept
        if accept_lost:
            fencing = self._keeper.lease.fencing
            await self._context.run(lambda: self._store.replace_tombstones(kept.tombstones, fencing=fencing))
            self._gave_up_tombstones = True
            self._log.warning("tombstones.accepted_lost", model=self._context.model, readable=len(kept.tombstones))
            return replace(kept, damaged=())
        if not await self._agree():
            raise unreadable(kept)
        return kept

    async def _install_import(self) -> None:
        """If the committed version is an import, put its folder in place first."""
        async with transaction(self._context.engine) as connection:
            wanted = await ImportRepository(connection).open(self._context.model)
        if wanted is not None and wanted.status is ImportStatus.COMMITTED:
            self._keeper.check()
            self._store = await self._context.run(Replacement(self._store.path, str(wanted.id)).install)

    async def _agree(self) -> bool:
        try:
            context = self._context
            async with transaction(context.engine) as connection:
                await check_agreement(connection, self._store, context.request_keys, context.model)
        except StateMismatch:
            return False
        return True

    async def _unknown_nodes(self, state: VersionState, remaining: DeletedParts) -> int:
        """Count the version's deleted nodes without a tombstone. Their ids are gone, so only their number is known."""
        async with transaction(self._context.engine) as connection:
            known = await TombstoneRepository(connection).count(self._context.model, Part.NODES)
        return max(0, int((~state.live).sum()) - (known - (int(remaining.nodes.size) - self._by_ledger)))

    def _without(
        self,
        remaining: DeletedParts,
        state: VersionState,
        current: VersionRef,
        number: int,
        edges: NDArray[np.int64],
    ) -> tuple[Resident, NewVersion]:
        """Return the store's model on the device, without the remaining deletions, as version `number`.

        `edges` (k, 2) are all deleted ones that may still be on the disk.
        """
        store, fencing = self._store, self._keeper.lease.fencing
        stale, edit = store.stale_coefficients(current), store.edit(current)
        resident = Resident.load(
            store.manifest,
            store.load_base(self._context.work),
            state,
            current.version,
            self._context.placement,
            stale_coefficients=stale,
            edited=() if edit is None or edit.coefficients is None else edit.coefficients,
            work=self._context.work,
        )
        if store.is_ungrown(current):
            # The next version has no record of what joined in this one.
            store.write_beta(*resident.committed.coefficients(), version=current.version, fencing=fencing)
            # A start after a crash would take those of the grown graph for edges that joined again.
            store.erase(Erasure(edges=edges[(edges < store.nodes).all(axis=1)]), fencing=fencing)
            store.grow(current, fencing=fencing, work=self._context.work)
            stale = False
        edit = None
        outcome, removed = RepairOutcome(RepairStatus.NONE, None, None), 0
        if remaining:
            self._context.work.begin("Deleting again, and repairing")
            joins = JoiningBatch.without_labels(resident.committed, remaining.labels)
            prepared = resident.prepare(remaining.removals(), joins, budget_s=math.inf)
            # Nobody reads it yet, so it becomes the state on the device immediately.
            resident.commit(prepared)
            outcome, removed, edit = prepared.outcome, prepared.projection.directions_removed, prepared.edit
        if not resident.is_near_enough:
            resident.begin_repair()
            repaired = resident.advance_repair(math.inf)
            assert repaired is not None
            resident.commit_repair(repaired)
            outcome = repaired.outcome
        snapshot = resident.renumber(number)
        new = NewVersion(
            state=resident.committed.state,
            edges=resident.committed.live_graph.edges,
            outcome=outcome,
            rebuilt=stale or outcome.coefficients is not None or edit is not None,
            deleted=remaining.counts,
            edit=edit,
            directions_removed=removed,
            publication=resident.committed.publication,
            snapshot=snapshot,
            model=published_model(self._store.manifest, resident.committed),
            replace_state=lambda: None,
        )
        return resident, new

    async def _lost_in_batch(self, lost: Collection[UUID]) -> bool:
        """Whether a committed, unfinished batch lost its edges' keys, so that only erasing can end it."""
        async with transaction(self._context.engine) as connection:
            unfinished = await VersionRepository(connection).unfinished(self._context.model)
            batches = [await BatchRepository(connection).get(one.id) for one in unfinished if one.cause is Cause.BATCH]
        return any(not batch.requests.keys().isdisjoint(lost) for batch in batches)

    async def _fail(self, lost: Collection[UUID]) -> int:
        """Fail the requests whose keys are lost, except those of a committed batch, which no longer need them."""
        failed = 0
        for request_id in lost:
            async with fenced_transaction(self._context.engine, self._keeper.lease) as connection:
                found = await RequestRepository(connection).get(request_id)
                if found is None or found[0].batch_id is not None:
                    continue
                try:
                    failed += await RequestMoves(connection).mark_failed(request_id, _KEY_LOST, even_held=True)
                except Conflict as conflict:
                    self._log.info("request.ended_meanwhile", reason=conflict.title)
        return failed


def _edges_between(adjacency: sp.csr_array, state: VersionState) -> int:
    live = state.live.astype(np.float64)
    return round(float(live @ (adjacency.astype(np.bool_).astype(np.float64) @ live))) // 2
