"""The audit in figures, as read from the database and as returned by the routes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Self
from uuid import UUID

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)
from pydantic_core import PydanticCustomError

from projector.forgetting.status import RepairStatus
from service.domain.fields import Known, Magnitude, Moment, NodeIds, Reference, Window
from service.domain.kinds import RequestKind
from service.domain.states import Guarantee, RequestStatus
from service.reports.queries import Searched, Threshold

#: Used in the example.
_PERCENTILES: dict[str, JsonValue] = {"p50": 0.61, "p95": 1.7, "p99": 2.4}


@dataclass(frozen=True)
class Percentiles:
    """Seconds, each within one per cent; null without measurements."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True)
class OpenRequest:
    """An open request: queued or applied, or failed and not handled."""

    id: UUID
    received_at: datetime


@dataclass(frozen=True)
class Month:
    """Requests received in one month (UTC), by whether they ended on time."""

    month: Annotated[date, Field(description="Its first day.")]
    on_time: int
    late: Annotated[int, Field(description="Those too that are open past their deadline.")]
    on_time_share: float


@dataclass(frozen=True)
class Summary:
    """The audit of the served model in figures.

    All figures exclude drills. Counts cover requests received in the window; percentiles and the share cover
    applications and completions in it. Open requests and the served model are current, whatever the window.
    """

    model: str
    since: Annotated[date | None, Field(description="First day, in UTC; null for no limit.")]
    until: Annotated[date | None, Field(description="The day after the last.")]
    requests: int
    by_status: Mapping[RequestStatus, int]
    by_kind: Mapping[RequestKind, int]
    by_guarantee: Annotated[Mapping[Guarantee, int], Field(description="Applied deletions by guarantee.")]
    by_repair: Annotated[Mapping[RepairStatus, int], Field(description="Applied requests by state of the repair.")]
    completed_deletions: Annotated[int, Field(description="Completed requests that deleted something.")]
    completed_retrained: Annotated[
        int, Field(description="Those with a proven bound within which the weights are those of retraining.")
    ]
    completed_without_work: Annotated[
        int, Field(description="Completed deletions for which nothing was left to delete: others had done so.")
    ]
    refused: Annotated[int, Field(description="Requests refused for what they named; not counted above.")]
    open: Annotated[int, Field(description="Requests that have not ended: queued, applied, or failed and unhandled.")]
    oldest_open: Annotated[OpenRequest | None, Field(description="The oldest open request that is not on hold.")]
    open_past_deadline: Annotated[int, Field(description="Open requests past their deadline.")]
    open_near_deadline: Annotated[int, Field(description="Open requests in the last fifth of their time.")]
    open_failed: Annotated[int, Field(description="Failed, unhandled requests.")]
    open_held: Annotated[int, Field(description="Requests on hold; neither late nor due soon.")]
    deadline_days: Annotated[float, Field(description="Days within which a request that is received now is due.")]
    months: Annotated[Sequence[Month], Field(description="Months of the window that had such requests, oldest first.")]
    seconds_to_applied: Percentiles
    seconds_to_completed: Percentiles
    unchanged_projection_share: Annotated[
        float | None,
        Field(description="Share of those applied whose projection removed no direction, and so changed nothing."),
    ]
    model_version: Annotated[int | None, Field(description="The committed version.")]
    rank: int | None
    live_nodes: int | None
    noise: Annotated[
        str | None,
        Field(description="What the noise in published weights hides and what it does not; null without noise."),
    ]

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
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
                    "completed_deletions": 117,
                    "completed_retrained": 117,
                    "completed_without_work": 0,
                    "refused": 2,
                    "open": 1,
                    "oldest_open": {
                        "id": "0197f3c2-6f6e-7c1a-9d55-0d7a5d3b2c11",
                        "received_at": "2026-11-20T14:05:23.085919Z",
                    },
                    "open_past_deadline": 0,
                    "open_near_deadline": 0,
                    "open_failed": 0,
                    "open_held": 0,
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


class SeriesStep(StrEnum):
    """Time covered by one point of a series."""

    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True)
class SeriesPoint:
    """Events within one hour or day (UTC)."""

    start: datetime
    received: int
    applied: int
    completed: int
    failed: int
    median_seconds_to_completed: Annotated[
        float | None, Field(description="Over the requests completed in it; accurate to 1 %.")
    ]
    p95_seconds_to_completed: float | None
    rank_after: Annotated[int | None, Field(description="At the end of the hour or day.")]
    live_nodes: Annotated[int | None, Field(description="At the end of the hour or day.")]
    max_distance_bound_after_relative: Annotated[
        float | None, Field(description="Largest bound of the batches committed in it, as a share of the weights.")
    ]


@dataclass(frozen=True)
class Series:
    """The audit over time, oldest first, including hours and days without events."""

    step: SeriesStep
    points: Sequence[SeriesPoint]

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
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


#: JSON bodies give enum members as text.
_AS_TEXT = Field(strict=False)


class RecordFilters(Window):
    """Filters for requests; an omitted filter matches all. A figure that a request lacks meets no threshold."""

    status: Annotated[RequestStatus, _AS_TEXT] | None = None
    kind: Annotated[RequestKind, _AS_TEXT] | None = None
    guarantee: Annotated[Guarantee, _AS_TEXT] | None = None
    repair: Annotated[RepairStatus, _AS_TEXT] | None = None
    open: bool | None = Field(None, description="Whether it has not ended: queued, applied, or failed and unhandled.")
    late: bool | None = Field(
        None, description="Whether it ended after its deadline or is still open past it; false: it ended in time."
    )
    held: bool | None = Field(None, description="Whether it is on hold.")
    since: Moment | None = Field(
        None, description="Received at or after this time (RFC 3339, with its offset from UTC)."
    )
    until: Moment | None = Field(None, description="Received before this time.")
    injected_norm_before_min: Magnitude | None = None
    injected_norm_before_max: Magnitude | None = None
    injected_norm_after_min: Magnitude | None = None
    injected_norm_after_max: Magnitude | None = None
    distance_bound_before_relative_min: Magnitude | None = None
    distance_bound_before_relative_max: Magnitude | None = None
    distance_bound_after_relative_min: Magnitude | None = None
    distance_bound_after_relative_max: Magnitude | None = None
    span_residual_min: Magnitude | None = None
    span_residual_max: Magnitude | None = None

    @model_validator(mode="after")
    def _limits_have_room(self) -> Self:
        for figure, limits in self.thresholds().items():
            if limits.is_empty:
                raise PydanticCustomError("empty_range", f"must have `{figure}_min` no greater than `{figure}_max`")
        return self

    def thresholds(self) -> dict[Searched, Threshold]:
        """Return the thresholds by figure."""
        named = {
            figure: Threshold(getattr(self, f"{figure}_min"), getattr(self, f"{figure}_max")) for figure in Searched
        }
        return {figure: threshold for figure, threshold in named.items() if threshold != Threshold()}


class PagedFilters(RecordFilters):
    """Filters, and a page of the matching requests."""

    cursor: str | None = Field(
        None, min_length=1, max_length=256, description="`next_cursor` of the previous page, with the same filters."
    )
    limit: int = Field(50, ge=1, le=200, description="Maximum number of requests per page.")


class DeletionFilters(PagedFilters, Known):
    """Filters for the list of requests; an omitted parameter matches all."""


class SearchBody(PagedFilters, Known):
    """Search by nodes or by filters, in a body, because URLs must not contain personal data."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"nodes": ["12", "57"]}, {"reference": "DSR-17"}]},
    )

    nodes: NodeIds | None = Field(
        None, description="Ids of nodes. The answer then has `found` and `not_found` instead of pages."
    )
    reference: Reference | None = Field(
        None, description="Exact reference; completed requests are found only with audit:read."
    )
