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
from numpy.typing import NDArray

from model_store.store import Store
from model_store.versions import VersionRef
from service.db.batches import BatchRepository
from service.db.engine import Engine
from service.db.pointers import PointerRepository
from service.db.requests import AppliedOutcome, RequestRepository
from service.db.tombstones import TombstoneRepository
from service.db.transactions import CommitUnanswered, fenced_transaction
from service.domain.records import BatchRecord, Lease, Pointer, QueuedRequest, RequestNorms, Tombstone
from service.domain.states import Guarantee, RepairStatus, RequestKind
from service.queue.outage import Outage
from service.unlearning.batch import Removal
from service.unlearning.measurement import stored_span_residual
from service.unlearning.resident import Prepared, Resident, version_state
from service.vault.keyring import Keyring
from service.vault.request_keys import RequestKeys
from service.worker.explanation import explain
from service.worker.lease_keeper import LeaseKeeper
from service.worker.leftovers import Leftovers
from service.worker.readers import Readers
from service.worker.recovery import pointer_moved
from service.worker.resolve import Deletion

T = TypeVar("T")


@dataclass(frozen=True)
class Committed:
    """A batch whose version is the committed one, with what the remaining steps need."""

    record: BatchRecord
    #: The requests in it, and what it measured for each.
    requests: Mapping[UUID, QueuedRequest]
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
        unerased_edges: NDArray[np.int64],
    ) -> None:
        """`unerased_edges` (k, 2) are those that a batch deleted and whose erasure is not known to be finished."""
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
        self._leftovers = Leftovers(store.manifest.nodes, unerased_edges)

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
        removals = [Removal(deletion.kind, nodes=deletion.nodes, edges=deletion.edges) for deletion in deletions]
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
        """Step 8: the requests are `applied`; what they name is out of graph, weights and every prediction."""
        outcomes = [_outcome(committed, request) for request in committed.requests.values()]
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
            if not await pointer_moved(self._engine, self._keeper, pointer, self._outage):
                self._readers.resume()
                raise

    def _tombstones(self, deletions: Sequence[Deletion]) -> list[Tombstone]:
        return [
            Tombstone(deletion.kind, digest, number, deletion.claimed.request.id)
            for deletion in deletions
            for subject in deletion.subjects
            for number, digest in [self._keyring.tombstone_hash(self._pointer.model, deletion.kind, subject)]
        ]

    def _write(self, ref: VersionRef, prepared: Prepared) -> str:
        return self._store.write_version(ref, version_state(prepared.projection.state))

    def _swap(self, ref: VersionRef, pointer: Pointer, prepared: Prepared) -> None:
        """Step 7: the new state and its predictions replace the old ones everywhere."""
        self._resident.commit(prepared)
        self._pointer = pointer
        self._leftovers.add_edges(prepared.edges)
        self._readers.publish(prepared.snapshot)
        self._readers.resume()
        # Last: a disk that refuses must not keep readers on the old version; a start sets CURRENT from the pointer.
        self._store.set_current(ref)

    def erase(self) -> None:
        """Step 9: nodes, features and edges that are gone leave the disk, and so do all other versions."""
        ref = VersionRef(self._pointer.version, self._pointer.fencing)
        fencing = self.lease.fencing
        committed = self._store.read_version(ref, digest=self._pointer.digest)
        self._store.erase(self._leftovers.erasure(committed), fencing=fencing)
        self._leftovers.erased(committed)
        self._store.remove_versions(keep=ref, below_fencing=fencing)

    async def _complete(self, committed: Committed, watch: Stopwatch) -> BatchRecord:
        """Step 10: the span residual from the surviving rows on disk, `completed`, and the id keys destroyed."""
        residual = await watch.time("verify", self._span_residual, self._executor)
        finished = replace(committed, record=replace(committed.record, span_residual=residual))
        payloads = {request: _figures(finished, request) for request in finished.requests}
        async with fenced_transaction(self._engine, self.lease) as connection:
            await BatchRepository(connection).finish(
                committed.record.id, span_residual=residual, durations_ms=watch.durations_ms
            )
            await RequestRepository(connection).mark_completed(payloads)
        await asyncio.to_thread(self._request_keys.destroy, list(committed.requests))
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
            nodes=len(prepared.nodes),
            features=len(prepared.feature_rows),
            edges=len(prepared.edges),
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
                deleted=len(deletion.subjects),
                injected_norm_before=norm.injected_before,
                injected_norm_after=norm.injected_after,
                channel_norm_before=norm.channel_before,
                channel_norm_after=norm.channel_after,
            )
            for deletion, norm in zip(deletions, projection.norms, strict=True)
        }
        return Committed(
            record, {deletion.claimed.request.id: deletion.claimed.request for deletion in deletions}, norms
        )


def _outcome(committed: Committed, request: QueuedRequest) -> AppliedOutcome:
    """What is told of one request; its weights are not repaired, so of an edge the graph alone has forgotten."""
    deleted = committed.norms[request.id].deleted
    return AppliedOutcome(
        request_id=request.id,
        guarantee=Guarantee.GRAPH_ONLY if request.kind is RequestKind.EDGE else Guarantee.SPAN,
        repair=RepairStatus.NONE,
        explanation=explain(committed.record, request.kind, named=request.count, deleted=deleted),
        payload=_figures(committed, request.id),
    )


def _figures(committed: Committed, request: UUID) -> dict[str, object]:
    """The figures of one request for its audit event; no external id is among them."""
    figures: dict[str, object] = asdict(committed.record) | asdict(committed.norms[request])
    figures["batch"] = str(figures.pop("id"))
    figures["kind"] = committed.requests[request].kind.value
    return figures
