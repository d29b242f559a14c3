"""What is told of the requests of a batch once it is applied, and once its repair has ended."""

from dataclasses import replace

from model_store.manifest import Manifest
from projector.forgetting.status import RepairStatus
from service.batches.explanation import explain
from service.batches.pending_repairs import Pending, RepairEnd
from service.deletions.moves import AppliedOutcome
from service.domain.figures import RequestNorms
from service.domain.kinds import RequestKind
from service.domain.records import BatchRecord, QueuedRequest, RequestAudit
from service.domain.states import Guarantee
from service.domain.versions import Version, repaired_in
from service.evidence.contents import AuditFigures


def guarantee(repair: RepairStatus, kind: RequestKind) -> Guarantee:
    """What holds of the weights; the projection alone does nothing for an edge."""
    if repair is RepairStatus.CONVERGED:
        return Guarantee.RETRAINED
    return Guarantee.SPAN if kind.rules.changes_span else Guarantee.GRAPH_ONLY


def applied(record: BatchRecord, norms: RequestNorms, request: QueuedRequest, manifest: Manifest) -> AppliedOutcome:
    """What is told of one request once its batch is applied to the model of that manifest."""
    return AppliedOutcome(
        request_id=request.id,
        guarantee=guarantee(record.repair, request.kind),
        repair=record.repair,
        explanation=explain(record, request.kind, manifest, named=request.count, deleted=norms.deleted),
        content=AuditFigures(request.kind, RequestAudit(record, norms)),
    )


def ended(pending: Pending, end: Version, manifest: Manifest) -> RepairEnd:
    """What is told of one request once the repair it waited for has ended, in the version `end`."""
    return _ended(pending, repaired_in(pending.batch, end), manifest)


def repair_given_up(pending: Pending, status: RepairStatus, reason: str, manifest: Manifest) -> RepairEnd:
    """What is told of one request whose repair ended without a version: NOT_CONVERGED, or NONE when nobody wants it."""
    return _ended(pending, replace(pending.batch, repair=status), manifest, reason)


def _ended(pending: Pending, batch: BatchRecord, manifest: Manifest, reason: str = "") -> RepairEnd:
    words = explain(batch, pending.kind, manifest, named=pending.count, deleted=pending.norms.deleted)
    return RepairEnd(
        request_id=pending.request_id,
        batch=batch,
        guarantee=guarantee(batch.repair, pending.kind),
        explanation=f"{words} {reason}".rstrip(),
        content=AuditFigures(pending.kind, RequestAudit(batch, pending.norms)),
    )
