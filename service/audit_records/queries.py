"""What audit queries take and give."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from projector.forgetting.status import RepairStatus
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, RequestAudit
from service.domain.states import Guarantee, RequestStatus


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

    @property
    def is_empty(self) -> bool:
        """Whether no value can meet it."""
        return self.at_least is not None and self.at_most is not None and self.at_least > self.at_most


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
