"""What is told of versions: of the requests of a batch and its repair, of imports, of recoveries."""

from dataclasses import fields, replace

from model_store.manifest import Manifest
from projector.forgetting.status import RepairStatus
from service.batches.explanation import explain
from service.batches.pending_repairs import Pending, RepairEnd
from service.deletions.requests import AppliedOutcome
from service.domain.kinds import RequestKind
from service.domain.records import BatchRecord, QueuedRequest, RequestNorms
from service.domain.states import Guarantee
from service.domain.versions import Recovery, Version, repaired_in
from service.version import VERSION

_OF_BATCH = tuple(each.name for each in fields(BatchRecord))
_OF_IMPORT = (
    *("span_residual", "repair_iterations", "repair_tolerance", "distance_bound_before", "distance_bound_after"),
    *("distance_bound_before_relative", "distance_bound_after_relative"),
)
_OF_REQUEST = tuple(each.name for each in fields(RequestNorms))


def guarantee(repair: RepairStatus, kind: RequestKind) -> Guarantee:
    """What holds of the weights; the projection alone does nothing for an edge."""
    if repair is RepairStatus.CONVERGED:
        return Guarantee.RETRAINED
    return Guarantee.SPAN if kind.rules.changes_span else Guarantee.GRAPH_ONLY


def applied(record: BatchRecord, norms: RequestNorms, request: QueuedRequest, manifest: Manifest) -> AppliedOutcome:
    """What is told of one request once its batch is applied to the model of that manifest."""
    payload = figures(record, norms, request.kind)
    return AppliedOutcome(
        request_id=request.id,
        guarantee=guarantee(record.repair, request.kind),
        repair=record.repair,
        explanation=explain(record, request.kind, manifest, named=request.count, deleted=norms.deleted),
        payload=payload,
        repaired=payload if record.repair is RepairStatus.CONVERGED else None,
    )


def ended(pending: Pending, end: Version, manifest: Manifest) -> RepairEnd:
    """What is told of one request once the repair it waited for has ended, in the version `end`."""
    return _ended(pending, repaired_in(pending.batch, end), manifest)


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


def imported(version: Version) -> dict[str, object]:
    """The content of the event of an import."""
    return {
        "import": str(version.id),
        # Those excluded among them.
        "nodes": version.live_nodes + version.deleted_nodes,
        "excluded_nodes": version.deleted_nodes,
        "excluded_features": version.deleted_features,
        "excluded_edges": version.deleted_edges,
        "repair": version.repair.value,
        **{name: getattr(version, name) for name in _OF_IMPORT},
        "model_version_before": version.number_before,
        **_of_the_model(version),
    }


def recovered(recovery: Recovery) -> dict[str, object]:
    """The content of the event of a recovery."""
    version = recovery.version
    return {
        "recovery": str(version.id),
        "database_before": recovery.database_before,
        "store_before": recovery.store_before,
        "nodes": version.deleted_nodes,
        "features": version.deleted_features,
        "edges": version.deleted_edges,
        "unknown_nodes": recovery.unknown_nodes,
        **_of_the_model(version),
    }


def _of_the_model(version: Version) -> dict[str, object]:
    return {
        "model": version.model,
        "model_version_after": version.number,
        "weights_sha256_before": version.weights_sha256_before,
        "weights_sha256_after": version.weights_sha256,
        "directions_removed": version.directions_removed,
        "rank_after": version.rank,
        "live_nodes": version.live_nodes,
    }


def _ended(pending: Pending, batch: BatchRecord, manifest: Manifest, reason: str = "") -> RepairEnd:
    words = explain(batch, pending.kind, manifest, named=pending.count, deleted=pending.norms.deleted)
    return RepairEnd(
        request_id=pending.request_id,
        batch=batch,
        guarantee=guarantee(batch.repair, pending.kind),
        explanation=f"{words} {reason}".rstrip(),
        payload=figures(batch, pending.norms, pending.kind),
    )
