"""The committed version of one model, and how it is replaced: folder, pointer, state on the device, disk.

What changes the weights, a batch or a repair, goes through the same four calls, in this order: `write`, `move_pointer`,
`swap`, and then, each idempotent, `write_coefficients`, `erase` and `span_residual`.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from model_store import gram_checkpoint
from model_store.manifest import Manifest
from model_store.store import Store
from model_store.tombstones import KeptTombstone
from model_store.versions import VersionRef
from projector.forgetting.batch import ModelState
from service import failure_points
from service.db.engine import Connection, Engine
from service.db.pointers import PointerRepository
from service.db.transactions import CommitUnanswered, fenced_transaction
from service.domain.records import Lease, Pointer
from service.failure_points import FailurePoint
from service.queue.outage import Outage
from service.unlearning.loading import version_state
from service.unlearning.measurement import stored_span_residual
from service.unlearning.resident import Resident
from service.unlearning.snapshot import Snapshot
from service.worker.lease_keeper import LeaseKeeper
from service.worker.leftovers import Leftovers
from service.worker.readers import Readers
from service.worker.recovery import pointer_moved


class ModelWriter:
    """Writes one model under one lease. What is not a coroutine blocks, and belongs on the executor."""

    def __init__(
        self,
        *,
        engine: Engine,
        keeper: LeaseKeeper,
        store: Store,
        resident: Resident,
        pointer: Pointer,
        readers: Readers,
        outage: Outage,
        unerased_edges: NDArray[np.int64],
    ) -> None:
        """`unerased_edges` (k, 2) are those that a batch deleted and whose erasure is not known to be finished."""
        self._engine = engine
        self._keeper = keeper
        self._store = store
        self._pointer = pointer
        self._readers = readers
        self._outage = outage
        self._leftovers = Leftovers(store.manifest.nodes, unerased_edges)
        #: The model on the device.
        self.resident = resident

    @property
    def pointer(self) -> Pointer:
        """The committed version."""
        return self._pointer

    @property
    def manifest(self) -> Manifest:
        """What the model is."""
        return self._store.manifest

    @property
    def lease(self) -> Lease:
        """The lease; raises LeaseLost once it is not safely held any more."""
        return self._keeper.lease

    def write(self, state: ModelState, *, edges: int, rebuilt: bool) -> Pointer:
        """Writes `state` to a version folder of its own and returns the pointer to it; nothing visible changes.

        `edges` are those between its live nodes, each counted once.
        `rebuilt` is whether the span coefficients that go with it are those of its own weights, which
        `write_coefficients` will write, and not those that `base/` holds.
        """
        ref = VersionRef(state.version, self.lease.fencing)
        beta_version = ref.version if rebuilt else self._store.beta_version(self._ref)
        digest = self._store.write_version(ref, version_state(state), beta_version=beta_version, edges=edges)
        return Pointer(
            model=self._pointer.model,
            version=ref.version,
            fencing=ref.fencing,
            folder=ref.folder,
            digest=digest,
            weights_sha256=self._store.weights_sha256(ref),
        )

    async def move_pointer(self, pointer: Pointer, record: Callable[[Connection], Awaitable[None]]) -> None:
        """In one fenced transaction the pointer moves and `record` writes down what belongs to that.

        Raises Unavailable when nothing was committed, LeaseLost, and what `record` raises.
        """
        try:
            async with fenced_transaction(self._engine, self.lease) as connection:
                await PointerRepository(connection).advance(self._pointer.version, pointer)
                await record(connection)
        except CommitUnanswered:
            # Which version is the committed one is unknown until the pointer has been read.
            self._readers.suspend("the database did not answer a commit")
            if not await pointer_moved(self._engine, self._keeper, pointer, self._outage):
                self._readers.resume()
                raise

    def swap(
        self, pointer: Pointer, commit: Callable[[], None], snapshot: Snapshot, deleted_edges: NDArray[np.int64]
    ) -> None:
        """The new state and its predictions replace the old ones everywhere; `commit` does so on the device.

        `deleted_edges` (k, 2) are those that the new version lacks.
        """
        commit()
        self._pointer = pointer
        self._leftovers.add_edges(deleted_edges)
        self._readers.publish(snapshot)
        self._readers.resume()
        # Last: a disk that refuses must not keep readers on the old version; a start sets CURRENT from the pointer.
        self._store.set_current(self._ref)

    def write_coefficients(self) -> None:
        """Writes the span coefficients of the committed version unless `base/` holds them already."""
        if self._store.stale_coefficients(self._ref):
            coefficients = self.resident.coefficients()
            self._store.write_beta(
                coefficients.beta,
                coefficients.label_beta,
                version=self._pointer.version,
                fencing=self.lease.fencing,
            )

    def keep_tombstones(self, tombstones: Sequence[KeptTombstone]) -> None:
        """The store's own record of what was deleted has these too, before anything of them is erased."""
        self._store.add_tombstones(tombstones, fencing=self.lease.fencing)

    def erase(self) -> None:
        """Nodes, features and edges that are gone leave the disk, and so do all other versions."""
        fencing = self.lease.fencing
        committed = self._store.read_version(self._ref, digest=self._pointer.digest)
        self._store.erase(self._leftovers.erasure(committed), fencing=fencing)
        self._leftovers.erased(committed)
        failure_points.reached(FailurePoint.BASE_ERASED)
        self._store.remove_versions(keep=self._ref, below_fencing=fencing)

    def tidy(self) -> None:
        """What an unlearner that lost the lease to this one has written since, not knowing it, leaves the disk."""
        self._store.tidy(keep=self._ref, fencing=self.lease.fencing)

    def span_residual(self) -> float:
        """The span residual of the committed weights, from the surviving rows on disk."""
        return stored_span_residual(self._store, self._ref, digest=self._pointer.digest)

    def has_checkpoint(self) -> bool:
        """Whether the Gram factors of the committed version are on the disk, as they were when it was loaded."""
        return self.resident.from_checkpoint

    def checkpoint_steps(self) -> Iterator[None]:
        """Writes the Gram factors of the committed version beside it; see `model_store.gram_checkpoint`."""
        self._keeper.check()
        folder, digest = self._store.folder_of(self._ref), self._pointer.digest
        return gram_checkpoint.write_steps(folder, self.resident.state.features.gram, version_digest=digest)

    @property
    def _ref(self) -> VersionRef:
        return VersionRef(self._pointer.version, self._pointer.fencing)
