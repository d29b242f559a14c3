"""The model resident on the device: compute batches and repairs beside its committed state, and commit them."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from model_store.base.base import Base
from model_store.base.edit import EditedRows
from model_store.manifest import Manifest
from model_store.versions import VersionState
from model_store.work import Work
from projector.certified.mechanism import mechanism_for, shown
from projector.certified.noise import rounded_normal
from projector.certified.publication import Publication
from projector.forgetting.batch import ModelState, Removal
from projector.forgetting.certificate import Certificate
from projector.forgetting.gram import Gram
from projector.forgetting.live_graph import LiveGraph
from projector.forgetting.optimum import stacked
from projector.forgetting.preconditioner import Preconditioner
from projector.forgetting.repair import RepairRun
from projector.forgetting.status import RepairProgress, RepairStatus
from projector.forgetting.update import HeldModel, RepairPlan, require_finite, update
from projector.solvers.preconditioners import Inverse, preconditioner_steps
from service.domain.snapshot import Snapshot
from service.domain.states import RepairPolicy
from service.unlearner.committed import Committed, Prepared, PreparedRepair, finite, snapshot_of
from service.unlearner.joining_batch import JoiningBatch
from service.unlearner.placement import NotPublishable, Placement, require_repairable


class PreconditionerCache:
    """The preconditioner for the committed version, which may for a while predate a deletion."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._preconditioner: Preconditioner | None = None
        self._making: Iterator[Inverse | None] | None = None
        #: Why this version gets none, once checked.
        self._why_none: str | None = None
        self._judged = False

    def usable(self) -> Preconditioner | None:
        """Return the preconditioner; drop an expired one from memory."""
        if self._preconditioner is not None and self._preconditioner.expired:
            self._preconditioner = None
        return self._preconditioner

    def keep(self, preconditioner: Preconditioner | None) -> None:
        """Start with another committed version, keeping only `preconditioner`; drop an unfinished one."""
        self._preconditioner, self._making, self._judged = preconditioner, None, False

    @property
    def due(self) -> bool:
        """Whether `advance` has work to do."""
        usable = self.usable()
        if usable is not None and usable.fresh:
            return False
        return self._making is not None or self.why_none is None

    @property
    def why_none(self) -> str | None:
        """Why repairs of this version go without a preconditioner; None if they get one."""
        if not self._judged:
            committed = self._committed
            free = committed.free_bytes
            free = None if free is None else free + committed.training_rows.held_bytes
            self._why_none = committed.training_rows.why_no_preconditioner(committed.state.classes, free)
            self._judged = True
        return self._why_none

    def advance(self, until: float) -> None:
        """Compute it at the committed weights, from the remaining data, until `time.monotonic()` reaches `until`.

        A failure is not retried on this version.
        """
        if self._making is None:
            self._making = self._steps()
        try:
            while self._making is not None and time.monotonic() < until:
                inverse = next(self._making)
                if inverse is not None:
                    self._preconditioner, self._making = Preconditioner(inverse), None
        except Exception as error:
            self._making = None
            self._why_none, self._judged = f"it could not be made: {error}", True
            raise

    def _steps(self) -> Iterator[Inverse | None]:
        committed = self._committed
        rows = committed.training_rows
        for _ in rows.steps():
            yield None
        objective = rows.objective(committed.regularization)
        point = objective.at(stacked(committed.state))
        yield from preconditioner_steps(objective, point, rows, committed.live_graph.factorises)


class Resident:
    """One model on one device. `prepare` changes nothing; `commit` commits a prepared state.

    Under the policy `always`, `prepare` repairs a batch within its budget. A longer repair continues with
    `advance_repair` after the weights reached were committed. A batch that arrives meanwhile continues from the weights
    reached, so that a stream of deletions converges on the way.

    In idle time `preconditioner_cache` computes what speeds up the next repair. One that predates a deletion stays for
    at most the placement's `factor_age_s`. Everything else computed with deleted rows leaves the memory when the batch
    is committed; the Gram factors of wide sparse features when `Gram.settle` is called, before the erasure.

    With a promise, every new version is published with its own noise, and none that is too far from retraining.
    """

    def __init__(self, committed: Committed, placement: Placement) -> None:
        self.committed = committed
        self.preconditioner_cache = PreconditionerCache(committed)
        self._placement = placement
        #: The noise that keeps the promise; None without one.
        self._mechanism = None if placement.promise is None else mechanism_for(
            placement.promise, committed.state, committed.live_graph.loss, committed.regularization,
            placement.repair_tolerance,
        )  # fmt: skip
        #: Publication of the next version with its noise, drawn in advance; None until drawn.
        self._drawn_ahead: Publication | None = None
        #: The repair of the committed state; it has taken over the preconditioner, if any.
        self._pending: RepairRun | None = None

    @classmethod
    def load(
        cls,
        manifest: Manifest,
        base: Base,
        version: VersionState,
        number: int,
        placement: Placement,
        *,
        stale_coefficients: bool = False,
        edited: Sequence[EditedRows] = (),
        gram: Gram | None = None,
        work: Work | None = None,
    ) -> "Resident":
        """Put version `number` of a stored model on the device; see `Committed.load`.

        Raises RepairImpossible if the model does not allow the policy, and DeviceError if the device has too little
        free memory, both before any work. Raises PromiseError if the promise cannot be kept for the model.
        """
        if placement.policy is RepairPolicy.ALWAYS:
            require_repairable(manifest.spec)
        committed = Committed.load(
            manifest,
            base,
            version,
            number,
            placement.device,
            stale_coefficients=stale_coefficients,
            edited=edited,
            gram=gram,
            work=work,
        )
        return cls(committed, placement)

    def prepare(
        self,
        removals: Sequence[Removal],
        joins: JoiningBatch | None = None,
        *,
        budget_s: float = math.inf,
        is_shown: bool = True,
    ) -> Prepared:
        """Compute all removals, then what joins, beside the committed state; repair for at most `budget_s` seconds.

        Unless `is_shown`, the result stays hidden until `renumber` shows it, and no promise applies here. Raises
        NotFinite if the result is not finite, and NotPublishable.
        """
        plan, placement = None, self._placement
        if placement.policy is RepairPolicy.ALWAYS:
            plan = RepairPlan(
                budget_s,
                self.committed.free_bytes,
                factor_age_s=placement.factor_age_s,
                tolerance=placement.repair_tolerance,
            )
        joins = joins or JoiningBatch.nothing(self.committed)
        forgotten = update(self._reached(), removals, plan, joins.joining)
        # The record compares with the committed weights, even if the batch continues from a repair.
        projection = forgotten.projection.with_weights_of(forgotten.state, self.committed.state)
        forgotten = replace(forgotten, projection=projection)
        state, live_graph, logits = forgotten.state, forgotten.live_graph, forgotten.logits
        if is_shown:
            publication, snapshot = self._published(state, live_graph, forgotten.outcome.after, logits)
        else:
            publication, snapshot = None, finite(state, snapshot_of(state, live_graph, logits))
        label_rows = np.concatenate([removal.labels for removal in removals])
        edit = joins.edit(self.committed, forgotten, label_rows)
        return Prepared(**vars(forgotten), publication=publication, snapshot=snapshot, label_rows=label_rows, edit=edit)

    def commit(self, prepared: Prepared) -> None:
        """Commit `prepared`; clear the removed rows, and everything computed from them, from memory."""
        self.committed.forget(prepared)
        if self._pending is not None:
            self._pending.close()
        self._end_repair(prepared.repair, is_pending=prepared.outcome.status is RepairStatus.PENDING)

    def begin_repair(self) -> None:
        """Start a repair of the committed state, for `advance_repair` to carry out."""
        committed = self.committed
        self._pending = RepairRun(
            committed.state, committed.objective, committed.training_rows, self.preconditioner_cache.usable(),
            free=committed.free_bytes, tolerance=self._placement.repair_tolerance,
        )  # fmt: skip
        self.preconditioner_cache.keep(None)

    @property
    def repair_in_progress(self) -> RepairProgress | None:
        """Progress of the repair of the committed state; None if none is running."""
        # Other threads read this as well, while a batch may end the repair.
        pending = self._pending
        return None if pending is None else pending.progress

    def advance_repair(self, until: float, number: int | None = None) -> PreparedRepair | None:
        """Continue the repair of the committed state until `time.monotonic()` reaches `until`.

        `number` is the version's number if it does not follow the committed one. Returns the next version once the
        repair is finished, None before. Raises NotFinite if it is not finite, NotPublishable, and RuntimeError if no
        repair is running.
        """
        if self._pending is None:
            raise RuntimeError("no repair is under way")
        if not self._pending.advance(until):
            return None
        state, outcome = self._pending.repaired()
        state = replace(state, version=self.committed.state.version + 1 if number is None else number)
        require_finite(state)
        publication, snapshot = self._published(state, self.committed.live_graph, outcome.after)
        return PreparedRepair(state, outcome, publication, snapshot, self._pending)

    def commit_repair(self, prepared: PreparedRepair) -> None:
        """Commit a finished repair."""
        self.committed.replace(prepared)
        self._end_repair(prepared.repair, is_pending=False)

    @property
    def keeps_promise(self) -> bool:
        """Whether the committed version's publication keeps the current promise; always true without a promise."""
        publication = self.committed.publication
        return self._mechanism is None or (
            publication is not None
            and (publication.promise, publication.mechanism) == (self._placement.promise, self._mechanism)
        )

    @property
    def is_near_enough(self) -> bool:
        """Whether the committed weights are close enough to retraining to be published."""
        certificate = self.committed.certificate
        return self._mechanism is None or (certificate is not None and certificate.bound <= self._mechanism.cap)

    @property
    def draw_due(self) -> bool:
        """Whether the next version's noise can be drawn in advance."""
        return self._mechanism is not None and self._drawn_ahead is None

    def draw_ahead(self) -> None:
        """Draw the next version's noise in idle time."""
        mechanism = self._mechanism
        assert mechanism is not None
        assert self._placement.promise is not None
        self._drawn_ahead = Publication.drawn(self._placement.promise, mechanism)
        number = self.committed.state.version + 1
        rounded_normal(self._drawn_ahead.secret, number, mechanism.weights, mechanism.bits)

    def renumber(self, number: int) -> Snapshot:
        """Renumber the committed state to version `number` and publish it. Raises NotFinite and NotPublishable."""
        committed = self.committed
        state = replace(committed.state, version=number)
        committed.publication, snapshot = self._published(
            state, committed.live_graph, None if self._mechanism is None else committed.certificate
        )
        committed.state, committed.drift = state, snapshot.drift
        return snapshot

    def _published(
        self, state: ModelState, live_graph: LiveGraph, certificate: Certificate | None, logits: Tensor | None = None
    ) -> tuple[Publication | None, Snapshot]:
        """Return the publication of `state` and its predictions; pass its own `logits` (n, C) if known."""
        if self._mechanism is None:
            return None, finite(state, snapshot_of(state, live_graph, logits))
        assert self._placement.promise is not None
        if certificate is None or not certificate.bound <= self._mechanism.cap:
            raise NotPublishable(
                "The repair did not bring the weights close enough to those of retraining for publication.",
                "It is retried. If this persists, use a larger --repair-tolerance, which means more noise.",
            )
        publication = self._drawn_ahead or Publication.drawn(self._placement.promise, self._mechanism)
        self._drawn_ahead = None
        return publication, finite(state, snapshot_of(shown(publication, state, certificate), live_graph))

    @property
    def preconditioner(self) -> Preconditioner | None:
        """The preconditioner for the next repair; None if none exists."""
        return self.preconditioner_cache.usable() if self._pending is None else self._pending.usable()

    def drop_expired(self) -> None:
        """Drop an expired preconditioner from memory."""
        _ = self.preconditioner

    @property
    def prefactor_due(self) -> bool:
        """Whether `preconditioner_cache.advance` has work to do."""
        return self._placement.policy is RepairPolicy.ALWAYS and self._pending is None and self.preconditioner_cache.due

    def _reached(self) -> HeldModel:
        """Return the starting point of a batch: the committed state, or the state that its repair has reached."""
        held = self.committed.held(self.preconditioner)
        if self._pending is None or not self._pending.improved:
            return held
        state, outcome = self._pending.repaired()
        features, labels = self.committed.inputs(outcome.coefficients)
        return replace(held, state=state, features=features, labels=labels, is_ahead=True)

    def _end_repair(self, repair: RepairRun | None, *, is_pending: bool) -> None:
        """Keep the computed parts that are valid for the state just committed."""
        preconditioner = None if repair is None else repair.committed()
        self._pending = repair if is_pending else None
        self.preconditioner_cache.keep(None if is_pending else preconditioner)
