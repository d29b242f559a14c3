"""What the audit routes give."""

from datetime import date, datetime
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from projector.forgetting.status import RepairStatus
from service.audit_records.queries import SeriesStep
from service.domain.kinds import RequestKind
from service.domain.states import Guarantee, RequestStatus

#: Of the example.
_PERCENTILES: dict[str, JsonValue] = {"p50": 0.61, "p95": 1.7, "p99": 2.4}


class _Answer(BaseModel):
    model_config = ConfigDict(from_attributes=True, protected_namespaces=())


class PercentilesAnswer(_Answer):
    """Seconds, each within one per cent; null when there was nothing to measure."""

    p50: float | None
    p95: float | None
    p99: float | None


class OpenAnswer(_Answer):
    """The oldest request that is open."""

    id: UUID
    received_at: datetime


class MonthAnswer(_Answer):
    """How many requests received in one month (UTC) ended in time; drills are not among them."""

    month: date = Field(description="Its first day.")
    on_time: int
    late: int = Field(description="Those too that are open past their deadline.")
    on_time_share: float


class SummaryAnswer(_Answer):
    """The audit of the served model in figures.

    Counts are of requests received in the window, percentiles of those applied and completed in it. What is open and
    what is served is so now, whatever the window.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "cora",
                    "since": None,
                    "until": None,
                    "requests": 120,
                    "by_status": {"queued": 1, "applied": 0, "completed": 117, "failed": 1, "cancelled": 1},
                    "by_kind": {"node": 100, "edge": 12, "features": 8},
                    "by_guarantee": {"span": 0, "retrained": 117, "graph_only": 0},
                    "by_repair": {"none": 0, "pending": 0, "converged": 117, "not_converged": 0},
                    "refused": 2,
                    "open": 1,
                    "oldest_open": {
                        "id": "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11",
                        "received_at": "2026-11-20T14:05:23.085919Z",
                    },
                    "open_past_deadline": 0,
                    "open_near_deadline": 0,
                    "open_failed": 0,
                    "deadline_days": 30,
                    "months": [{"month": "2026-11-01", "on_time": 117, "late": 0, "on_time_share": 1.0}],
                    "seconds_to_applied": _PERCENTILES,
                    "seconds_to_completed": _PERCENTILES,
                    "unchanged_projection_share": 0.99,
                    "model_version": 64,
                    "rank": 1430,
                    "live_nodes": 2588,
                    "noise": None,
                }
            ]
        }
    )

    model: str
    since: date | None
    until: date | None
    requests: int
    by_status: dict[RequestStatus, int]
    by_kind: dict[RequestKind, int]
    by_guarantee: dict[Guarantee, int] = Field(description="Of the requests that were applied.")
    by_repair: dict[RepairStatus, int] = Field(description="Of the requests that were applied.")
    refused: int = Field(description="Requests refused for what they named, which are none of the above.")
    open: int = Field(description="Requests that have not ended: queued, applied, or failed and not handled.")
    oldest_open: OpenAnswer | None
    open_past_deadline: int = Field(description="Open requests past their deadline.")
    open_near_deadline: int = Field(description="Open requests to which a fifth of their time or less is left.")
    open_failed: int = Field(description="Requests that failed and are not handled.")
    deadline_days: float = Field(description="Days within which a request that is received now is due.")
    months: list[MonthAnswer] = Field(description="Of the window's months that had such requests, oldest first.")
    seconds_to_applied: PercentilesAnswer
    seconds_to_completed: PercentilesAnswer
    unchanged_projection_share: float | None = Field(
        description="Share of the applied requests whose projection removed no direction, and so changed nothing."
    )
    model_version: int | None
    rank: int | None
    live_nodes: int | None
    noise: str | None = Field(
        description="What noise in what is published of the model hides, and what not; null where there is none."
    )


class SeriesPointAnswer(_Answer):
    """What happened within one hour or day (UTC)."""

    start: datetime
    received: int
    applied: int
    completed: int
    failed: int
    median_seconds_to_completed: float | None
    p95_seconds_to_completed: float | None
    rank_after: int | None = Field(description="At the end of the hour or day.")
    live_nodes: int | None = Field(description="At the end of the hour or day.")
    max_distance_bound_after_relative: float | None = Field(description="Of the batches committed in it.")


class SeriesAnswer(BaseModel):
    """The audit over time, oldest first; hours and days without events are there too."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "step": "day",
                    "points": [
                        {
                            "start": "2026-11-20T00:00:00Z",
                            "received": 12,
                            "applied": 11,
                            "completed": 11,
                            "failed": 0,
                            "median_seconds_to_completed": 0.61,
                            "p95_seconds_to_completed": 1.7,
                            "rank_after": 1430,
                            "live_nodes": 2588,
                            "max_distance_bound_after_relative": 1e-10,
                        }
                    ],
                }
            ]
        }
    )

    step: SeriesStep
    points: list[SeriesPointAnswer]
