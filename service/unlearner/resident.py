"""The model resident on the device: batches and repairs computed beside its committed state, and committed."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from model_store.base.base import Base
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
from projector.solvers.preconditioners import ClassBlocks, HessianFactor, preconditioner_steps, why_no_preconditioner
from service.domain.snapshot import Snapshot
from service.domain.states import RepairPolicy
from service.unlearner.committed import Committed, Prepared, PreparedRepair, finite, snapshot_of
from service.unlearner.placement import NotPublishable, Placement, require_repairable


class PreconditionerCache:
    """That for the committed version, its own or one that predates a deletion and may stay for a while."""

    def __init__(self, committed: Committed) -> None:
        self._committed = committed
        self._preconditioner: Preconditioner | None = None
        self._making: Iterator[ClassBlocks | HessianFactor | None] | None = None
        #: Why none is made for this version, once that was asked.
        self._why_none: str | None = None
        self._judged = False

    def usable(self) -> Preconditioner | None:
        """The preconditioner; one that may not stay any longer leaves the memory."""
        if self._preconditioner is not None and self._preconditioner.expired:
            self._preconditioner = None
        return self._preconditioner

    def keep(self, preconditioner: Preconditioner | None) -> None:
        """Another version is the committed one, and this all that is left from before; one under way is given up."""
        self._preconditioner, self._making, self._judged = preconditioner, None, False

    @property
    def due(self) -> bool:
        """Whether `advance` has something to do."""
        usable = self.usable()
        if usable is not None and usable.fresh:
            return False
        return self._making is not None or self.why_none is None

    @property
    def why_none(self) -> str | None:
        """Why none is made for this version, and repairs go without; None if one is."""
        if not self._judged:
            committed = self._committed
            free = committed.free_bytes
            free = None if free is None else free + committed.training_rows.held_bytes
            classes, whole = committed.state.classes, committed.live_graph.factorises
            self._why_none = why_no_preconditioner(committed.representation, classes, whole, free)
            self._judged = True
        return self._why_none

    def advance(self, until: float) -> None:
        """Makes it at the committed weights, from what remains, until `time.monotonic()` reaches `until`.

        When that fails, it is not tried again on this version.
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

    def _steps(self) -> Iterator[ClassBlocks | HessianFactor | None]:
        committed = self._committed
        rows = committed.training_rows
        for _ in rows.steps():
            yield None
        objective = rows.objective(committed.regularization)
        point = objective.at(stacked(committed.state))
        yield from preconditioner_steps(objective, point, rows, committed.live_graph.factorises)


class Resident:
    """One model on one device. `prepare` changes nothing; `commit` makes what was prepared the committed state.

    Under the policy `always` a batch is repaired while it is prepared, for as long as its budget lasts; a repair that
    takes longer goes on with `advance_repair` after the weights reached were committed. A batch that comes in between
    goes on from the weights reached by then, so that a stream of deletions converges on the way.

    In idle time `preconditioner_cache` makes what speeds the next repair up. One that predates a deletion stays for at
    most the placement's `factor_age_s`; all else that was computed with rows that a batch deletes leaves the memory
    when the batch is committed.

    With a promise every new version is published with noise of its own, and none that is too far from retraining.
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
        #: How the next version will be published, its noise drawn already; None until there was time for it.
        self._drawn_ahead: Publication | None = None
        #: The repair of the committed state; the preconditioner, if there is one, has gone over to it.
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
        gram: Gram | None = None,
        work: Work | None = None,
    ) -> "Resident":
        """Puts version `number` of a stored model on the device; see `Committed.load`.

        Raises RepairImpossible for a policy that the model does not allow and, both before any work, DeviceError when
        the device has too little free memory; PromiseError for a promise that cannot be kept for the model.
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
            gram=gram,
            work=work,
        )
        return cls(committed, placement)

    def prepare(self, removals: Sequence[Removal], *, budget_s: float = math.inf, is_shown: bool = True) -> Prepared:
        """Computes all removals at once, beside the committed state, and repairs for at most `budget_s` seconds.

        Unless `is_shown`, nobody sees what it leads to before it is shown by `renumber`, and no promise is kept here.
        Raises NotFinite when the result is not made of finite numbers, and NotPublishable.
        """
        plan, placement = None, self._placement
        if placement.policy is RepairPolicy.ALWAYS:
            plan = RepairPlan(
                budget_s,
                self.committed.free_bytes,
                factor_age_s=placement.factor_age_s,
                tolerance=placement.repair_tolerance,
            )
        forgotten = update(self._reached(), removals, plan)
        # The record speaks of what was committed before, also where the batch goes on from what a repair has reached.
        projection = forgotten.projection.with_weights_of(forgotten.state, self.committed.state)
        forgotten = replace(forgotten, projection=projection)
        state, live_graph, logits = forgotten.state, forgotten.live_graph, forgotten.logits
        if is_shown:
            publication, snapshot = self._published(state, live_graph, forgotten.outcome.after, logits)
        else:
            publication, snapshot = None, finite(state, snapshot_of(state, live_graph, logits))
        return Prepared(**vars(forgotten), publication=publication, snapshot=snapshot)

    def commit(self, prepared: Prepared) -> None:
        """Makes `prepared` the committed state and forgets the removed rows in memory, with all computed from them."""
        self.committed.forget(prepared)
        if self._pending is not None:
            self._pending.close()
        self._end_repair(prepared.repair, is_pending=prepared.outcome.status is RepairStatus.PENDING)

    def begin_repair(self) -> None:
        """Starts a repair of the committed state, for `advance_repair` to carry out."""
        committed = self.committed
        self._pending = RepairRun(
            committed.state, committed.objective, committed.training_rows, self.preconditioner_cache.usable(),
            free=committed.free_bytes, tolerance=self._placement.repair_tolerance,
        )  # fmt: skip
        self.preconditioner_cache.keep(None)

    @property
    def repair_in_progress(self) -> RepairProgress | None:
        """How far the repair of the committed state has come; None when none is under way."""
        # Asked for by other threads as well, while a batch ends it.
        pending = self._pending
        return None if pending is None else pending.progress

    def advance_repair(self, until: float, number: int | None = None) -> PreparedRepair | None:
        """Goes on with the repair of the committed state until `time.monotonic()` reaches `until`.

        `number` is that of the version, where it does not follow that of the committed one.

        Returns the version that would follow once it is finished, None before. Raises NotFinite when it is not made of
        finite numbers, NotPublishable, and RuntimeError when no repair is under way.
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
        """Makes a finished repair the committed state."""
        self.committed.replace(prepared.state, prepared.outcome, prepared.publication)
        self._end_repair(prepared.repair, is_pending=False)

    @property
    def keeps_promise(self) -> bool:
        """Whether the committed version is published as is promised now; without a promise any is."""
        publication = self.committed.publication
        return self._mechanism is None or (
            publication is not None
            and (publication.promise, publication.mechanism) == (self._placement.promise, self._mechanism)
        )

    @property
    def is_near_enough(self) -> bool:
        """Whether the committed weights are as near to retraining as those have to be that are published."""
        certificate = self.committed.certificate
        return self._mechanism is None or (certificate is not None and certificate.bound <= self._mechanism.cap)

    @property
    def draw_due(self) -> bool:
        """Whether the noise of the next version can be drawn before it is there."""
        return self._mechanism is not None and self._drawn_ahead is None

    def draw_ahead(self) -> None:
        """Draws it, in idle time."""
        mechanism = self._mechanism
        assert mechanism is not None
        assert self._placement.promise is not None
        self._drawn_ahead = Publication.drawn(self._placement.promise, mechanism)
        number = self.committed.state.version + 1
        rounded_normal(self._drawn_ahead.secret, number, mechanism.weights, mechanism.bits)

    def renumber(self, number: int) -> Snapshot:
        """The committed state becomes version `number`, published anew. Raises NotFinite and NotPublishable."""
        committed = self.committed
        state = replace(committed.state, version=number)
        committed.publication, snapshot = self._published(
            state, committed.live_graph, None if self._mechanism is None else committed.certificate
        )
        committed.state = state
        return snapshot

    def _published(
        self, state: ModelState, live_graph: LiveGraph, certificate: Certificate | None, logits: Tensor | None = None
    ) -> tuple[Publication | None, Snapshot]:
        """How `state` would be published, and what it predicts then; `logits` (n, C) are its own, where known."""
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
        """What the next repair begins with; None while there is none."""
        return self.preconditioner_cache.usable() if self._pending is None else self._pending.usable()

    def drop_expired(self) -> None:
        """A preconditioner that may not stay any longer leaves the memory."""
        _ = self.preconditioner

    @property
    def prefactor_due(self) -> bool:
        """Whether `preconditioner_cache.advance` has something to do."""
        return self._placement.policy is RepairPolicy.ALWAYS and self._pending is None and self.preconditioner_cache.due

    def _reached(self) -> HeldModel:
        """What a batch starts from: the committed state, or what its repair has reached since."""
        held = self.committed.held(self.preconditioner)
        if self._pending is None or not self._pending.improved:
            return held
        state, outcome = self._pending.repaired()
        features, labels = self.committed.inputs(outcome.coefficients)
        return replace(held, state=state, features=features, labels=labels, is_ahead=True)

    def _end_repair(self, repair: RepairRun | None, *, is_pending: bool) -> None:
        """Keeps of what was computed what holds of the state just committed."""
        preconditioner = None if repair is None else repair.committed()
        self._pending = repair if is_pending else None
        self.preconditioner_cache.keep(None if is_pending else preconditioner)
