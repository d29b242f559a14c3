"""Outcomes of a batch's requests, once it is applied and once its repair has ended, with their explanations."""

import math
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from model_store.manifest import Manifest
from projector.forgetting.status import RepairStatus
from service.domain.figures import RequestNorms
from service.domain.formats import at_most, number, percent, rounded_up
from service.domain.kinds import RequestKind
from service.domain.records import BatchRecord, QueuedRequest, RequestAudit
from service.domain.states import Guarantee
from service.domain.versions import Version, repaired_in
from service.log.leaves import AuditFigures
from service.requests.moves import AppliedOutcome
from service.unlearner.pending_repairs import Pending, RepairEnd

#: Appended after the effect of the projection; also true of directions that remaining nodes support faintly.
_SPANNED = (
    "the remaining nodes, trained on or not, support every direction of the deleted features, so the weights already "
    "lay in their span."
)
#: Two weight changes count as equal up to this relative difference.
_SAME = 1e-12
#: Share of a repair's movement above which the explanation reports the earlier distance from the optimum.
_NOTICEABLE = 0.01


def explain(record: BatchRecord, kind: RequestKind, manifest: Manifest, norms: RequestNorms, *, named: int) -> str:
    """Explain what a batch did for a request of `kind` with `named` nodes or edges, and `norms` of its own.

    `manifest` is that of the model.
    """
    deleted, joined = norms.deleted, norms.joined or 0
    sentences = [_projection(record)] if kind.rules.changes_span else []
    sentences += [kind.rules.explanation, _repair(record, kind, manifest)]
    sentences += [] if kind.rules.joins else _encoder(manifest)
    if record.factor_age_s:
        sentences.append(
            "To speed up repairs, a factor of the loss's curvature from before this deletion may stay in memory "
            f"for up to {record.factor_age_s:g} s after it. It is never written to disk and does not influence what "
            "the weights converge to."
        )
    if kind.rules.joins and joined < named:
        sentences.append(
            f"{named - joined} of the {named} nodes and edges did not join, because of an earlier deletion."
        )
    if not kind.rules.joins and deleted < named:
        rest = named - deleted
        were = "was" if rest == 1 else "were"
        sentences.append(f"{rest} of the {named} {kind.rules.noun(named)} that the request names {were} already gone.")
    return " ".join(sentences)


def nothing_left(kind: RequestKind, *, named: int, with_node: int, by: Sequence[UUID]) -> str:
    """Explain that a request had nothing to do because the requests `by` had deleted all of it.

    Empty `by`: the database, restored from an older backup, lacks those requests.
    """
    if kind.rules.joins:
        whose = f": {', '.join(map(str, by))}" if by else ""
        return (
            f"Nothing joined: the {kind.rules.noun(named)} that this request names had been deleted on request{whose}."
        )
    noun = kind.rules.noun(named)
    along = ""
    if with_node:
        along = f", {'' if named == 1 else f'{with_node} of them '}together with a node"
    by_whom = f"by {'request' if len(by) == 1 else 'requests'} {', '.join(map(str, by))}" if by else "before a recovery"
    return f"Nothing was left to do: the {noun} that this request names had already been deleted {by_whom}{along}."


def _projection(record: BatchRecord) -> str:
    sealed = record.commitment_salt is not None
    if record.directions_removed == 0 and sealed:
        return f"The projection removed no direction: {_SPANNED}"
    if record.directions_removed == 0:
        # In directions with few, faint supporters it still removes the deleted nodes' share from the weights.
        of_repair = record.repair_weight_change if record.repair_version == record.model_version_after else None
        same = math.isclose(record.weight_change, of_repair or 0.0, rel_tol=_SAME)
        return f"The projection {'changed nothing' if same else 'removed no direction'}: {_SPANNED}"
    directions = "one direction" if record.directions_removed == 1 else f"{record.directions_removed} directions"
    supporters = "deleted features" if record.features else "deleted nodes"
    norms = f" (together {number(record.lost_direction_norm_before)} before, "
    norms += f"{number(record.lost_direction_norm_after)} after)"
    return (
        f"The projection removed {directions} of the weights that only {supporters} had supported"
        f"{'' if sealed else norms}. The rest lies in the span of the remaining nodes' features."
    )


def _encoder(manifest: Manifest) -> list[str]:
    """Say what deletions do not reach if another model computed the features."""
    if manifest.encoder is None:
        return []
    return [
        f"The features are outputs of the encoder {manifest.encoder.name}, which may have seen the deleted data and "
        "keeps what it learned: only the linear model on top of it forgets."
    ]


def _repair(record: BatchRecord, kind: RequestKind, manifest: Manifest) -> str:
    match record.repair:
        case RepairStatus.CONVERGED:
            parts = manifest.frozen_parts
            kept = f" Retraining here keeps the frozen parts as they are: {'; '.join(parts)}." if parts else ""
            return f"{_converged(record, kind, manifest)}{kept}"
        case RepairStatus.PENDING:
            still = "The repair, which re-optimises the weights on the remaining graph, is under way: until it ends, "
            return f"{still}{_unrepaired(record, kind)}"
        case RepairStatus.NOT_CONVERGED:
            return f"The repair did not converge; an operator should investigate: {_unrepaired(record, kind)}"
        case RepairStatus.NONE:
            return _sentence(_unrepaired(record, kind))


def _converged(record: BatchRecord, kind: RequestKind, manifest: Manifest) -> str:
    if record.commitment_salt is not None:
        return "The repair brought the weights to those of retraining on the remaining graph, within its tolerance."
    later = "" if record.repair_version == record.model_version_after else f" (model version {record.repair_version})"
    those = f"those of retraining, at most {_distance(record)} away from them"
    if not record.repair_weight_change:
        return f"The repair{later} had nothing to do: the weights are {those}."
    moved = (
        f"re-optimised the weights on the remaining graph and moved them by {percent(record.repair_weight_change)}. "
        f"They are now {those}."
    )
    undone = record.distance_bound_start_relative or 0.0
    # Within the tolerance the optimum counts as reached.
    tolerance = record.repair_tolerance or 0.0
    if manifest.training.relative_gradient > tolerance and undone > max(
        tolerance, _NOTICEABLE * record.repair_weight_change
    ):
        return (
            f"The repair{later} {moved} Part of that may not be forgetting: when the deletion began, the weights were "
            f"up to {at_most(undone)} of their size away from the optimum of the graph at that time, because "
            "training had stopped early and no repair had reached the optimum yet."
        )
    share = "did the rest" if kind.rules.changes_span and record.directions_removed else "did the forgetting"
    if kind.rules.joins:
        share = "learned from what joined"
    return f"The repair{later} {share}: it {moved}"


def _unrepaired(record: BatchRecord, kind: RequestKind) -> str:
    """A clause on weights that differ from those of retraining."""
    so_far = " so far" if record.repair is RepairStatus.PENDING else ""
    graph_only = ""
    if kind.rules.joins:
        graph_only = f"what joined is in the graph and not learned{' yet' if so_far else ''}, and "
    elif not kind.rules.changes_span:
        graph_only = f"only the graph has forgotten the {kind.rules.noun(2)}{so_far}, and "
    away = ""
    if record.distance_bound_after is not None and record.commitment_salt is None:
        away = f", but at most {_distance(record)} away from them"
    return f"{graph_only}the weights are not those of retraining{away}."


def _distance(record: BatchRecord) -> str:
    """Format the bound, rounded up."""
    relative = record.distance_bound_after_relative
    if relative is None:
        return f"{rounded_up(record.distance_bound_after, 2):.2g}" if record.distance_bound_after else "0"
    return f"{at_most(relative)} of their size"


def _sentence(clause: str) -> str:
    return clause[0].upper() + clause[1:]


def guarantee(repair: RepairStatus, kind: RequestKind) -> Guarantee:
    """Return the guarantee on the weights; the projection alone does nothing for an edge."""
    if repair is RepairStatus.CONVERGED:
        return Guarantee.RETRAINED
    return Guarantee.SPAN if kind.rules.changes_span else Guarantee.GRAPH_ONLY


def applied(record: BatchRecord, norms: RequestNorms, request: QueuedRequest, manifest: Manifest) -> AppliedOutcome:
    """Return the outcome of one request after its batch was applied to the model of `manifest`."""
    return AppliedOutcome(
        request_id=request.id,
        guarantee=guarantee(record.repair, request.kind),
        repair=record.repair,
        explanation=explain(record, request.kind, manifest, norms, named=request.count),
        content=AuditFigures(request.kind, RequestAudit(record, norms)),
    )


def ended(pending: Pending, end: Version, manifest: Manifest) -> RepairEnd:
    """Return the outcome of one request after the repair it waited for ended in version `end`."""
    return _ended(pending, repaired_in(pending.batch, end), manifest)


def repair_given_up(pending: Pending, status: RepairStatus, reason: str, manifest: Manifest) -> RepairEnd:
    """Return the outcome of one request whose repair ended without a version: NOT_CONVERGED, or NONE if unwanted."""
    return _ended(pending, replace(pending.batch, repair=status), manifest, reason)


def _ended(pending: Pending, batch: BatchRecord, manifest: Manifest, reason: str = "") -> RepairEnd:
    words = explain(batch, pending.kind, manifest, pending.norms, named=pending.count)
    return RepairEnd(
        request_id=pending.request_id,
        batch=batch,
        guarantee=guarantee(batch.repair, pending.kind),
        explanation=f"{words} {reason}".rstrip(),
        content=AuditFigures(pending.kind, RequestAudit(batch, pending.norms)),
    )
