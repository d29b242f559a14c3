"""What the drill routes give, and how it is made of the records of the other layers."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from service.deletions.answers import Links, Salts, links_of
from service.domain.drills import Drill
from service.domain.states import RequestStatus
from service.drills.cohorts import Cohorts
from service.drills.starting import StartedDrill

_ID = "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11"
_ASKED: dict[str, Any] = {
    "request_id": _ID,
    "cohort": 3,
    "requested_at": "2026-03-02T09:15:04.120000Z",
    "links": {"self": f"/deletions/{_ID}"},
}
_OPEN: dict[str, Any] = _ASKED | {
    "status": "queued",
    "applied_at": None,
    "completed_at": None,
    "failed_at": None,
    "channel_norm_before": None,
    "channel_norm_after": None,
    "passed": None,
    "model_replaced_at": None,
    "finding": "The canaries are being deleted.",
}
_DONE: dict[str, Any] = _ASKED | {
    "status": "completed",
    "applied_at": "2026-03-02T09:15:04.310000Z",
    "completed_at": "2026-03-02T09:15:04.420000Z",
    "failed_at": None,
    "channel_norm_before": 4.125,
    "channel_norm_after": 0.0,
    "passed": True,
    "model_replaced_at": None,
    "finding": "The weight on the test column fell from 4.125 to 0.",
}
_COHORTS: dict[str, Any] = {"total": 12, "nodes": 4, "remaining": 8, "partly_deleted": [2]}


class DrillAnswer(BaseModel):
    """The deletion of one cohort of canaries, and what was read from the weights."""

    request_id: UUID = Field(description="The deletion request of the drill.")
    cohort: int
    requested_at: datetime
    status: RequestStatus = Field(description="That of the request.")
    applied_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    channel_norm_before: float | None = Field(description="Norm of the cohort's rows of the weights, before.")
    channel_norm_after: float | None = Field(description="The same after, read from the weights; 0 is right.")
    passed: bool | None = Field(description="Null while it is under way, and when it was cancelled.")
    model_replaced_at: datetime | None = Field(
        description="When an import replaced the drilled model; null while it is served."
    )
    finding: str = Field(description="The result in one sentence.")
    links: Links


class CohortsAnswer(BaseModel):
    """The canaries of the served model."""

    total: int = Field(description="Cohorts at training; 0 without canaries.")
    nodes: int = Field(description="Nodes of each.")
    remaining: int = Field(description="Complete cohorts that no running drill uses: the number of drills left.")
    partly_deleted: list[int] = Field(
        description="Cohorts that drills skip because other requests deleted some of their nodes."
    )


class AcceptedDrill(DrillAnswer):
    """A drill that was accepted; what is done since is at `links.self`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                _OPEN
                | {
                    "cohorts": _COHORTS,
                    "salts": {
                        "nodes": {"lethe-canary-5f1d7a84-3-1": "5f1d7a84db00d2fce00b31a7fc73224f"},
                        "reference": "c0535e4be2b79ffd93291305436bf889",
                    },
                }
            ]
        }
    )

    cohorts: CohortsAnswer
    salts: Salts | None = Field(description="They link the receipt to the ids of the canaries; null once erased.")


class DrillsAnswer(BaseModel):
    """The drills of the served model, and what is left for more."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "cora", "cohorts": _COHORTS, "drills": [_DONE]}]}
    )

    model: str
    cohorts: CohortsAnswer
    drills: list[DrillAnswer] = Field(description="Newest first.")


def drill_answer(drill: Drill, *, with_result: bool) -> DrillAnswer:
    """What a drill looks like; `with_result` is whether what was read from the weights may be told."""
    return DrillAnswer(**_fields(drill, with_result=with_result))


def accepted_drill(started: StartedDrill, *, with_result: bool) -> AcceptedDrill:
    """The 202 answer; see `drill_answer`."""
    targets = started.targets
    salts = None if targets is None else Salts(nodes=dict(targets.node_salts or {}), reference=targets.reference_salt)
    told = _fields(started.drill, with_result=with_result)
    return AcceptedDrill(**told, cohorts=cohorts_answer(started.cohorts, started.drill), salts=salts)


def cohorts_answer(cohorts: Cohorts, newest: Drill | None) -> CohortsAnswer:
    """What is left of the canaries; the cohort of a drill under way is not, though its nodes may still be there."""
    taken = newest.cohort if newest is not None and newest.is_open else None
    return CohortsAnswer(
        total=cohorts.total,
        nodes=cohorts.nodes,
        remaining=sum(cohort != taken for cohort in cohorts.unused),
        partly_deleted=[cohort for cohort in cohorts.partly_deleted if cohort != taken],
    )


def _fields(drill: Drill, *, with_result: bool) -> dict[str, Any]:
    named = {name: getattr(drill, name) for name in DrillAnswer.model_fields if name != "links"}
    if not with_result:
        # Read in the batch, so there before the drill is completed.
        named |= dict.fromkeys(("channel_norm_before", "channel_norm_after"))
        if drill.status is RequestStatus.COMPLETED:
            told = "The result requires the scope audit:read, since the weights are published with noise."
            named |= {"passed": None, "finding": told}
    return named | {"links": links_of(drill.request_id)}
