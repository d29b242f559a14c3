"""What audit queries take and give."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from uuid import UUID

from projector.forgetting.status import RepairStatus
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, RequestAudit
from service.domain.states import Guarantee, RequestStatus


@dataclass(frozen=True)
class Percentiles:
    """Seconds, each within one per cent; None when there was nothing to measure."""

    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True)
class OpenRequest:
    """A request that has not ended: it is queued or applied, or failed and is not handled."""

    id: UUID
    received_at: datetime


@dataclass(frozen=True)
class OpenCounts:
    """How many requests of a model have not ended, and how many of them somebody has to see to."""

    open: int
    past_deadline: int
    near_deadline: int
    failed: int
    #: Age of the oldest; 0 without one.
    oldest_seconds: float


@dataclass(frozen=True)
class Month:
    """How many requests received in one month (UTC) ended in time; drills are not among them."""

    #: Its first day.
    month: date
    on_time: int
    #: Those too that are open past their deadline.
    late: int
    on_time_share: float


@dataclass(frozen=True)
class Summary:
    """One model's audit in figures.

    The counts are of requests received in the window, the percentiles and the share of applications and completions in
    it. What is open, and what is served, is so now, whatever the window.
    """

    model: str
    #: First day, and the day after the last, in UTC; None for no limit.
    since: date | None
    until: date | None
    requests: int
    #: Every status, kind, guarantee and repair is a key; the latter two count requests that were applied.
    by_status: Mapping[RequestStatus, int]
    by_kind: Mapping[RequestKind, int]
    by_guarantee: Mapping[Guarantee, int]
    by_repair: Mapping[RepairStatus, int]
    #: Requests that were refused for what they name, and so are none of the above.
    refused: int
    open: int
    oldest_open: OpenRequest | None
    #: Open requests past their deadlines, and those to which a fifth of their time or less is left.
    open_past_deadline: int
    open_near_deadline: int
    #: Requests that failed and are not handled; they are open.
    open_failed: int
    #: Days within which a request that is received now is due.
    deadline_days: float
    #: Requests received in the window's months that ended in time and late, oldest month first.
    months: Sequence[Month]
    seconds_to_applied: Percentiles
    seconds_to_completed: Percentiles
    #: Share of the applied requests whose projection removed no direction, so changed nothing; None without any.
    unchanged_projection_share: float | None
    #: The committed version; None for a model that the database does not know.
    model_version: int | None
    #: As the newest batch, import or recovery left them; None when none has measured them.
    rank: int | None
    live_nodes: int | None
    #: What the noise in what is published of it hides and what not; None where it is published as it is.
    noise: str | None


class SeriesStep(StrEnum):
    """How much time one point of a series covers."""

    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True)
class SeriesPoint:
    """What happened within one hour or day (UTC)."""

    start: datetime
    received: int
    applied: int
    completed: int
    failed: int
    #: Of the requests completed in it, within one per cent; None without any.
    median_seconds_to_completed: float | None
    p95_seconds_to_completed: float | None
    #: As the newest batch, import or recovery before its end left them; None when none had measured them.
    rank_after: int | None
    live_nodes: int | None
    #: Of the batches committed in it, as a share of the weights; None without any, or without a bound.
    max_distance_bound_after_relative: float | None


@dataclass(frozen=True)
class Norms:
    """What a model had learned from the nodes of one request alone, before and after their deletion."""

    id: UUID
    before: float
    after: float | None


@dataclass(frozen=True)
class Threshold:
    """Keeps figures from `at_least` up to `at_most`, both included; a figure that does not exist is not kept."""

    at_least: float | None = None
    at_most: float | None = None


class Searched(StrEnum):
    """The figures that a search may have thresholds on."""

    INJECTED_NORM_BEFORE = "injected_norm_before"
    INJECTED_NORM_AFTER = "injected_norm_after"
    DISTANCE_BOUND_BEFORE_RELATIVE = "distance_bound_before_relative"
    DISTANCE_BOUND_AFTER_RELATIVE = "distance_bound_after_relative"
    SPAN_RESIDUAL = "span_residual"


class Order(StrEnum):
    """In which order requests are listed."""

    NEWEST = "newest"
    OLDEST = "oldest"
    #: Those that are due first at the top.
    DUE = "due"
    #: Those that are due last at the top.
    DUE_LAST = "due_last"

    @property
    def by(self) -> str:
        """The column."""
        return "received_at" if self in (Order.NEWEST, Order.OLDEST) else "due_at"

    @property
    def descends(self) -> bool:
        """Whether the latest comes first."""
        return self in (Order.NEWEST, Order.DUE_LAST)


@dataclass(frozen=True)
class AuditFilters:
    """Which requests are found; None means any."""

    status: RequestStatus | None = None
    kind: RequestKind | None = None
    guarantee: Guarantee | None = None
    repair: RepairStatus | None = None
    #: Whether it has not ended.
    open: bool | None = None
    #: Whether it ended late or is open past its deadline; False: it ended in time.
    late: bool | None = None
    #: Whether it is a drill.
    drills: bool | None = None
    #: Due before this time.
    due_before: datetime | None = None
    #: Received at this time or later.
    since: datetime | None = None
    #: Received before this time.
    until: datetime | None = None
    #: Exactly this one. Those of completed requests are found only when no `api_key_id` is given.
    reference: str | None = None
    #: Some of it, in capitals or not; for whoever may see all.
    part_of_reference: str | None = None
    thresholds: Mapping[Searched, Threshold] = field(default_factory=dict)
    #: Asked for with this API key.
    api_key_id: UUID | None = None
    #: Among these.
    ids: Collection[UUID] | None = None


@dataclass(frozen=True)
class AuditEntry:
    """One request and, from `applied` on, its audit."""

    request: DeletionRequest
    audit: RequestAudit | None
