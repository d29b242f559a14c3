"""What is told of the requests of a batch, and of its repair: guarantee, words, and the content of their events."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from uuid import UUID

from model_store.manifest import Manifest
from projector.forgetting.status import RepairStatus
from service.db.repairs import Pending, RepairEnd
from service.db.requests import AppliedOutcome
from service.domain.records import BatchRecord, QueuedRequest, RepairRecord, RequestNorms
from service.domain.states import Guarantee, RequestKind
from service.version import VERSION
from service.worker.explanation import explain

_OF_BATCH = tuple(each.name for each in fields(BatchRecord))
_OF_REQUEST = tuple(each.name for each in fields(RequestNorms))


@dataclass(frozen=True)
class Committed:
    """A batch whose version is the committed one, with what the remaining steps need."""

    record: BatchRecord
    #: The requests in it, and what it measured for each.
    requests: Mapping[UUID, QueuedRequest]
    norms: Mapping[UUID, RequestNorms]


@dataclass(frozen=True)
class Repair:
    """How a repair ended for all who waited for it."""

    status: RepairStatus
    #: The version it ended in, and the digest of its weights.
    version: int
    weights_sha256: str
    iterations: int | None
    #: |W_repaired - W_projected|_F / |W_projected|_F.
    weight_change: float | None
    distance_bound: float | None
    distance_bound_relative: float | None
    milliseconds: float
    #: The relative bound up to which it counted as CONVERGED.
    tolerance: float | None = None

    @classmethod
    def of_batch(cls, record: BatchRecord) -> "Repair":
        """The repair that ended within a batch."""
        return cls(
            status=record.repair,
            version=record.model_version_after,
            weights_sha256=record.weights_sha256_after,
            iterations=record.repair_iterations,
            weight_change=record.repair_weight_change,
            distance_bound=record.distance_bound_after,
            distance_bound_relative=record.distance_bound_after_relative,
            milliseconds=record.durations_ms.get("repair", 0.0),
            tolerance=record.repair_tolerance,
        )

    @classmethod
    def of_version(cls, record: RepairRecord) -> "Repair":
        """A repair that ended in a version of its own."""
        return cls(
            status=record.status,
            version=record.model_version_after,
            weights_sha256=record.weights_sha256_after,
            iterations=record.iterations,
            weight_change=record.weight_change,
            distance_bound=record.distance_bound_after,
            distance_bound_relative=record.distance_bound_after_relative,
            milliseconds=record.durations_ms.get("repair", 0.0),
            tolerance=record.repair_tolerance,
        )


def guarantee(repair: RepairStatus, kind: RequestKind) -> Guarantee:
    """What holds of the weights; the projection alone does nothing for an edge."""
    if repair is RepairStatus.CONVERGED:
        return Guarantee.RETRAINED
    return Guarantee.GRAPH_ONLY if kind is RequestKind.EDGE else Guarantee.SPAN


def applied(committed: Committed, request: QueuedRequest, manifest: Manifest) -> AppliedOutcome:
    """What is told of one request once its batch is applied to the model of that manifest."""
    record, norms = committed.record, committed.norms[request.id]
    payload = figures(record, norms, request.kind)
    return AppliedOutcome(
        request_id=request.id,
        guarantee=guarantee(record.repair, request.kind),
        repair=record.repair,
        explanation=explain(record, request.kind, manifest, named=request.count, deleted=norms.deleted),
        payload=payload,
        repaired=payload if record.repair is RepairStatus.CONVERGED else None,
    )


def ended(pending: Pending, repair: Repair, manifest: Manifest) -> RepairEnd:
    """What is told of one request once the repair it waited for has ended."""
    spent = pending.batch.durations_ms
    return _ended(
        pending,
        replace(
            pending.batch,
            repair=repair.status,
            repair_iterations=repair.iterations,
            repair_weight_change=repair.weight_change,
            repair_version=repair.version,
            repair_weights_sha256=repair.weights_sha256,
            repair_tolerance=repair.tolerance,
            distance_bound_after=repair.distance_bound,
            distance_bound_after_relative=repair.distance_bound_relative,
            durations_ms={**spent, "repair": round(spent.get("repair", 0.0) + repair.milliseconds, 3)},
        ),
        manifest,
    )


def without_version(pending: Pending, status: RepairStatus, reason: str, manifest: Manifest) -> RepairEnd:
    """What is told of one request whose repair ended without a version: NOT_CONVERGED, or NONE when nobody wants it."""
    return _ended(pending, replace(pending.batch, repair=status), manifest, reason)


def figures(record: BatchRecord, norms: RequestNorms, kind: RequestKind) -> dict[str, object]:
    """The figures of one request for its audit events; no external id is among them."""
    # Not `asdict`: its deep copies cost more than all else that is done for a request of a batch of one-node requests.
    found: dict[str, object] = {name: getattr(record, name) for name in _OF_BATCH}
    found |= {name: getattr(norms, name) for name in _OF_REQUEST}
    found["software"] = f"lethe {VERSION}"
    found["batch"] = str(found.pop("id"))
    found["kind"] = kind.value
    found["durations_ms"] = dict(record.durations_ms)
    return found


def _ended(pending: Pending, batch: BatchRecord, manifest: Manifest, reason: str = "") -> RepairEnd:
    words = explain(batch, pending.kind, manifest, named=pending.count, deleted=pending.norms.deleted)
    return RepairEnd(
        request_id=pending.request_id,
        batch=batch,
        guarantee=guarantee(batch.repair, pending.kind),
        explanation=f"{words} {reason}".rstrip(),
        payload=figures(batch, pending.norms, pending.kind),
    )
