"""Versions of a model, whatever their cause: the audit's record and the readers' view."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from projector.forgetting.status import RepairStatus
from service.domain.figures import BatchDetails, RepairFigures, VersionFigures, values_of
from service.domain.records import BatchRecord, Pointer
from service.domain.states import Cause, ImportStatus


@dataclass(frozen=True, kw_only=True)
class Drift:
    """What is left to train on and to test with, and how well it is predicted: columns of `versions`.

    None for a version from before these were recorded.
    """

    training_nodes: int | None = None
    #: Accuracy on the validation and the test nodes that are left, or R^2 for a regression; None without such nodes.
    score_validation: float | None = None
    score_test: float | None = None


@dataclass(frozen=True, kw_only=True)
class Version(VersionFigures, RepairFigures, Drift):
    """One committed version: its cause and its measurements."""

    #: Id of its batch or import, if one of them is its cause.
    id: UUID
    model: str
    number: int
    #: Fencing number of the lease under which it was written.
    fencing: int
    cause: Cause
    #: Folder below `versions/`, SHA-256 (hex) of the manifest, and SHA-256 of the weights.
    folder: str
    digest: str
    weights_sha256: str
    #: The version that it derives from. A recovery may derive from one unknown to the database.
    number_before: int
    weights_sha256_before: str
    #: Rank of the remaining nodes' features, and number of these nodes.
    rank: int
    live_nodes: int
    #: Edges between live nodes, each counted once.
    edges: int
    device: str
    #: Milliseconds by step.
    durations_ms: Mapping[str, float]
    #: Requests in the batch, or that waited for the repair.
    requests: int = 0
    #: What was removed in this version: nodes, nodes that lost only their features, and edges by themselves.
    deleted_nodes: int = 0
    deleted_features: int = 0
    deleted_edges: int = 0
    deleted_labels: int = 0
    #: Progress of repairing its weights, and the version in which the repair ended: its own, or a later one.
    repair: RepairStatus = RepairStatus.NONE
    repair_version: int | None = None
    #: Products with the Hessian during a repair that ended here.
    repair_products: int | None = None

    @property
    def own_repair(self) -> RepairStatus:
        """Progress of repairing the weights of this version itself: NONE if a later version's were repaired instead."""
        return self.repair if self.repair_version in (None, self.number) else RepairStatus.NONE

    @property
    def pointer(self) -> Pointer:
        """This version as the committed one."""
        return Pointer(self.model, self.number, self.fencing, self.folder, self.digest, self.weights_sha256)


@dataclass(frozen=True)
class ModelImport:
    """One import: the request for it, and its result."""

    id: UUID
    model: str
    status: ImportStatus
    #: Whether earlier deletions are repeated on the new model, instead of refusing it.
    exclude_deleted: bool
    #: Whether it may lack nodes that were added to the served model.
    without_added: bool
    requested_at: datetime
    finished_at: datetime | None = None
    #: Why it was refused, and the remedy.
    refusal: str | None = None
    #: The resulting version; None until `committed`.
    version: Version | None = None


@dataclass(frozen=True)
class LedgerReplay:
    """What a recovery found in the erasure ledger and not in the database."""

    #: Entries that the database did not know.
    entries: int
    #: Number and SHA-256 of the newest entry.
    head: int
    head_sha256: str
    #: Tombstones in these entries that had to be in force again, and how many of what they name had joined again.
    tombstones: int
    rejoined: int
    #: Requests in these entries, of any kind.
    requests: int
    #: Leaves of the log when the newest entry was written.
    log_size: int


@dataclass(frozen=True)
class Recovery:
    """Repair of a mismatch between a store and a database of different moments."""

    version: Version
    #: Folder of the version that the database had committed; None if it knew none.
    database_before: str | None
    #: Folder of the store's version before.
    store_before: str
    #: Nodes deleted in the store but unknown to the database.
    unknown_nodes: int
    #: What the erasure ledger gave it; None without one, and as read from the database: the log has it.
    ledger: LedgerReplay | None = None


def batch_record(version: Version, details: BatchDetails, end: Version | None) -> BatchRecord:
    """Return the record of a batch; `end` is the version in which its repair ended, None if not (yet) repaired."""
    record = BatchRecord(
        id=version.id,
        model=version.model,
        requests=version.requests,
        nodes=version.deleted_nodes,
        features=version.deleted_features,
        edges=version.deleted_edges,
        labels=version.deleted_labels,
        model_version_before=version.number_before,
        model_version_after=version.number,
        weights_sha256_before=version.weights_sha256_before,
        weights_sha256_after=version.weights_sha256,
        rank_after=version.rank,
        live_nodes=version.live_nodes,
        device=version.device,
        durations_ms=version.durations_ms,
        repair=version.repair,
        **values_of(version, VersionFigures),
        **values_of(details, BatchDetails),
    )
    return record if end is None else repaired_in(record, end)


def repaired_in(batch: BatchRecord, end: Version) -> BatchRecord:
    """Return the record of a batch whose repair ended in version `end`, its own or a later one."""
    durations = dict(batch.durations_ms)
    if end.number != batch.model_version_after:
        durations["repair"] = round(durations.get("repair", 0.0) + end.durations_ms.get("repair", 0.0), 3)
    return replace(
        batch,
        repair=end.repair,
        repair_version=end.number,
        repair_weights_sha256=end.weights_sha256,
        distance_bound_after=end.distance_bound_after,
        distance_bound_after_relative=end.distance_bound_after_relative,
        durations_ms=durations,
        # Once the repaired weights are published with noise, so are the batch's figures.
        commitment_salt=end.commitment_salt or batch.commitment_salt,
        **values_of(end, RepairFigures),
    )
