"""A staged model made ready to take the served one's place: without what was deleted earlier, and repaired."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from model_store.base_store import Base
from model_store.store import Store
from model_store.versions import VersionRef
from projector.forgetting.coefficients import span_residual
from projector.forgetting.optimum import Coefficients
from projector.forgetting.repair import RepairOutcome
from service.domain.records import Imported, Pointer
from service.errors import LetheError
from service.unlearning.loading import version_state
from service.unlearning.measurement import stored_span_residual
from service.unlearning.placement import Placement
from service.unlearning.resident import Resident
from service.unlearning.snapshot import Snapshot
from service.worker.tombstoned import Tombstoned


class ImportRefused(LetheError):
    """A model that cannot take the served one's place."""

    slug = "import-refused"
    title = "Import refused"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A staged model, ready to be committed."""

    pointer: Pointer
    imported: Imported
    base: Base
    resident: Resident
    predictions: Snapshot


class Staged:
    """A staged model on the device, from which what was deleted earlier is taken a slice of work at a time.

    Always from the model as it was trained: an attempt that was interrupted has left that untouched. What blocks
    belongs on the executor.
    """

    def __init__(self, store: Store, base: Base, resident: Resident) -> None:
        """Use `Staged.load`."""
        self._resident = resident
        self._excluded = Tombstoned.nothing()
        self._directions_removed = 0
        self._outcomes: list[RepairOutcome] = []
        #: Its folder, and what is in it: the model as it was trained.
        self.store, self.base = store, base

    @classmethod
    def load(cls, store: Store, base: Base, placement: Placement) -> "Staged":
        """Puts the model as it was trained on the device.

        Raises ImportRefused when it has been served, RepairImpossible, StoreDamaged and DeviceError.
        """
        trained = store.versions()[0]
        state = store.read_version(trained)
        if not state.live.all():
            raise ImportRefused(
                f"The model is not newly trained: {int((~state.live).sum())} of its nodes have been deleted.",
                "Import the folder that `./lethe train` wrote, before it was served.",
            )
        # In this process, whatever it takes: the other is for batches, which come in between.
        alone = replace(placement, process=None)
        return cls(store, base, Resident.load(store.manifest, base, state, trained.version, alone))

    def exclude(self, tombstoned: Tombstoned) -> None:
        """Takes out what is tombstoned and still there; under the policy `always` its repair is then under way."""
        state, edges = self._resident.state, tombstoned.edges
        edges = edges[np.all(state.live[edges], axis=1)]
        new = Tombstoned(
            nodes=tombstoned.nodes[state.live[tombstoned.nodes]],
            feature_rows=tombstoned.feature_rows[(state.live & state.features.in_span)[tombstoned.feature_rows]],
            edges=edges[self._resident.live_graph.propagator.edges.contain(edges)],
        )
        if not new:
            return
        prepared = self._resident.prepare(new.removals(), budget_s=0.0)
        self._resident.commit(prepared)
        self._excluded = self._excluded.and_also(new)
        self._directions_removed += prepared.projection.directions_removed
        self._outcomes.append(prepared.outcome)

    @property
    def is_repaired(self) -> bool:
        """Whether no repair is under way."""
        return self._resident.repairing is None

    def advance(self, until: float) -> bool:
        """Goes on with the repair until `time.monotonic()` reaches `until`; returns whether none is under way."""
        if not self.is_repaired:
            prepared = self._resident.advance_repair(until)
            if prepared is None:
                return False
            self._resident.commit_repair(prepared)
            self._outcomes.append(prepared.outcome)
        return True

    def write(self, before: Pointer, fencing: int) -> Candidate:
        """Writes the model as it is now as the version after `before`, in its own folder; nothing visible changes."""
        store, resident = self.store, self._resident
        ref = VersionRef(before.version + 1, fencing)
        resident.state = replace(resident.state, version=ref.version)
        predictions = resident.predictions()
        if not np.isfinite(predictions.probabilities).all():
            raise ImportRefused("The model's predictions are not finite.", "Train it again.")
        is_rebuilt = any(outcome.coefficients is not None for outcome in self._outcomes)
        rebuilt = resident.coefficients() if is_rebuilt else None
        try:
            digest = store.write_version(
                ref,
                version_state(resident.state),
                beta_version=0 if rebuilt is None else ref.version,
                edges=resident.live_graph.edges,
            )
            store.set_current(ref)
        except OSError:
            # A disk that is full has no room for a version that nobody will read.
            store.discard_version(ref)
            raise
        pointer = Pointer(before.model, ref.version, ref.fencing, ref.folder, digest, store.weights_sha256(ref))
        imported = Imported(
            version_before=before.version,
            version_after=ref.version,
            weights_sha256_before=before.weights_sha256,
            weights_sha256_after=pointer.weights_sha256,
            nodes=store.manifest.nodes,
            excluded_nodes=int(self._excluded.nodes.size),
            excluded_features=int(self._excluded.feature_rows.size),
            excluded_edges=int(self._excluded.edges.shape[0]),
            directions_removed=self._directions_removed,
            span_residual=_span_residual(store, ref, digest, rebuilt),
            rank_after=resident.state.features.gram.rank,
            live_nodes=int(resident.state.live.sum()),
        )
        return Candidate(pointer, _with_repair(imported, self._outcomes), self.base, resident, predictions)


def _span_residual(store: Store, ref: VersionRef, digest: str, rebuilt: Coefficients | None) -> float:
    """The span residual of a staged version; `rebuilt` coefficients are written only once it is committed.

    Until then the model on the disk is as it was trained, and an attempt that is interrupted can begin again.
    """
    if rebuilt is None:
        return stored_span_residual(store, ref, digest=digest)
    state = store.read_version(ref, digest=digest)
    chunks = (replace(chunk, beta=rebuilt.beta[:, chunk.rows]) for chunk in store.span_chunks(state.featured))
    residual = span_residual(state.features.weights, state.features.T, chunks)
    if len(state.labels.weights) == 0:
        return residual
    label_chunks = (
        replace(chunk, beta=rebuilt.label_beta[:, chunk.rows]) for chunk in store.label_span_chunks(state.live)
    )
    return max(residual, span_residual(state.labels.weights, state.labels.T, label_chunks))


def _with_repair(imported: Imported, outcomes: Sequence[RepairOutcome]) -> Imported:
    """`imported` with what the repairs came to, each of which went on from where the one before it ended."""
    if not outcomes:
        return imported
    before, after = outcomes[0].before, outcomes[-1].after
    steps = [outcome.iterations for outcome in outcomes if outcome.iterations is not None]
    return replace(
        imported,
        repair=outcomes[-1].status,
        repair_iterations=sum(steps) if steps else None,
        repair_tolerance=outcomes[-1].tolerance,
        distance_bound_before=None if before is None else before.bound,
        distance_bound_before_relative=None if before is None else before.relative,
        distance_bound_after=None if after is None else after.bound,
        distance_bound_after_relative=None if after is None else after.relative,
    )
