"""Versions of a model, whatever made them: what the audit keeps of one, and what readers see of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from projector.forgetting.status import RepairStatus
from service.domain.figures import BatchDetails, RepairFigures, VersionFigures, values_of
from service.domain.records import BatchRecord, Pointer
from service.domain.states import Cause, ImportStatus


@dataclass(frozen=True, kw_only=True)
class Version(VersionFigures, RepairFigures):
    """One committed version: what made it, and what was measured of it."""

    #: That of its batch or of its import, where one of them is its cause.
    id: UUID
    model: str
    number: int
    #: Fencing number of the lease under which it was written.
    fencing: int
    cause: Cause
    #: Folder below `versions/`, SHA-256 (hex) of its manifest, and of its weights.
    folder: str
    digest: str
    weights_sha256: str
    #: The version it was made from; a recovery goes on from one that the database may not know.
    number_before: int
    weights_sha256_before: str
    #: Of the features of the nodes that are left, and how many nodes those are.
    rank: int
    live_nodes: int
    #: Between live nodes, each counted once.
    edges: int
    device: str
    #: Milliseconds by step.
    durations_ms: Mapping[str, float]
    #: Requests in the batch, or that waited for the repair.
    requests: int = 0
    #: What it lacks of what it was made from: nodes, nodes of which the features alone went, and edges by themselves.
    deleted_nodes: int = 0
    deleted_features: int = 0
    deleted_edges: int = 0
    #: How far the repair of its weights has come, and the version in which it ended: its own, or a later one.
    repair: RepairStatus = RepairStatus.NONE
    repair_version: int | None = None
    #: Products with the Hessian of a repair that ended here.
    repair_products: int | None = None

    @property
    def own_repair(self) -> RepairStatus:
        """How far the repair of the weights that it holds came: none where a later version's were repaired for it."""
        return self.repair if self.repair_version in (None, self.number) else RepairStatus.NONE

    @property
    def pointer(self) -> Pointer:
        """It as the committed one."""
        return Pointer(self.model, self.number, self.fencing, self.folder, self.digest, self.weights_sha256)


@dataclass(frozen=True)
class ModelImport:
    """One import: asked for, and what became of it."""

    id: UUID
    model: str
    status: ImportStatus
    #: Whether what was deleted earlier is deleted from the new model instead of refusing it.
    exclude_deleted: bool
    requested_at: datetime
    finished_at: datetime | None = None
    #: Why it was refused and what to do about it.
    refusal: str | None = None
    #: The version it became; None until `committed`.
    version: Version | None = None


@dataclass(frozen=True)
class Recovery:
    """What was done about a store and a database that were not of the same moment."""

    version: Version
    #: Folder of the version that the database had committed; None when it knew of none.
    database_before: str | None
    #: Folder of the version that store before.
    store_before: str
    #: Nodes that the store had deleted and the database knew nothing of.
    unknown_nodes: int


def batch_record(version: Version, details: BatchDetails, end: Version | None) -> BatchRecord:
    """What is told of a batch; `end` is the version in which its repair ended, None while or where there is none."""
    record = BatchRecord(
        id=version.id,
        model=version.model,
        requests=version.requests,
        nodes=version.deleted_nodes,
        features=version.deleted_features,
        edges=version.deleted_edges,
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
    """What is told of a batch whose repair ended in the version `end`, its own or a later one."""
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
        # Once they are of weights published with noise, so are its figures.
        commitment_salt=end.commitment_salt or batch.commitment_salt,
        **values_of(end, RepairFigures),
    )
