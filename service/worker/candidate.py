"""A staged model made ready to take the served one's place: without what was deleted earlier, and repaired."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from model_store.base_store import Base
from model_store.coefficients import span_residual
from model_store.store import Store
from model_store.versions import VersionRef
from service.domain.records import Imported, Pointer
from service.domain.states import RepairPolicy
from service.errors import LetheError
from service.unlearning.measurement import stored_span_residual
from service.unlearning.repair import Coefficients, RepairOutcome
from service.unlearning.resident import Prepared, Resident, version_state
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


def make_candidate(
    store: Store,
    base: Base,
    tombstoned: Tombstoned,
    before: Pointer,
    fencing: int,
    device: torch.device | str,
    repair: RepairPolicy,
) -> Candidate:
    """The staged model without what is `tombstoned`, as the version after `before`.

    Always from the model as it was trained: an attempt that was interrupted has left that untouched. Raises
    ImportRefused, RepairImpossible, StoreDamaged and DeviceError.
    """
    trained = store.versions()[0]
    state = store.read_version(trained)
    if not state.live.all():
        raise ImportRefused(
            f"The model is not newly trained: {int((~state.live).sum())} of its nodes have been deleted.",
            "Import the folder that `./lethe train` wrote, before it was served.",
        )
    ref = VersionRef(before.version + 1, fencing)
    excluded: Prepared | None = None
    if tombstoned:
        resident = Resident.load(store.manifest, base, state, before.version, device, policy=repair)
        excluded = resident.prepare(tombstoned.removals(), budget_s=math.inf)
        resident.commit(excluded)
    else:
        resident = Resident.load(store.manifest, base, state, ref.version, device, policy=repair)
    predictions = resident.predictions()
    if not np.isfinite(predictions.probabilities).all():
        raise ImportRefused("The model's predictions are not finite.", "Train it again.")
    rebuilt = None if excluded is None else excluded.outcome.coefficients
    digest = store.write_version(
        ref,
        version_state(resident.state),
        beta_version=0 if rebuilt is None else ref.version,
        edges=resident.live_graph.edges,
    )
    store.set_current(ref)
    pointer = Pointer(before.model, ref.version, ref.fencing, ref.folder, digest, store.weights_sha256(ref))
    imported = Imported(
        version_before=before.version,
        version_after=ref.version,
        weights_sha256_before=before.weights_sha256,
        weights_sha256_after=pointer.weights_sha256,
        nodes=store.manifest.nodes,
        excluded_nodes=int(tombstoned.nodes.size),
        excluded_features=int(tombstoned.feature_rows.size),
        excluded_edges=int(tombstoned.edges.shape[0]),
        directions_removed=0 if excluded is None else excluded.projection.directions_removed,
        span_residual=_span_residual(store, ref, digest, rebuilt),
    )
    if excluded is not None:
        imported = _with_repair(imported, excluded.outcome)
    return Candidate(pointer, imported, base, resident, predictions)


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


def _with_repair(imported: Imported, outcome: RepairOutcome) -> Imported:
    before, after = outcome.before, outcome.after
    return replace(
        imported,
        repair=outcome.status,
        repair_iterations=outcome.iterations,
        distance_bound_before=None if before is None else before.bound,
        distance_bound_before_relative=None if before is None else before.relative,
        distance_bound_after=None if after is None else after.bound,
        distance_bound_after_relative=None if after is None else after.relative,
    )
