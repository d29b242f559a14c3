"""Load the committed version of a model, and write the checkpoints of the Gram factors that speed up a start."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import structlog
import torch

from model_store import gram_checkpoint
from model_store.manifest import Manifest
from model_store.replacement import Replacement
from model_store.store import Store
from model_store.versions import VersionRef
from projector.forgetting.gram import Gram
from service import failure_points
from service.db import lease as leases
from service.db.transactions import transaction
from service.domain.records import Pointer
from service.domain.states import Cause, ImportStatus
from service.domain.versions import Version
from service.failure_points import FailurePoint
from service.predictions.version_rows import BatchRepository, VersionRepository
from service.unlearner.agreement import agreed_pointer, deleted_edges, require_edges, rows_of_edges
from service.unlearner.context import Context
from service.unlearner.deleted_parts import find_deleted_parts, reconcile
from service.unlearner.importer import Importer
from service.unlearner.lease_keeper import LeaseKeeper
from service.unlearner.resident import Resident
from service.unlearner.securing import agree
from service.unlearner.staged import Candidate
from service.unlearner.version_writer import VersionWriter
from service.unlearner.workers import Task, Team, digest_of


class Loader:
    """Keeps one model on the device. An import changes its folder."""

    def __init__(self, context: Context, store: Store, importer: Importer, team: Team, home: str) -> None:
        """`home` is the id of the LETHE_HOME."""
        self._context = context
        self._home = home
        self._importer = importer
        self._team = team
        self._log = structlog.get_logger(__name__)
        self.store = store
        #: Manifest of the model on the device.
        self.manifest: Manifest = store.manifest
        #: None until a version has been loaded.
        self.writer: VersionWriter | None = None

    async def load(self, keeper: LeaseKeeper, candidate: Candidate | None) -> tuple[VersionWriter, Version | None]:
        """Return a writer of the committed version, and that version if it may be unfinished.

        The loaded model lacks the deletions of an unfinished version, erased or not. `candidate`, just imported, is on
        the device already. Raises StateMismatch, KeyMissing, StoreDamaged, RepairImpossible, DeviceError, Unavailable,
        LeaseLost and WorkersLost.
        """
        context = self._context
        wanted = await self._importer.open()
        if wanted is not None and wanted.status is ImportStatus.COMMITTED:
            keeper.check()
            self.store = await context.run(Replacement(self.store.path, str(wanted.id)).install)
            failure_points.reached(FailurePoint.INSTALLED, Cause.IMPORT)
        pointer = await agreed_pointer(context, self.store, keeper.lease)
        await leases.claim_home(context.engine, keeper.lease, self._home)
        failure_points.reached(FailurePoint.POINTER_READ)
        await self._importer.clear_abandoned(self.store, keeper)
        await reconcile(context, self.store, keeper)
        await agree(context)
        async with transaction(context.engine) as connection:
            unfinished = next(iter(await VersionRepository(connection).unfinished(context.model)), None)
            await context.ledger.load(connection, context.model)
        deleted = [] if unfinished is None else await self._deleted_edges(unfinished)
        resident = await self._resident(pointer, deleted, candidate)
        unerased = rows_of_edges(deleted, resident.committed.node_ids)
        self.writer = VersionWriter(context, keeper, self.store, resident, pointer, unerased)
        self.manifest = self.store.manifest
        # A version that does not keep the current promise of noise is published only if it has to be finished.
        if unfinished is not None or resident.keeps_promise:
            self._log.info("model.publishing", version=pointer.version)
            await context.run(self.writer.publish)
        return self.writer, unfinished

    async def _deleted_edges(self, unfinished: Version) -> Sequence[tuple[str, str]]:
        """Return the edges, by external ids, that an unfinished version deleted and that may still be on the disk."""
        context = self._context
        if unfinished.cause is Cause.BATCH:
            async with transaction(context.engine) as connection:
                batch = await BatchRepository(connection).get(unfinished.id)
            return deleted_edges(batch.requests.values(), context.request_keys)
        if not unfinished.deleted_edges:
            return []
        graph = (await context.run(partial(self.store.load_base, context.work))).graph
        found = await find_deleted_parts(context.engine, context.keyring, context.model, graph, work=context.work)
        edges = found.edges
        return [(graph.node_ids[first], graph.node_ids[second]) for first, second in edges.tolist()]

    async def _resident(
        self, pointer: Pointer, deleted: Sequence[tuple[str, str]], candidate: Candidate | None
    ) -> Resident:
        if self._team.wanted > 1:
            # Other workers may have joined or left, and load from the disk.
            self.writer = None
        elif candidate is not None and candidate.pointer == pointer:
            return candidate.resident
        if self.writer is None or self.writer.pointer != pointer:
            return await self._context.run(partial(self._read, pointer, deleted))
        # After a mere outage the model on the device is still current; reloading would take long.
        return self.writer.resident

    def _read(self, pointer: Pointer, deleted: Sequence[tuple[str, str]]) -> Resident:
        """Read the committed version from the disk, without the edges `deleted`."""
        ref = VersionRef(pointer.version, pointer.fencing)
        manifest = self.store.manifest
        self._log.info("model.loading", version=pointer.version, nodes=manifest.nodes, edges=manifest.edges)
        version = self.store.read_version(ref, digest=pointer.digest)
        base = self.store.load_base(self._context.work)
        without = rows_of_edges(deleted, base.graph.node_ids)
        self._team.begin(Task(ref.folder, pointer.digest, without.tolist()))
        base = replace(base, graph=base.graph.without_edges(without))
        gram = self._checkpoint(ref, pointer)
        edit = self.store.edit(ref)
        resident = Resident.load(
            self.store.manifest,
            base,
            version,
            pointer.version,
            self._context.placement,
            stale_coefficients=self.store.stale_coefficients(ref),
            edited=() if edit is None or edit.coefficients is None else edit.coefficients,
            gram=gram,
            work=self._context.work,
        )
        if gram is not None and not resident.committed.from_checkpoint:
            kept = self.store.folder_of(ref) / gram_checkpoint.FILE
            self._log.warning("checkpoint.ignored", reason=f"{kept} does not fit the rows that are left.")
        require_edges(self.store, ref, resident.committed.live_graph.edges)
        if self._team.wanted > 1:
            self._context.work.begin("Waiting for the other workers")
            self._team.gather(digest_of(pointer.digest, base.graph), resident.committed.share)
        return resident

    def _checkpoint(self, ref: VersionRef, pointer: Pointer) -> Gram | None:
        """Return the stored Gram factors of the committed version; log and ignore an unusable checkpoint."""
        try:
            return gram_checkpoint.read(
                self.store.folder_of(ref),
                version_digest=pointer.digest,
                device=torch.device(self._context.placement.device),
            )
        except gram_checkpoint.CheckpointUnusable as unusable:
            self._log.warning("checkpoint.ignored", reason=unusable.detail)
            return None


#: Below this number, factorising again is faster than reading a checkpoint.
LEAST_FEATURES = 512
#: Age of a committed version before its factors are written (seconds): a steady stream of deletions would outdate them
#: immediately.
QUIET_S = 5.0
#: Maximum work between two checks for new requests (seconds).
_SLICE_S = 0.25


class Checkpointer:
    """Writes the checkpoint of the committed version, a slice at a time; without it a start only takes longer."""

    def __init__(
        self,
        context: Context,
        writer: VersionWriter,
        *,
        least_features: int = LEAST_FEATURES,
        quiet_s: float = QUIET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._context = context
        self._least_features = least_features
        self._quiet_s = quiet_s
        self._clock = clock
        self._version: int | None = None
        self._since = 0.0
        self._writing: Iterator[None] | None = None
        self._is_done = False
        self._log = structlog.get_logger(__name__)

    @property
    def due(self) -> bool:
        """Whether `step` has work to do."""
        resident = self._writer.resident
        if self._version != resident.committed.state.version:
            # An unfinished checkpoint of an earlier version contains data deleted since, so it is dropped.
            self._version, self._since, self._writing = resident.committed.state.version, self._clock(), None
            wide = resident.committed.state.features.gram.M.shape[0] >= self._least_features
            self._is_done = not wide or resident.committed.from_checkpoint
        return not self._is_done and self._clock() - self._since >= self._quiet_s

    async def step(self) -> None:
        """Write for one slice. On a disk error, log it and give up the checkpoint of this version."""
        try:
            await self._context.run(self._advance)
        except OSError as error:
            self._writing, self._is_done = None, True
            self._log.warning("checkpoint.not_written", reason=error.strerror or type(error).__name__)

    def _advance(self) -> None:
        if self._writing is None:
            self._writing = self._writer.checkpoint_steps()
        until = self._clock() + _SLICE_S
        for _ in self._writing:
            if self._clock() >= until:
                return
        self._writing, self._is_done = None, True
        self._log.info("checkpoint.written", version=self._version)
