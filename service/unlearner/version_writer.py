"""Make a version of a model, for any cause, in a fixed order of durable steps.

    5  write      write the new version to its own folder; nothing visible changes
    6  commit     one fenced transaction: the pointer, the version's row, the rows of its cause
    7  swap       switch the state on the device, CURRENT, and the source of predictions
    8  apply      record the effects of its cause: the requests of a batch are `applied`
    9  erase      write the coefficients of the weights; erase deleted data and all other versions from the disk
    10 complete   measure the span residual from disk; append to the erasure ledger, if any; one fenced transaction
                  finishes the row

`write` does the first. `commit` does the next two except for the predictions. `finish` does the rest. Each part of
`finish` is idempotent: after a crash or an outage the row alone shows what is left, and all of that is done again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import structlog
from numpy.typing import NDArray

from model_store import gram_checkpoint
from model_store.manifest import Manifest
from model_store.store import Store
from model_store.tombstones import RecordedTombstone
from model_store.versions import VersionRef, VersionState
from projector.certified.publication import Publication
from projector.forgetting.status import RepairStatus
from service import failure_points
from service.db.transactions import CommitUnanswered, fenced_transaction
from service.domain.figures import PublicationFigures
from service.domain.records import Lease, Pointer
from service.domain.states import Cause
from service.domain.versions import Version
from service.failure_points import FailurePoint
from service.predictions.version_rows import PointerRepository, VersionRepository
from service.unlearner.committed import version_state
from service.unlearner.context import Context
from service.unlearner.lease_keeper import LeaseKeeper, pointer_moved
from service.unlearner.measurement import stored_span_residual
from service.unlearner.new_version import (
    CauseSteps,
    NewVersion,
    Stopwatch,
    ToErase,
    committed_facts,
    published_model,
    version_facts,
)
from service.unlearner.resident import Resident
from service.unlearner.securing import secure


class VersionWriter:
    """Makes the versions of one model under one lease. Blocking methods belong on the executor."""

    def __init__(
        self,
        context: Context,
        keeper: LeaseKeeper,
        store: Store,
        resident: Resident,
        pointer: Pointer,
        unerased_edges: NDArray[np.int64],
        *,
        made_from: VersionRef | None = None,
    ) -> None:
        """`unerased_edges` (k, 2) are deleted edges whose erasure may be unfinished.

        `made_from` is the version in `store` that the next one is made from, if not the committed one.
        """
        self._context = context
        self._keeper = keeper
        self._store = store
        self._pointer = pointer
        self._made_from = made_from
        self._to_erase = ToErase(store.nodes, unerased_edges)
        self._log = structlog.get_logger(__name__)
        #: The model on the device.
        self.resident = resident

    @property
    def pointer(self) -> Pointer:
        """The committed version."""
        return self._pointer

    @property
    def manifest(self) -> Manifest:
        """Manifest of the model."""
        return self._store.manifest

    @property
    def lease(self) -> Lease:
        """The lease; raises LeaseLost once it is no longer safely held."""
        return self._keeper.lease

    @property
    def shown_as(self) -> tuple[int, int]:
        """The fencing number and the version of the head that shows the committed version."""
        return self._keeper.fencing, self._pointer.version

    async def write(self, new: NewVersion, own: CauseSteps, watch: Stopwatch) -> Version:
        """Step 5. Raises LeaseLost and OSError."""
        pointer = await watch.time("write", partial(self._write, new, own), self._context.executor)
        failure_points.reached(FailurePoint.WRITTEN, own.cause)
        return self._version(new, own.cause, pointer, watch)

    async def commit(self, version: Version, new: NewVersion, own: CauseSteps, watch: Stopwatch) -> None:
        """Steps 6 and 7. Raises Unavailable if nothing was committed, LeaseLost, and the errors of `own`."""
        await self._move_pointer(version, own)
        failure_points.reached(FailurePoint.COMMITTED, own.cause)
        await watch.time("swap", partial(self._swap, new, version.pointer), self._context.executor)
        failure_points.reached(FailurePoint.SWAPPED, own.cause)

    async def finish(self, version: Version, own: CauseSteps, watch: Stopwatch) -> Version:
        """Steps 8 to 10; return the finished version. Raises Unavailable, OSError and LeaseLost."""
        context, cause = self._context, own.cause
        await self.show()
        failure_points.reached(FailurePoint.SHOWN, cause)
        await own.apply(version)
        committed = await watch.time("erase", partial(self._erase, own), context.executor)
        failure_points.reached(FailurePoint.ERASED, cause)
        measure = partial(stored_span_residual, self._store, committed, context.work)
        residual = await watch.time("verify", measure, context.executor)
        failure_points.reached(FailurePoint.MEASURED, cause)
        # A request is reported as completed only once a restore of everything would repeat it.
        self._keeper.check()
        await secure(context, version)
        failure_points.reached(FailurePoint.SECURED, cause)
        finished = replace(version, span_residual=residual)
        async with fenced_transaction(context.engine, self.lease) as connection:
            durations = dict(watch.durations_ms)
            await VersionRepository(connection).finish(version.id, span_residual=residual, durations_ms=durations)
            await own.complete(connection, finished)
            failure_points.reached(FailurePoint.COMPLETING, cause)
        failure_points.reached(FailurePoint.COMPLETED, cause)
        finished = replace(finished, durations_ms={**version.durations_ms, **durations})
        await own.done(finished)
        self._log.info(
            "version.completed",
            cause=cause.value,
            version=version.number,
            requests=version.requests,
            nodes=version.deleted_nodes,
            repair=version.repair.value,
            bound_relative=version.distance_bound_after_relative,
            durations_ms=finished.durations_ms,
        )
        return finished

    async def show(self) -> None:
        """End step 7: every later prediction comes from the committed version or a newer one.

        Raises OSError and LeaseLost.
        """
        await self._context.run(self._show)

    def publish(self) -> None:
        """Serve predictions from the committed version, replacing any earlier publication. Raises OSError."""
        committed, work = self.resident.committed, self._context.work
        work.begin("Predicting every node", committed.sweep_columns)
        predictions = committed.predictions()
        work.begin("Bounding the distance to retraining", committed.bound_columns)
        model, facts = published_model(self.manifest, committed), committed_facts(committed, self._context.ledger)
        work.begin("Publishing the model")
        self._context.publisher.load(self._ref, model, predictions, facts, self.lease.fencing)

    def withhold(self) -> None:
        """Refuse predictions until a version is shown. Raises OSError."""
        self._context.publisher.withhold(self._ref, self.lease.fencing)

    def erase(self) -> VersionState:
        """Erase deleted nodes, features and edges, and all other versions, from disk and publication.

        Returns the remaining version, which is shown.
        """
        committed = self._store.read_version(self._ref, digest=self._pointer.digest)
        erasure, fencing = self._to_erase.erasure(committed), self.lease.fencing
        self._context.publisher.erase(self._ref, erasure.nodes, erasure.edges)
        self._context.publisher.remove_older(self._ref)
        self._store.erase(erasure, fencing=fencing, keep=self._ref)
        return committed

    def keep_tombstones(self, tombstones: Sequence[RecordedTombstone]) -> None:
        """Add these tombstones to the store's own record, before any of their targets is erased."""
        self._store.add_tombstones(tombstones, fencing=self.lease.fencing)

    def tidy(self) -> None:
        """Remove what an unlearner wrote after losing the lease to this one.

        Publishes again if the publication was removed. Raises OSError and LeaseLost.
        """
        self._store.tidy(keep=self._ref, fencing=self.lease.fencing)
        self._show()
        self._context.publisher.remove_older(self._ref)

    def checkpoint_steps(self) -> Iterator[None]:
        """Write the Gram factors of the committed version beside it; see `model_store.gram_checkpoint`."""
        self._keeper.check()
        folder, digest = self._store.folder_of(self._ref), self._pointer.digest
        return gram_checkpoint.write_steps(folder, self.resident.committed.state.features.gram, version_digest=digest)

    def _write(self, new: NewVersion, own: CauseSteps) -> Pointer:
        self._context.work.begin("Writing the new version")
        number, publication = new.state.version, new.publication
        if publication is not None:
            spent = self._context.ledger.count(number, publication, deletes=new.deletes)
            if spent.nearly_used:
                self._log.warning("promise.nearly_used", publications=spent.publications, share=round(spent.share, 3))
        ref = VersionRef(number, self.lease.fencing)
        try:
            digest = self._store.write_version(
                ref,
                version_state(new.state, publication),
                beta_version=number if new.rebuilt else self._store.beta_version(self._made_from or self._ref),
                edges=new.edges,
                edit=new.edit,
            )
            own.written(ref)
            # An import without a repair has no outcome with a certificate.
            is_import = own.cause is Cause.IMPORT
            certificate = self.resident.committed.certificate if is_import else new.outcome.after
            facts = version_facts(
                new.state, new.edges, certificate, publication, self._context.ledger, new.snapshot.drift
            )
            model = new.model
            if model is None and not self._context.publisher.has(self._ref, self.lease.fencing):
                # The previous version is unpublished: it breaks the promise of noise, or a recovery replaces it.
                model = published_model(self.manifest, self.resident.committed)
            self._context.publisher.write(ref, new.snapshot, facts, model or self._ref)
            if publication is not None:
                # Last: the number counts as published from now on, and a version refused by a full disk must not.
                self._context.publisher.note(number)
        except OSError:
            # A full disk has no room for a version that nobody will read.
            self._store.discard_version(ref)
            raise
        weights = self._store.weights_sha256(ref)
        return Pointer(self._pointer.model, ref.version, ref.fencing, ref.folder, digest, weights)

    async def _move_pointer(self, version: Version, own: CauseSteps) -> None:
        """Step 6."""
        context = self._context
        try:
            async with fenced_transaction(context.engine, self.lease) as connection:
                pointers = PointerRepository(connection)
                if own.cause is Cause.RECOVERY:
                    await pointers.replace(version.pointer)
                else:
                    await pointers.advance(version.number_before, version.pointer)
                await VersionRepository(connection).insert(version)
                await own.record(connection, version)
                failure_points.reached(FailurePoint.COMMITTING, own.cause)
        except CommitUnanswered:
            # The committed version is unknown until the pointer has been read.
            if not await pointer_moved(context.engine, self._keeper, version.pointer, context.outage):
                raise

    def _show(self) -> None:
        if not self._context.publisher.show(self._ref, self.lease.fencing):
            # Someone removed it, for example by clearing /dev/shm.
            self.publish()

    def _swap(self, new: NewVersion, pointer: Pointer) -> None:
        """Step 7."""
        new.replace_state()
        self._pointer = pointer
        self._to_erase.add_edges(new.deleted_edges)
        # Last, because the disk may fail; the next start sets CURRENT from the pointer.
        self._store.set_current(self._ref)

    def _erase(self, own: CauseSteps) -> VersionState:
        """Step 9; the coefficients from before the repair contain the data being erased, as do the Gram factors."""
        for span in self.resident.committed.state.spans:
            span.gram.settle()
        if self._store.stale_coefficients(self._ref):
            self._store.write_beta(
                *self.resident.committed.coefficients(),
                version=self._pointer.version,
                fencing=self.lease.fencing,
                work=self._context.work,
            )
        failure_points.reached(FailurePoint.COEFFICIENTS_WRITTEN, own.cause)
        self._context.work.begin("Erasing what was deleted")
        committed = self.erase()
        failure_points.reached(FailurePoint.GROWING, own.cause)
        self._store.grow(self._ref, fencing=self.lease.fencing, work=self._context.work)
        self._to_erase.erased(committed)
        own.erase()
        return committed

    def _version(self, new: NewVersion, cause: Cause, pointer: Pointer, watch: Stopwatch) -> Version:
        before, after = new.outcome.before, new.outcome.after
        ended = new.outcome.status in (RepairStatus.CONVERGED, RepairStatus.NOT_CONVERGED)
        nodes, features, edges, labels = new.deleted
        publication = new.publication
        return Version(
            id=new.id,
            model=pointer.model,
            number=pointer.version,
            fencing=pointer.fencing,
            cause=cause,
            folder=pointer.folder,
            digest=pointer.digest,
            weights_sha256=pointer.weights_sha256,
            number_before=self._pointer.version,
            weights_sha256_before=self._pointer.weights_sha256,
            rank=new.state.features.gram.rank,
            live_nodes=int(new.state.live.sum()),
            edges=new.edges,
            device=str(new.state.features.W.device),
            durations_ms=dict(watch.durations_ms),
            requests=new.requests,
            deleted_nodes=nodes,
            deleted_features=features,
            deleted_edges=edges,
            deleted_labels=labels,
            directions_removed=new.directions_removed,
            distance_bound_before=None if before is None else before.bound,
            distance_bound_before_relative=None if before is None else before.relative,
            distance_bound_after=None if after is None else after.bound,
            distance_bound_after_relative=None if after is None else after.relative,
            repair=new.outcome.status,
            repair_version=pointer.version if ended else None,
            repair_iterations=new.outcome.iterations if ended else None,
            repair_products=new.outcome.products if ended else None,
            repair_weight_change=new.outcome.weight_change if ended else None,
            repair_tolerance=new.outcome.tolerance if ended else None,
            **vars(new.snapshot.drift),
            **({} if publication is None else vars(_figures(publication))),
        )

    @property
    def _ref(self) -> VersionRef:
        return VersionRef(self._pointer.version, self._pointer.fencing)


def _figures(publication: Publication) -> PublicationFigures:
    promise = publication.promise
    return PublicationFigures(
        publication_epsilon=promise.epsilon,
        publication_delta=promise.delta,
        publications_planned=promise.publications,
        publication_mu=publication.mechanism.mu,
        commitment_salt=publication.commitment_salt.hex(),
    )
