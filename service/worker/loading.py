"""Loading the committed version of a model: after a start, after an outage, and after an import."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog
import torch

from model_store import gram_checkpoint
from model_store.manifest import Manifest
from model_store.store import Store
from model_store.versions import VersionRef
from projector.forgetting.gram import Gram
from service import failure_points
from service.db.batches import BatchRepository, UnfinishedBatch
from service.db.engine import Engine
from service.db.orphaned_keys import orphaned
from service.db.repairs import RepairRepository
from service.db.tombstones import TombstoneRepository
from service.db.transactions import transaction
from service.domain.records import Pointer, RepairRecord
from service.domain.states import ImportStatus
from service.failure_points import FailurePoint
from service.queue.outage import Outage
from service.unlearning.placement import Placement
from service.unlearning.resident import Resident
from service.vault.keyring import Keyring
from service.vault.request_keys import RequestKeys
from service.worker.candidate import Candidate
from service.worker.importing import Importer
from service.worker.kept_tombstones import keep_in_step
from service.worker.lease_keeper import LeaseKeeper
from service.worker.model_writer import ModelWriter
from service.worker.readers import Readers
from service.worker.recovery import agreed_pointer, deleted_edges, require_edges, rows_of_edges

T = TypeVar("T")


@dataclass(frozen=True)
class Unfinished:
    """What a crash or an outage may have left between commit and end; at most one of the two."""

    batch: UnfinishedBatch | None
    repair: RepairRecord | None


class Loader:
    """Keeps one model on the device. An import changes which folder that is of."""

    def __init__(
        self,
        *,
        engine: Engine,
        store: Store,
        keyring: Keyring,
        request_keys: RequestKeys,
        readers: Readers,
        importer: Importer,
        executor: Executor,
        outage: Outage,
        model: str,
        placement: Placement,
    ) -> None:
        self._engine = engine
        self._keyring = keyring
        self._request_keys = request_keys
        self._readers = readers
        self._importer = importer
        self._executor = executor
        self._outage = outage
        self._model = model
        self._placement = placement
        #: Requests that had a key before this process took any.
        self._with_keys_before = request_keys.ids()
        self._log = structlog.get_logger(__name__)
        self.store = store
        #: What the model on the device is.
        self.manifest: Manifest = store.manifest
        #: None until a version has been loaded.
        self.writer: ModelWriter | None = None
        #: Tombstones that the store has kept and the database does not know: it is older.
        self.kept: frozenset[bytes] = frozenset()

    async def load(self, keeper: LeaseKeeper, candidate: Candidate | None) -> tuple[ModelWriter, Unfinished]:
        """A writer of the committed version, and what is not known to be finished.

        The model lacks what an unfinished batch deleted, whether it is erased or not. `candidate`, just imported, is
        on the device already. Raises StateMismatch, KeyMissing, StoreDamaged, RepairImpossible and DeviceError, and
        Unavailable and LeaseLost.
        """
        wanted = await self._importer.open(self._model)
        committed = wanted is not None and wanted.status is ImportStatus.COMMITTED
        if wanted is not None and committed:
            self.store = await self._importer.install(wanted, self.store)
            failure_points.reached(FailurePoint.IMPORT_INSTALLED)
        pointer = await agreed_pointer(self._engine, self.store, keeper.lease, self._model)
        failure_points.reached(FailurePoint.POINTER_READ)
        if wanted is not None and committed:
            await self._importer.erase(wanted, self.store, keeper)
            failure_points.reached(FailurePoint.IMPORT_ERASED)
        await self._importer.clear_abandoned(self.store, None if committed else wanted, keeper)
        self.kept = await keep_in_step(self._engine, self.store, self._keyring, keeper.lease)
        unfinished = await self._unfinished()
        deleted = deleted_edges(unfinished.batch, self._request_keys)
        resident = await self._resident(pointer, deleted, candidate)
        # It is computed when it is first asked for, which must not be on the event loop.
        await self._run(lambda: resident.certificate)
        writer = ModelWriter(
            engine=self._engine,
            keeper=keeper,
            store=self.store,
            resident=resident,
            pointer=pointer,
            readers=self._readers,
            outage=self._outage,
            unerased_edges=rows_of_edges(deleted, resident.rows),
        )
        if wanted is not None and committed:
            await self._run(writer.write_coefficients)
            # The rows of what was deleted are zeros in them, but not yet the bytes that erasing leaves.
            await self._run(writer.erase)
            await self._destroy_orphaned_keys()
            await self._importer.complete(wanted, keeper)
            failure_points.reached(FailurePoint.IMPORT_COMPLETED)
        self.writer, self.manifest = writer, self.store.manifest
        return writer, unfinished

    async def _destroy_orphaned_keys(self) -> None:
        """What a start does at once that is not amid an import: only now store and database are known to agree."""
        orphans = await orphaned(self._engine, self._with_keys_before)
        await self._run(lambda: self._request_keys.destroy(orphans))

    async def _unfinished(self) -> Unfinished:
        async with transaction(self._engine) as connection:
            self._keyring.check(await TombstoneRepository(connection).key_fingerprints())
            return Unfinished(
                await BatchRepository(connection).unfinished(self._model),
                await RepairRepository(connection).unfinished(self._model),
            )

    async def _resident(
        self, pointer: Pointer, deleted: Sequence[tuple[str, str]], candidate: Candidate | None
    ) -> Resident:
        if candidate is not None and candidate.pointer == pointer:
            await self._run(partial(candidate.resident.leave_repairs_to, self._placement.process))
            return candidate.resident
        if self.writer is None or self.writer.pointer != pointer:
            return await self._run(partial(self._read, pointer, deleted))
        # After a mere outage the model on the device is still the committed one; loading it again would take long. A
        # commit that turned out not to have happened may have left the readers suspended.
        self._readers.resume()
        return self.writer.resident

    def _read(self, pointer: Pointer, deleted: Sequence[tuple[str, str]]) -> Resident:
        """The committed version from the disk, without the edges `deleted`."""
        ref = VersionRef(pointer.version, pointer.fencing)
        version = self.store.read_version(ref, digest=pointer.digest)
        base = self.store.load_base()
        rows = {node: row for row, node in enumerate(base.graph.node_ids) if version.live[row]}
        base = replace(base, graph=base.graph.without_edges(rows_of_edges(deleted, rows)))
        gram = self._checkpoint(ref, pointer)
        resident = Resident.load(
            self.store.manifest,
            base,
            version,
            pointer.version,
            self._placement,
            stale_coefficients=self.store.stale_coefficients(ref),
            gram=gram,
        )
        if gram is not None and not resident.from_checkpoint:
            kept = self.store.folder_of(ref) / gram_checkpoint.FILE
            self._log.warning("checkpoint.ignored", reason=f"{kept} does not fit the rows that are left.")
        require_edges(self.store, ref, resident.live_graph.edges)
        graph = base.graph
        self._readers.load(graph.node_ids, graph.class_names, resident.predictions(), public=resident.public)
        return resident

    def _checkpoint(self, ref: VersionRef, pointer: Pointer) -> Gram | None:
        """The Gram factors of the committed version if they are kept; one that cannot be used is named and ignored."""
        try:
            return gram_checkpoint.read(
                self.store.folder_of(ref), version_digest=pointer.digest, device=torch.device(self._placement.device)
            )
        except gram_checkpoint.CheckpointUnusable as unusable:
            self._log.warning("checkpoint.ignored", reason=str(unusable))
            return None

    async def _run(self, work: Callable[[], T]) -> T:
        """Blocking `work` on the executor, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
