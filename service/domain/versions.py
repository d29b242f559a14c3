"""Versions of a model, whatever made them, as the audit keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from projector.forgetting.status import RepairStatus
from service.domain.records import BatchRecord, Pointer
from service.domain.states import Cause, ImportStatus


@dataclass(frozen=True, kw_only=True)
class Version:
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
    #: Directions of the weights that only these had supported.
    directions_removed: int = 0
    #: Recomputed from the rows on disk; None until then.
    span_residual: float | None = None
    #: Bounds on |W - W_u|_F, W_u the optimum on the remaining graph, before repair and of the weights that this version
    #: holds, and relative to |W|_F; None where there is no certificate, or W = 0.
    distance_bound_before: float | None = None
    distance_bound_after: float | None = None
    distance_bound_before_relative: float | None = None
    distance_bound_after_relative: float | None = None
    #: How far the repair of its weights has come, and the version in which it ended: its own, or a later one.
    repair: RepairStatus = RepairStatus.NONE
    repair_version: int | None = None
    #: Newton steps, products with the Hessian, and |W - W_projected|_F / |W_projected|_F of a repair that ended here.
    repair_iterations: int | None = None
    repair_products: int | None = None
    repair_weight_change: float | None = None
    #: The relative bound up to which it counted as converged.
    repair_tolerance: float | None = None

    @property
    def own_repair(self) -> RepairStatus:
        """How far the repair of the weights that it holds came: none where a later version's were repaired for it."""
        return self.repair if self.repair_version in (None, self.number) else RepairStatus.NONE

    @property
    def pointer(self) -> Pointer:
        """It as the committed one."""
        return Pointer(self.model, self.number, self.fencing, self.folder, self.digest, self.weights_sha256)


@dataclass(frozen=True)
class BatchDetails:
    """What is measured of a batch alone; see `BatchRecord`."""

    rank_before: int
    weight_change: float
    coefficient_residual: float
    lost_direction_norm_before: float | None
    lost_direction_norm_after: float | None
    factor_method: str
    distance_bound_start_relative: float | None
    factor_age_s: float | None = None


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
    #: Folder of the version that the store was at.
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
        rank_before=details.rank_before,
        rank_after=version.rank,
        directions_removed=version.directions_removed,
        lost_direction_norm_before=details.lost_direction_norm_before,
        lost_direction_norm_after=details.lost_direction_norm_after,
        weight_change=details.weight_change,
        coefficient_residual=details.coefficient_residual,
        factor_method=details.factor_method,
        device=version.device,
        durations_ms=version.durations_ms,
        span_residual=version.span_residual,
        distance_bound_start_relative=details.distance_bound_start_relative,
        distance_bound_before=version.distance_bound_before,
        distance_bound_after=version.distance_bound_after,
        distance_bound_before_relative=version.distance_bound_before_relative,
        distance_bound_after_relative=version.distance_bound_after_relative,
        repair=version.repair,
        factor_age_s=details.factor_age_s,
        live_nodes=version.live_nodes,
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
        repair_iterations=end.repair_iterations,
        repair_weight_change=end.repair_weight_change,
        repair_version=end.number,
        repair_weights_sha256=end.weights_sha256,
        repair_tolerance=end.repair_tolerance,
        distance_bound_after=end.distance_bound_after,
        distance_bound_after_relative=end.distance_bound_after_relative,
        durations_ms=durations,
    )
