"""Prepare a staged model to replace the served one: without earlier deletions, and repaired."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from model_store.base.base import Base
from model_store.base.edit import Edit
from model_store.store import Store
from model_store.versions import VersionRef
from model_store.work import Work
from projector.forgetting.coefficients import span_residual
from projector.forgetting.repair import RepairOutcome
from projector.forgetting.status import RepairStatus
from projector.forgetting.update import NotFinite
from projector.graph.graph import NO_LABEL
from service.domain.records import Pointer
from service.domain.versions import Version
from service.errors import LetheError
from service.unlearner.deleted_parts import DeletedParts
from service.unlearner.joining_batch import JoiningBatch
from service.unlearner.measurement import stored_span_residual
from service.unlearner.new_version import NewVersion, published_model
from service.unlearner.placement import NotPublishable, Placement
from service.unlearner.resident import Resident


class ImportRefused(LetheError):
    """The model cannot replace the served one."""

    status: ClassVar[int] = 409
    slug = "import-refused"
    title = "Import refused"


@dataclass(frozen=True, eq=False)
class Candidate:
    """An imported model on the device, once its version is committed."""

    pointer: Pointer
    resident: Resident


class Staged:
    """A staged model on the device, from which earlier deletions are removed one slice at a time.

    Always starts from the model as trained, which an interrupted attempt leaves untouched. Call blocking methods on the
    executor.
    """

    def __init__(self, store: Store, base: Base, resident: Resident) -> None:
        """Use `Staged.load`."""
        self._excluded = DeletedParts.nothing()
        self._directions_removed = 0
        self._outcomes: list[RepairOutcome] = []
        self.resident = resident
        #: Its folder, and the folder's content: the model as trained.
        self.store, self.base = store, base

    @classmethod
    def load(cls, store: Store, base: Base, placement: Placement, work: Work) -> "Staged":
        """Put the model as trained on the device, as a step of `work`.

        Raises ImportRefused if it has been served, RepairImpossible, StoreDamaged and DeviceError.
        """
        trained = store.versions()[0]
        state = store.read_version(trained)
        if trained.version != 0:
            raise ImportRefused(
                f"The model was already served: this is its version {trained.version}.",
                "Import the folder as `./lethe train` wrote it.",
            )
        resident = Resident.load(store.manifest, base, state, trained.version, placement, work=work)
        if not resident.is_near_enough:
            resident.begin_repair()
        return cls(store, base, resident)

    def exclude(self, deleted_parts: DeletedParts) -> None:
        """Remove tombstoned data that is still present; under the policy `always` this starts a repair."""
        state, present = self.resident.committed.state, self.resident.committed.live_graph.propagator.edges
        trained = self.resident.committed.live_graph.targets != NO_LABEL
        new = deleted_parts.within(state.live, state.features.in_span, trained)
        new = replace(new, edges=new.edges[present.contain(new.edges)])
        if not new:
            return
        joins = JoiningBatch.without_labels(self.resident.committed, new.labels)
        prepared = self.resident.prepare(new.removals(), joins, budget_s=0.0, is_shown=False)
        self.resident.commit(prepared)
        self._excluded = self._excluded.and_also(new)
        self._directions_removed += prepared.projection.directions_removed
        self._outcomes.append(prepared.outcome)

    @property
    def is_repaired(self) -> bool:
        """Whether no repair is running."""
        return self.resident.repair_in_progress is None

    def advance(self, until: float) -> bool:
        """Continue the repair until `time.monotonic()` reaches `until`; return whether none is left.

        Raises ImportRefused if the repair did not come close enough to retraining for publication.
        """
        if not self.is_repaired:
            try:
                prepared = self.resident.advance_repair(until)
            except NotPublishable as error:
                raise ImportRefused(error.detail, "Train it again, with a smaller --tolerance.") from None
            if prepared is None:
                return False
            self.resident.commit_repair(prepared)
            self._outcomes.append(prepared.outcome)
        return True

    def version(self, before: Pointer) -> NewVersion:
        """Return the model in its present state as the version after `before`. Raises ImportRefused."""
        resident = self.resident
        try:
            predictions = resident.renumber(before.version + 1)
        except NotFinite:
            raise ImportRefused("The model's predictions are not finite.", "Train it again.") from None
        return NewVersion(
            state=resident.committed.state,
            edges=resident.committed.live_graph.edges,
            outcome=_together(self._outcomes),
            rebuilt=self._is_rebuilt,
            deleted=self._excluded.counts,
            edit=Edit.unlabelled(len(self.base.graph.labels), self._excluded.labels, self.base.graph.values),
            directions_removed=self._directions_removed,
            publication=resident.committed.publication,
            snapshot=predictions,
            model=published_model(self.store.manifest, resident.committed),
            replace_state=lambda: None,
        )

    def span_residual(self, version: Version) -> float:
        """Return the span residual of the written version. Rebuilt coefficients are written only after its commit.

        Until then the model on the disk stays as trained, so that an interrupted attempt can start over.
        """
        store, ref = self.store, VersionRef(version.number, version.fencing)
        state = store.read_version(ref, digest=version.digest)
        if not self._is_rebuilt:
            return stored_span_residual(store, state)
        beta, label_beta = self.resident.committed.coefficients()
        [stored] = store.span_chunks(state.featured)
        chunks = (replace(chunk, beta=beta[:, chunk.rows]) for chunk in stored)
        residual = span_residual(state.features.weights, state.features.T, chunks)
        if len(state.labels.weights) == 0:
            return residual
        label_chunks = (replace(chunk, beta=label_beta[:, chunk.rows]) for chunk in store.label_span_chunks(state.live))
        return max(residual, span_residual(state.labels.weights, state.labels.T, label_chunks))

    @property
    def _is_rebuilt(self) -> bool:
        return any(outcome.coefficients is not None for outcome in self._outcomes)


def _together(outcomes: Sequence[RepairOutcome]) -> RepairOutcome:
    """Combine the outcomes of repairs that each continued from the one before."""
    if not outcomes:
        return RepairOutcome(RepairStatus.NONE, None, None)
    steps = [outcome.iterations for outcome in outcomes if outcome.iterations is not None]
    return replace(outcomes[-1], before=outcomes[0].before, iterations=sum(steps) if steps else None)
