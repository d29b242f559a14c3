"""`lethe recover`: going on with a store and a database that are not of the same moment, as after a restored backup.

What either of the two knows to be deleted stays deleted. The store is taken as it is; what the database's tombstones
name and the store still has is deleted from it, as a batch would; what the store has deleted and the database knows
nothing of stays out of the model, and is counted. In this order, under the lease:

1. The store's version, without what is tombstoned, becomes a version later than both sides know; nothing visible
   changes. Under the policy `always` it is repaired first, however long that takes.
2. One fenced transaction makes it the committed version and records the recovery, which is *open* from here on.
3. CURRENT names it; what was deleted is erased from the disk, and all other versions with it.
4. Requests whose keys are lost for good fail; a batch that was between commit and end is ended.
5. The recovery is finished.

Where the two are of the same moment after all, and only keys of requests were lost, these requests fail and nothing
else changes.

A start is refused while a recovery is open. After a crash anywhere the next run does all of it again, from what it
finds: each step leaves alone what is done already.
"""

import asyncio
import math
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID, uuid4

import numpy as np
import scipy.sparse as sp
import structlog

from model_store.replacement import Replacement
from model_store.store import Store
from model_store.tombstones import Kept
from model_store.versions import VersionRef, VersionState
from service import failure_points
from service.db.batches import BatchRepository
from service.db.engine import Engine
from service.db.imports import ImportRepository
from service.db.pointers import PointerRepository
from service.db.recoveries import RecoveryRepository
from service.db.requests import RequestRepository
from service.db.tombstones import TombstoneRepository
from service.db.transactions import fenced_transaction, transaction
from service.domain.records import Pointer, Recovery
from service.domain.states import ImportStatus, RequestKind
from service.errors import Conflict, StateMismatch
from service.failure_points import FailurePoint
from service.queue.outage import Outage
from service.unlearning.loading import version_state
from service.unlearning.placement import Placement
from service.unlearning.resident import Resident
from service.vault.keyring import Keyring
from service.vault.request_keys import RequestKeys
from service.worker.batch import BatchWorker
from service.worker.kept_tombstones import hashes_of, only_in_store, unreadable
from service.worker.lease_keeper import LeaseKeeper
from service.worker.model_writer import ModelWriter
from service.worker.outcomes import Committed
from service.worker.readers import NobodyReads
from service.worker.recovery import check_agreement
from service.worker.stopwatch import Stopwatch
from service.worker.tombstoned import Tombstoned, find_tombstoned

T = TypeVar("T")

_KEY_LOST = (
    "What this request names cannot be read any more: the key of its encrypted id list was lost, and a recovery went "
    "on without it. Send the request again."
)


@dataclass(frozen=True)
class Recovered:
    """What a recovery did."""

    #: None when store and database agreed and the store had nothing that was deleted: then no model was changed.
    recovery: Recovery | None
    #: Requests that failed because their keys were lost.
    failed: int
    #: Requests of a batch that was between commit and end.
    completed: int
    #: Nodes that the store's own record knows to be deleted, and the database does not.
    kept: int = 0
    #: Whether what could not be read of the store's own tombstones was given up.
    gave_up_tombstones: bool = False


class Restorer:
    """Recovers one model under its lease."""

    def __init__(
        self,
        *,
        engine: Engine,
        store: Store,
        keyring: Keyring,
        request_keys: RequestKeys,
        keeper: LeaseKeeper,
        executor: Executor,
        outage: Outage,
        placement: Placement,
    ) -> None:
        self._engine = engine
        self._store = store
        self._keyring = keyring
        self._request_keys = request_keys
        self._keeper = keeper
        self._executor = executor
        self._outage = outage
        self._placement = placement
        self._model = store.manifest.name
        self._gave_up_tombstones = False
        self._log = structlog.get_logger(__name__)

    async def recover(self, lost: Collection[UUID] = (), *, accept_lost_tombstones: bool = False) -> Recovered:
        """Does all of it; `lost` are the requests whose keys are lost for good.

        `accept_lost_tombstones`: to go on with what can be read of the store's own tombstones.

        Raises StoreDamaged, StateMismatch where the database is another model's, KeyMissing, RepairImpossible and
        DeviceError, which only an operator can mend, and Unavailable and LeaseLost, after which it is run again.
        """
        failure_points.reached(FailurePoint.RECOVERY_LEASED)
        await self._install_import()
        async with transaction(self._engine) as connection:
            await PointerRepository(connection).require_only(self._model)
        base = await self._run(self._store.load_base)
        kept = await self._kept(accept_lost_tombstones)
        tombstoned = await find_tombstoned(self._engine, self._keyring, self._model, base.graph, kept)
        current = self._store.current()
        state = await self._run(lambda: self._store.read_version(current))
        remaining = still_there(tombstoned, state)
        agreed = self._store.live_edges(current) in (None, _edges_between(base.graph.adjacency, state))
        if agreed and not remaining and not await self._lost_in_batch(lost) and await self._agree():
            failed = await self._fail(lost)
            return Recovered(None, failed, 0, gave_up_tombstones=self._gave_up_tombstones)
        pointer = await self._pointer()
        unknown = await self._unknown_nodes(state, remaining)
        resident, removed, rebuilt = await self._run(lambda: self._without(remaining, state, current))
        failure_points.reached(FailurePoint.RECOVERY_COMPUTED)
        # Asked for last before the disk is written to: the computation may have taken longer than the lease.
        committed = await self._run(lambda: self._write(resident, pointer, current, rebuilt))
        failure_points.reached(FailurePoint.RECOVERY_WRITTEN)
        recovery = Recovery(
            id=uuid4(),
            model=self._model,
            database_before=None if pointer is None else pointer.folder,
            store_before=current.folder,
            version=committed.version,
            weights_sha256_before=self._store.weights_sha256(current),
            weights_sha256_after=committed.weights_sha256,
            nodes=int(remaining.nodes.size),
            features=int(remaining.feature_rows.size),
            edges=int(remaining.edges.shape[0]),
            directions_removed=removed,
            unknown_nodes=unknown,
            rank_after=resident.state.features.gram.rank,
            live_nodes=int(resident.state.live.sum()),
        )
        async with fenced_transaction(self._engine, self._keeper.lease) as connection:
            await PointerRepository(connection).replace(committed)
            await RecoveryRepository(connection).commit(recovery, committed.fencing)
            failure_points.reached(FailurePoint.RECOVERY_COMMITTING)
        failure_points.reached(FailurePoint.RECOVERY_COMMITTED)
        self._log.warning("recovery.committed", version=recovery.version, store=current.folder, **_counts(recovery))
        self._keeper.check()
        await self._run(lambda: self._store.set_current(_ref(committed)))
        failure_points.reached(FailurePoint.RECOVERY_SWAPPED)
        writer = self._writer(resident, committed, tombstoned)
        await self._run(writer.write_coefficients)
        failure_points.reached(FailurePoint.RECOVERY_COEFFICIENTS_WRITTEN)
        await self._run(writer.erase)
        failure_points.reached(FailurePoint.RECOVERY_ERASED)
        failed = await self._fail(lost)
        completed = await self._finish_batch(writer)
        failure_points.reached(FailurePoint.RECOVERY_REQUESTS_ENDED)
        async with fenced_transaction(self._engine, self._keeper.lease) as connection:
            await RecoveryRepository(connection).finish(self._model, requests_failed=failed)
        failure_points.reached(FailurePoint.RECOVERY_FINISHED)
        kept_nodes = await only_in_store(self._engine, hashes_of(self._store.tombstones(), RequestKind.NODE))
        self._log.warning("recovery.finished", version=recovery.version, failed=failed, completed=completed)
        return Recovered(recovery, failed, completed, len(kept_nodes), self._gave_up_tombstones)

    async def _kept(self, accept_lost: bool) -> Kept:
        """The store's own tombstones; StoreDamaged when some cannot be read that the database need not have."""
        kept = await self._run(self._store.tombstones)
        if not kept.damaged:
            return kept
        if accept_lost:
            fencing = self._keeper.lease.fencing
            await self._run(lambda: self._store.replace_tombstones(kept.tombstones, fencing=fencing))
            self._gave_up_tombstones = True
            self._log.warning("tombstones.accepted_lost", model=self._model, readable=len(kept.tombstones))
            return replace(kept, damaged=())
        if not await self._agree():
            raise unreadable(kept)
        return kept

    async def _install_import(self) -> None:
        """Where the committed version is that of an import, its folder takes its place first."""
        async with transaction(self._engine) as connection:
            wanted = await ImportRepository(connection).open(self._model)
        if wanted is not None and wanted.status is ImportStatus.COMMITTED:
            self._keeper.check()
            self._store = await self._run(Replacement(self._store.path, str(wanted.id)).install)

    async def _agree(self) -> bool:
        try:
            await check_agreement(self._engine, self._store, len(self._request_keys.ids()), self._model)
        except StateMismatch:
            return False
        return True

    async def _pointer(self) -> Pointer | None:
        async with transaction(self._engine) as connection:
            return await PointerRepository(connection).read(self._model)

    async def _unknown_nodes(self, state: VersionState, remaining: Tombstoned) -> int:
        """How many nodes the version lacks for which there is no tombstone; their ids are gone, so they are counted."""
        async with transaction(self._engine) as connection:
            known = await TombstoneRepository(connection).count(self._model, RequestKind.NODE)
        return max(0, int((~state.live).sum()) - (known - int(remaining.nodes.size)))

    def _without(self, remaining: Tombstoned, state: VersionState, current: VersionRef) -> tuple[Resident, int, bool]:
        """Step 1 in memory: the model, how many directions it lost, and whether its coefficients are new."""
        stale = self._store.stale_coefficients(current)
        resident = Resident.load(
            self._store.manifest,
            self._store.load_base(),
            state,
            current.version,
            self._placement,
            stale_coefficients=stale,
        )
        if not remaining:
            return resident, 0, stale
        prepared = resident.prepare(remaining.removals(), budget_s=math.inf)
        resident.commit(prepared)
        return resident, prepared.projection.directions_removed, stale or prepared.outcome.coefficients is not None

    def _write(self, resident: Resident, pointer: Pointer | None, current: VersionRef, rebuilt: bool) -> Pointer:
        """Step 1 on the disk."""
        known = [current.version, *(ref.version for ref in self._store.versions())]
        version = 1 + max(known if pointer is None else [*known, pointer.version])
        ref = VersionRef(version, self._keeper.lease.fencing)
        resident.state = replace(resident.state, version=version)
        digest = self._store.write_version(
            ref,
            version_state(resident.state),
            beta_version=version if rebuilt else self._store.beta_version(current),
            edges=resident.live_graph.edges,
        )
        return Pointer(self._model, version, ref.fencing, ref.folder, digest, self._store.weights_sha256(ref))

    def _writer(self, resident: Resident, committed: Pointer, tombstoned: Tombstoned) -> ModelWriter:
        return ModelWriter(
            engine=self._engine,
            keeper=self._keeper,
            store=self._store,
            resident=resident,
            pointer=committed,
            readers=NobodyReads(),
            outage=self._outage,
            unerased_edges=tombstoned.edges,
        )

    async def _lost_in_batch(self, lost: Collection[UUID]) -> bool:
        """Whether a batch was committed and not ended whose edges cannot be known any more: only erasing can end it."""
        async with transaction(self._engine) as connection:
            batch = await BatchRepository(connection).unfinished(self._model)
        return batch is not None and any(request.id in lost for request in batch.requests)

    async def _fail(self, lost: Collection[UUID]) -> int:
        """Ends the requests whose keys are lost; those of a committed batch need them no more."""
        failed = 0
        for request_id in lost:
            async with fenced_transaction(self._engine, self._keeper.lease) as connection:
                found = await RequestRepository(connection).get(request_id)
                if found is None or found[0].batch_id is not None:
                    continue
                try:
                    failed += await RequestRepository(connection).mark_failed(request_id, _KEY_LOST, {})
                except Conflict as conflict:
                    self._log.info("request.ended_meanwhile", reason=conflict.title)
        return failed

    async def _finish_batch(self, writer: ModelWriter) -> int:
        """Takes the requests of a committed batch to `completed`; what they name is out of the store by now."""
        async with transaction(self._engine) as connection:
            batch = await BatchRepository(connection).unfinished(self._model)
        if batch is None:
            return 0
        worker = BatchWorker(
            engine=self._engine,
            writer=writer,
            keyring=self._keyring,
            request_keys=self._request_keys,
            executor=self._executor,
            repair_budget_s=0.0,
        )
        requests = {request.id: request for request in batch.requests}
        await worker.finish(Committed(batch.record, requests, batch.norms), Stopwatch())
        return len(requests)

    async def _run(self, work: Callable[[], T]) -> T:
        """Blocking `work` on the executor, off the event loop, so that the lease is renewed meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def still_there(tombstoned: Tombstoned, state: VersionState) -> Tombstoned:
    """What is tombstoned and part of a version, whether or not it is still on the disk."""
    edges = tombstoned.edges
    return Tombstoned(
        nodes=tombstoned.nodes[state.live[tombstoned.nodes]],
        feature_rows=tombstoned.feature_rows[(state.live & state.featured)[tombstoned.feature_rows]],
        edges=edges[np.all(state.live[edges], axis=1)],
    )


def _edges_between(adjacency: sp.csr_array, state: VersionState) -> int:
    live = state.live.astype(np.float64)
    return round(float(live @ (adjacency.astype(np.bool_).astype(np.float64) @ live))) // 2


def _ref(pointer: Pointer) -> VersionRef:
    return VersionRef(pointer.version, pointer.fencing)


def _counts(recovery: Recovery) -> dict[str, int]:
    return {
        "nodes": recovery.nodes,
        "features": recovery.features,
        "edges": recovery.edges,
        "unknown_nodes": recovery.unknown_nodes,
    }
