"""One batch from claim to erasure, in the order of durable steps.

Everything after `commit` is idempotent: `finish` repeats what a crash or an outage left undone, from what the database
and the store hold, without knowing how far it had come.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar
from uuid import UUID, uuid4

import numpy as np

from model_store.erasure import Erasure
from model_store.store import Store
from model_store.versions import VersionRef
from service.db.batches import BatchRepository
from service.db.engine import Engine
from service.db.lease import settle
from service.db.pointers import PointerRepository
from service.db.requests import AppliedOutcome, RequestRepository
from service.db.tombstones import TombstoneRepository
from service.db.transactions import CommitUnanswered, fenced_transaction, transaction
from service.domain.records import BatchRecord, Lease, Pointer, RequestNorms, Tombstone
from service.domain.states import Guarantee, RepairStatus, RequestKind
from service.errors import Unavailable
from service.queue.outage import Outage
from service.unlearning.batch import Removal
from service.unlearning.measurement import stored_span_residual
from service.unlearning.resident import Prepared, Resident, version_state
from service.vault.keyring import Keyring
from service.vault.request_keys import RequestKeys
from service.worker.explanation import explain
from service.worker.lease_keeper import LeaseKeeper
from service.worker.readers import Readers
from service.worker.resolve import Deletion

T = TypeVar("T")


@dataclass(frozen=True)
class Committed:
    """A batch whose version is the committed one, with what the remaining steps need."""

    record: BatchRecord
    norms: Mapping[UUID, RequestNorms]


@dataclass(frozen=True)
class Stopwatch:
    """Milliseconds by step."""

    durations_ms: dict[str, float] = field(default_factory=dict)

    async def time(self, step: str, work: Callable[[], T], executor: Executor) -> T:
        """Runs blocking `work` on the executor, off the event loop, and notes how long it took."""
        started = time.perf_counter()
        result = await asyncio.get_running_loop().run_in_executor(executor, work)
        self.durations_ms[step] = round((time.perf_counter() - started) * 1000, 3)
        return result


class BatchWorker:
    """Applies batches to one resident model under one lease."""

    def __init__(
        self,
        *,
        engine: Engine,
        keeper: LeaseKeeper,
        store: Store,
        resident: Resident,
        pointer: Pointer,
        keyring: Keyring,
        request_keys: RequestKeys,
        readers: Readers,
        executor: Executor,
        outage: Outage,
    ) -> None:
        self._engine = engine
        self._keeper = keeper
        self._store = store
        self._resident = resident
        self._pointer = pointer
        self._keyring = keyring
        self._request_keys = request_keys
        self._readers = readers
        self._executor = executor
        self._outage = outage
        #: Nodes whose data may still be on disk, (n,): all of them until the first erasure has looked.
        self._on_disk = np.ones(store.manifest.nodes, dtype=np.bool_)
        #: The same of nodes' features.
        self._features_on_disk = self._on_disk.copy()

    @property
    def pointer(self) -> Pointer:
        """The committed version."""
        return self._pointer

    @property
    def resident(self) -> Resident:
        """The model on the device."""
        return self._resident

    @property
    def lease(self) -> Lease:
        """The lease; raises LeaseLost once it is not safely held any more."""
        return self._keeper.lease

    async def prepare(self, deletions: Sequence[Deletion], watch: Stopwatch) -> Prepared:
        """Step 4: the new state beside the old one; nothing visible changes."""
        removals = [Removal(RequestKind.NODE, nodes=deletion.rows) for deletion in deletions]
        return await watch.time("project", lambda: self._resident.prepare(removals), self._executor)

    async def commit(self, deletions: Sequence[Deletion], prepared: Prepared, watch: Stopwatch) -> Committed:
        """Steps 5 to 7: version folder, pointer with tombstones, swap.

        Raises Unavailable when nothing was committed, LeaseLost, or RequestsWithdrawn when a request was cancelled
        meanwhile.
        """
        state = prepared.projection.state
        ref = VersionRef(state.version, self.lease.fencing)
        digest = await watch.time("write", lambda: self._write(ref, prepared), self._executor)
        pointer = Pointer(
            model=self._pointer.model,
            version=ref.version,
            fencing=ref.fencing,
            folder=ref.folder,
            digest=digest,
            weights_sha256=self._store.weights_sha256(ref),
        )
        committed = self._record(deletions, prepared, pointer, watch)
        await self._move_pointer(pointer, committed, deletions)
        await watch.time("swap", lambda: self._swap(ref, pointer, prepared), self._executor)
        return committed

    async def finish(self, committed: Committed, watch: Stopwatch) -> BatchRecord:
        """Steps 8 to 10: `applied`, erasure, measurement from disk, `completed`. Returns the record as completed."""
        await self.apply(committed)
        await watch.time("erase", self.erase, self._executor)
        return await self._complete(committed, watch)

    async def apply(self, committed: Committed) -> None:
        """Step 8: the requests are `applied`; their nodes are out of graph, weights and every prediction."""
        explanation = explain(committed.record)
        outcomes = [
            AppliedOutcome(request, Guarantee.SPAN, RepairStatus.NONE, explanation, _figures(committed, request))
            for request in committed.norms
        ]
        async with fenced_transaction(self._engine, self.lease) as connection:
            await RequestRepository(connection).mark_applied(committed.record.id, outcomes)

    async def _move_pointer(self, pointer: Pointer, committed: Committed, deletions: Sequence[Deletion]) -> None:
        """Step 6: in one fenced transaction the pointer moves, the requests join the batch, tombstones are laid."""
        try:
            async with fenced_transaction(self._engine, self.lease) as connection:
                await PointerRepository(connection).advance(self._pointer.version, pointer)
                await BatchRepository(connection).insert(committed.record, pointer.fencing, committed.norms)
                await TombstoneRepository(connection).insert(self._tombstones(deletions), self._keyring.fingerprints())
        except CommitUnanswered:
            # Which version is the committed one is unknown until the pointer has been read.
            self._readers.suspend("the database did not answer a commit")
            if not await self._pointer_moved(pointer):
                self._readers.resume()
                raise

    async def _pointer_moved(self, pointer: Pointer) -> bool:
        """Reads the pointer, however long that takes; predictions stay suspended meanwhile."""
        while True:
            try:
                async with transaction(self._engine) as connection:
                    await settle(connection, self.lease)
                    return await PointerRepository(connection).read(pointer.model) == pointer
            except Unavailable as error:
                await self._outage.pause(error)

    def _tombstones(self, deletions: Sequence[Deletion]) -> list[Tombstone]:
        return [
            Tombstone(RequestKind.NODE, digest, number, deletion.claimed.request.id)
            for deletion in deletions
            for node in deletion.nodes
            for number, digest in [self._keyring.tombstone_hash(self._pointer.model, RequestKind.NODE, node)]
        ]

    def _write(self, ref: VersionRef, prepared: Prepared) -> str:
        return self._store.write_version(ref, version_state(prepared.projection.state))

    def _swap(self, ref: VersionRef, pointer: Pointer, prepared: Prepared) -> None:
        """Step 7: the new state and its predictions replace the old ones everywhere."""
        self._store.set_current(ref)
        self._resident.commit(prepared)
        self._pointer = pointer
        self._readers.publish(prepared.snapshot)
        self._readers.resume()

    def erase(self) -> None:
        """Step 9: what belonged to nodes no longer live, or without features, leaves the disk, and all other versions.

        What has left already is not looked at again.
        """
        ref = VersionRef(self._pointer.version, self._pointer.fencing)
        fencing = self.lease.fencing
        version = self._store.read_version(ref, digest=self._pointer.digest)
        erasure = Erasure(
            nodes=np.flatnonzero(~version.live & self._on_disk),
            feature_rows=np.flatnonzero(~version.featured & version.live & self._features_on_disk),
        )
        self._store.erase(erasure, fencing=fencing)
        self._on_disk, self._features_on_disk = version.live, version.featured
        self._store.remove_versions(keep=ref, below_fencing=fencing)

    async def _complete(self, committed: Committed, watch: Stopwatch) -> BatchRecord:
        """Step 10: the span residual from the surviving rows on disk, `completed`, and the id keys destroyed."""
        residual = await watch.time("verify", self._span_residual, self._executor)
        finished = Committed(replace(committed.record, span_residual=residual), committed.norms)
        payloads = {request: _figures(finished, request) for request in finished.norms}
        async with fenced_transaction(self._engine, self.lease) as connection:
            await BatchRepository(connection).finish(
                committed.record.id, span_residual=residual, durations_ms=watch.durations_ms
            )
            await RequestRepository(connection).mark_completed(payloads)
        await asyncio.to_thread(self._request_keys.destroy, list(committed.norms))
        return replace(finished.record, durations_ms=watch.durations_ms)

    def _span_residual(self) -> float:
        ref = VersionRef(self._pointer.version, self._pointer.fencing)
        return stored_span_residual(self._store, ref, digest=self._pointer.digest)

    def _record(
        self, deletions: Sequence[Deletion], prepared: Prepared, pointer: Pointer, watch: Stopwatch
    ) -> Committed:
        projection = prepared.projection
        record = BatchRecord(
            id=uuid4(),
            model=pointer.model,
            requests=len(deletions),
            nodes=int(prepared.nodes.size),
            model_version_before=self._pointer.version,
            model_version_after=pointer.version,
            weights_sha256_before=self._pointer.weights_sha256,
            weights_sha256_after=pointer.weights_sha256,
            rank_before=self._resident.state.features.gram.rank,
            rank_after=projection.state.features.gram.rank,
            directions_removed=projection.directions_removed,
            lost_direction_norm_before=projection.lost_direction_norm_before,
            lost_direction_norm_after=projection.lost_direction_norm_after,
            weight_change=projection.weight_change,
            coefficient_residual=projection.coefficient_residual,
            factor_method=projection.factor_method.value,
            device=str(self._resident.state.features.W.device),
            durations_ms=dict(watch.durations_ms),
        )
        norms = {
            deletion.claimed.request.id: RequestNorms(
                injected_norm_before=norm.injected_before,
                injected_norm_after=norm.injected_after,
                channel_norm_before=norm.channel_before,
                channel_norm_after=norm.channel_after,
            )
            for deletion, norm in zip(deletions, projection.norms, strict=True)
        }
        return Committed(record, norms)


def _figures(committed: Committed, request: UUID) -> dict[str, object]:
    """The figures of one request for its audit event; no external id is among them."""
    figures: dict[str, object] = asdict(committed.record) | asdict(committed.norms[request])
    figures["batch"] = str(figures.pop("id"))
    return figures
