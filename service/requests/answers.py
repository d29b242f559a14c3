"""Answers of the deletion routes, built from records of the other layers, with examples for /docs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_type_hints
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, create_model

from projector.forgetting.status import RepairStatus
from service.domain.figures import FIGURES, Form, RequestNorms
from service.domain.kinds import RequestKind
from service.domain.records import BatchRecord, DeletionRequest, RequestAudit, Targets
from service.domain.states import Guarantee, RequestStatus

_ID = "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11"
_EARLIER = "0197f3b0-11aa-7d02-8e4f-6b1c2d3e4f50"
_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_TIMES: dict[str, Any] = {
    "received_at": "2026-03-02T09:15:04.120000Z",
    "applied_at": "2026-03-02T09:15:04.310000Z",
    "completed_at": "2026-03-02T09:15:04.420000Z",
    "failed_at": None,
    "cancelled_at": None,
    "due_at": "2026-04-01T09:15:04.120000Z",
    "late": False,
    "handled_at": None,
    "handled_by": None,
    "handles": [],
    "held_at": None,
    "waits_for": None,
}

ACCEPTED: dict[str, Any] = {
    "id": _ID,
    "status": "queued",
    "kind": "node",
    "count": 1,
    "received_at": _TIMES["received_at"],
    "due_at": _TIMES["due_at"],
    "links": {"self": f"/deletions/{_ID}"},
    "salts": {
        "nodes": {"57": "5f1d7a84db00d2fce00b31a7fc73224f"},
        "reference": "c0535e4be2b79ffd93291305436bf889",
    },
    "already_deleted": {"12": _EARLIER},
}

DELETION: dict[str, Any] = {
    "id": _ID,
    "status": "completed",
    "kind": "node",
    "count": 2,
    "reference": "DSR-17",
    **_TIMES,
    "guarantee": "retrained",
    "repair": "converged",
    "explanation": "The projection changed nothing: … The repair did the forgetting: …",
    "failure": None,
    "already_deleted_by": None,
    "links": {"self": f"/deletions/{_ID}"},
    "audit": {
        "batch": {
            "id": "0197f3c2-7000-7aaa-8bbb-3c4d5e6f7a8b",
            "requests": 5,
            "nodes": 9,
            "features": 0,
            "edges": 2,
            "labels": 0,
        },
        **{name: figure.example for name, figure in FIGURES.items() if figure.in_answers},
    },
}

#: Without its audit, as in lists.
_LISTED: dict[str, Any] = {**DELETION, "audit": None}

PAGE: dict[str, Any] = {"deletions": [_LISTED], "next_cursor": None}

SEARCH: dict[str, Any] = {
    "found": [{"node": "12", "deletion": DELETION}],
    "not_found": ["57"],
}

RECEIPT: dict[str, Any] = {
    "format": "lethe-receipt/1",
    "request_id": _ID,
    "summary": {
        "model": "cora",
        "kind": "node",
        "count": 1,
        "received_at": _TIMES["received_at"],
        "applied_at": _TIMES["applied_at"],
        "status": "applied",
        "what_was_done": "The projection changed nothing: no direction was supported by these nodes alone.",
        "guarantee": "span",
        "figures": {"injected_norm_before": 0.23, "injected_norm_after": 0},
        "since": [],
    },
    "entries": [
        {
            "leaf": {
                "format": "lethe-leaf/1",
                "index": 3,
                "event": 4,
                "request_id": _ID,
                "type": "applied",
                "time": _TIMES["applied_at"],
                "details": {"injected_norm_before": 0.23, "injected_norm_after": 0},
                "request": {"model": "cora", "kind": "node", "count": 1, "received_at": _TIMES["received_at"]},
                "subjects": [_DIGEST],
                "reference": None,
            },
            "inclusion_proof": [_DIGEST, _DIGEST],
        }
    ],
    "since": [],
    "checkpoint": "lethe/2c26b46b68ffc68f\n4\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n— …\n",
    "public_keys": ["lethe/2c26b46b68ffc68f+033de0ae+Ac4zjqAGeLXHbjg3r4eNVFCSZ1dPLrHh2iDPVlGJWJUb"],
}


class Links(BaseModel):
    """The URL of the request."""

    self: str


class Salts(BaseModel):
    """Secret salts of the transparency log's commitments to the ids and the reference; returned only once."""

    nodes: dict[str, str] = Field(description="Hex salt by node id.")
    reference: str | None = Field(description="Hex salt of the reference; null without one.")


class AcceptedDeletion(BaseModel):
    """Acknowledges a deletion request; its later state is at `links.self`."""

    model_config = ConfigDict(json_schema_extra={"examples": [ACCEPTED]})

    id: UUID
    status: RequestStatus = Field(description="`queued`, or `completed` if everything in it was deleted before.")
    kind: RequestKind
    count: int = Field(
        description="Number of nodes or edges in this request; with deletions:read, without those deleted "
        "before, if any is left."
    )
    received_at: datetime
    due_at: datetime = Field(description="Deadline.")
    links: Links
    salts: Salts | None = Field(description="Keep them to link the audit to a person later; null once erased.")
    already_deleted: dict[str, UUID | None] = Field(
        description="Node ids, or `a|b` for edges, that an earlier request deleted, with that request (null where the "
        "database, restored from an older backup, does not have it); always empty without deletions:read."
    )


class BatchAnswer(BaseModel):
    """The model update that applied a request."""

    id: UUID
    requests: int
    nodes: int = Field(description="Nodes deleted entirely.")
    features: int = Field(description="Nodes whose features were deleted.")
    edges: int = Field(description="Edges deleted on request; those of deleted nodes are not counted.")
    labels: int = Field(description="Nodes whose labels were withdrawn from training.")


class _Audit(BaseModel):
    """Measurements before and after; inapplicable quantities are null.

    If weights are published with noise, figures computed from them are null too for keys without audit:read.
    """

    model_config = ConfigDict(protected_namespaces=())

    batch: BatchAnswer


if TYPE_CHECKING:
    AuditAnswer = _Audit
else:
    _HINTS = get_type_hints(BatchRecord) | get_type_hints(RequestNorms)
    AuditAnswer = create_model(
        "AuditAnswer",
        __base__=_Audit,
        __doc__=_Audit.__doc__,
        **{
            name: (
                _HINTS[name] | None if figure.is_exact and figure.form is not Form.BY_STEP else _HINTS[name],
                Field(description=figure.description),
            )
            for name, figure in FIGURES.items()
            if figure.in_answers
        },
    )


class DeletionAnswer(BaseModel):
    """The state of a deletion request."""

    model_config = ConfigDict(json_schema_extra={"examples": [DELETION]})

    id: UUID
    status: RequestStatus
    kind: RequestKind
    count: int
    reference: str | None = Field(description="For completed requests, only with the scope audit:read.")
    received_at: datetime
    due_at: datetime = Field(description="Deadline, including extensions.")
    late: bool | None = Field(
        description="Whether it ended after `due_at` or is still open past it; null before the deadline, and for held "
        "and cancelled requests."
    )
    applied_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    cancelled_at: datetime | None
    handled_at: datetime | None = Field(description="When the failed request was handled; open until then.")
    handled_by: UUID | None = Field(description="The later request that handled it by deleting the same ids.")
    handles: list[UUID] = Field(description="Failed requests that this one handled; empty in lists.")
    held_at: datetime | None = Field(description="Since when the request is on hold; null if it is not.")
    waits_for: UUID | None = Field(
        description="The held request behind which it waits, because both name the same; only with audit:read."
    )
    guarantee: Guarantee | None = Field(description="What is guaranteed about the weights.")
    repair: RepairStatus | None
    explanation: str | None = Field(description="What was done, in a sentence or two.")
    failure: str | None = Field(description="Why the request failed, and what to do.")
    already_deleted_by: UUID | None = Field(
        description="The request that left this one nothing to do; null also when the database, restored from "
        "an older backup, does not know it."
    )
    links: Links
    audit: AuditAnswer | None = Field(description="From `applied` on; null in lists.")


class DeletionPage(BaseModel):
    """A page of requests, newest first."""

    model_config = ConfigDict(json_schema_extra={"examples": [PAGE]})

    deletions: list[DeletionAnswer]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last page.")


class FoundDeletion(BaseModel):
    """A node that was deleted, or whose features were, and the request that did it."""

    node: str
    deletion: DeletionAnswer | None = Field(
        description="Null if the database, restored from an older backup, does not have the request; only keys with "
        "audit:read find such a node."
    )


class SearchAnswer(BaseModel):
    """Those of the given nodes that were deleted, each with its request; without nodes, a page of requests."""

    model_config = ConfigDict(json_schema_extra={"examples": [SEARCH]})

    found: list[FoundDeletion]
    not_found: list[str] = Field(description="Ids that no visible, matching request has deleted.")
    deletions: list[DeletionAnswer] | None = Field(
        description="A page of the requests found, newest first, each with its audit; null when nodes were asked for."
    )
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last page.")


def links_of(request_id: UUID, kind: RequestKind = RequestKind.NODE) -> Links:
    """Build the links of a request."""
    return Links(self=f"/{kind}s/{request_id}" if kind.rules.joins else f"/deletions/{request_id}")


def accepted_deletion(
    request: DeletionRequest, targets: Targets | None, already_deleted: Mapping[str, UUID | None]
) -> AcceptedDeletion:
    """Build the 202 answer; `targets` is None for a finished request, whose salts are erased."""
    unfinished = targets is not None
    return AcceptedDeletion(
        id=request.id,
        # A replay repeats the first answer, without later changes.
        status=RequestStatus.QUEUED if unfinished else request.status,
        kind=request.kind,
        count=request.count,
        received_at=request.received_at,
        due_at=request.due_at,
        links=links_of(request.id, request.kind),
        salts=Salts(nodes=dict(targets.node_salts or {}), reference=targets.reference_salt) if targets else None,
        already_deleted=dict(already_deleted),
    )


def deletion_answer(
    request: DeletionRequest, audit: RequestAudit | None, *, reads_audit: bool, handles: Sequence[UUID] = ()
) -> DeletionAnswer:
    """Build the view of a request for a key; `reads_audit` is whether it has audit:read."""
    hidden = request.status is RequestStatus.COMPLETED and not reads_audit
    return DeletionAnswer(
        **vars(request)
        | {
            "reference": None if hidden else request.reference,
            "waits_for": request.waits_for if reads_audit else None,
        },
        handles=list(handles),
        links=links_of(request.id, request.kind),
        audit=None if audit is None else audit_answer(audit, reads_audit=reads_audit),
    )


def audit_answer(audit: RequestAudit, *, reads_audit: bool) -> AuditAnswer:
    """Return the figures of a request's audit, those of its batch and its own norms, that a key may read."""
    figures = audit.figures if reads_audit else audit.public_figures
    return AuditAnswer(batch=BatchAnswer.model_validate(audit.batch, from_attributes=True), **figures)
