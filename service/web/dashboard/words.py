"""Texts of the pages: names of states, filters of the list of requests, and remaining time."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field, create_model

from projector.forgetting.status import RepairStatus
from service.domain.figures import FIGURES
from service.domain.formats import coarse
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest
from service.domain.states import GUARANTEES, Guarantee, RequestStatus
from service.reports.queries import AuditFilters, ExportFormat, Order, Searched, Threshold
from service.webhooks.deliveries import DeliveryState

#: Used share of the time from which a request counts as near its deadline.
NEAR = 0.8


@dataclass(frozen=True)
class Clock:
    """The deadline of one open request."""

    due_at: datetime
    #: Used share of the time, at most 1.
    share: float
    #: `good`, `warn` near the deadline, `bad` past it.
    tone: str
    words: str


def clock_of(request: DeletionRequest, now: datetime) -> Clock:
    """Return the clock of an open request at `now`; it stands while the request is held."""
    due_at = request.due_at
    at = request.held_at or now
    left = due_at - at
    share = min(1.0, max(0.0, (at - request.received_at) / (due_at - request.received_at)))
    if request.held_at is not None:
        return Clock(due_at, share, "good", "on hold")
    if left < timedelta():
        return Clock(due_at, 1.0, "bad", f"{coarse(-left)} late")
    return Clock(due_at, share, "warn" if share >= NEAR else "good", f"{coarse(left)} left")


class Stopped(StrEnum):
    """What keeps a queued request from being done."""

    HELD = "held"
    BEHIND = "behind"


def state_shown(request: DeletionRequest) -> StrEnum:
    """Return the state of a request to show in its badge."""
    if request.held_at is not None:
        return Stopped.HELD
    return request.status if request.waits_for is None else Stopped.BEHIND


@dataclass(frozen=True)
class Choice:
    """A filter with several states."""

    name: str
    label: str
    states: type[StrEnum]
    #: Label if none is chosen.
    nothing: str = "Any"


@dataclass(frozen=True)
class Limit:
    """A filter with a threshold on a figure."""

    name: str
    figure: Searched
    #: Whether the value is a minimum or a maximum.
    at_least: bool

    @property
    def label(self) -> str:
        """The figure's label, with the kind of limit."""
        return f"{FIGURES[self.figure].label}, at {'least' if self.at_least else 'most'}"


CHOICES = (
    Choice("status", "Status", RequestStatus),
    Choice("kind", "Kind", RequestKind),
    Choice("guarantee", "Guarantee", Guarantee),
    Choice("repair", "Repair", RepairStatus),
)


class Answer(StrEnum):
    """A yes-or-no filter."""

    YES = "yes"
    NO = "no"


class Drills(StrEnum):
    """Inclusion of drills in a list, which omits them by default."""

    ONLY = "yes"
    INCLUDED = "all"


QUESTIONS = (
    Choice("open", "Open", Answer),
    Choice("late", "Late", Answer),
    Choice("held", "On hold", Answer),
    Choice("drills", "Drills", Drills, "Left out"),
)
ORDER = Choice("order", "Order", Order)
DAYS = (("since", "Received from"), ("until", "Received until"), ("due", "Due by"))
_STATES = (*CHOICES, *QUESTIONS, ORDER)
LIMITS = (
    Limit("norm_before", Searched.INJECTED_NORM_BEFORE, True),
    Limit("norm_after", Searched.INJECTED_NORM_AFTER, True),
    Limit("bound", Searched.DISTANCE_BOUND_AFTER_RELATIVE, True),
    Limit("bound_most", Searched.DISTANCE_BOUND_AFTER_RELATIVE, False),
    Limit("residual", Searched.SPAN_RESIDUAL, True),
)
_LIMITS_OF = {figure: {limit.name for limit in LIMITS if limit.figure is figure} for figure in Searched}


@dataclass(frozen=True)
class ListFilters:
    """The filters of one list."""

    audit: AuditFilters
    order: Order
    #: Valid filters, as in the URL.
    given: Mapping[str, str]
    #: Labels of invalid filters. They have no effect, and the page reports them.
    faults: tuple[str, ...]


_YES_OR_NO = {Answer.YES: True, Answer.NO: False, None: None}
_LABELS = {one.name: one.label for one in (*_STATES, *LIMITS)} | dict(DAYS)


def _figure(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


#: Reads each filter's text. Raises ValueError.
_PARSERS: Mapping[str, Callable[[str], Any]] = {
    **{choice.name: choice.states for choice in _STATES},
    **dict.fromkeys((limit.name for limit in LIMITS), _figure),
    **dict.fromkeys(dict(DAYS), date.fromisoformat),
}
_Texts: Any = dict.fromkeys(_LABELS, (str, ""))
#: Query of a list's URL: one text per filter.
FilterQuery = create_model("FilterQuery", **_Texts)


class ListQuery(FilterQuery):
    """The filters, and the page of the list."""

    cursor: str = ""


class ExportQuery(FilterQuery):
    """The filters, and the format of the file."""

    form: ExportFormat = Field(ExportFormat.CSV, alias="format")


def in_words(name: str, text: str) -> str:
    """Describe a valid filter, such as "Status: Failed"; `text` is already in words."""
    return f"{_LABELS[name]}: {text}"


def state_of(name: str, text: str) -> StrEnum | None:
    """Return the state chosen by a filter; None for days and figures."""
    return next((one.states(text) for one in _STATES if one.name == name), None)


def list_filters(query: BaseModel) -> ListFilters:
    """Read the filters in the query of a list's URL, without empty fields."""
    given: dict[str, str] = {}
    faults: list[str] = []
    read: dict[str, Any] = {}
    for name, parse in _PARSERS.items():
        if not (text := getattr(query, name).strip()):
            continue
        try:
            read[name] = parse(text)
        except ValueError:
            faults.append(_LABELS[name])
            continue
        # Omit the default from addresses.
        if text != Order.NEWEST:
            given[name] = text
    since, until = _midnight(read.get("since")), _end(read.get("until"))
    if since is not None and until is not None and since >= until:
        faults.append("the days, because the last is before the first")
        since = until = None
        given = {name: text for name, text in given.items() if name not in ("since", "until")}
    thresholds: dict[Searched, Threshold] = {}
    for limit in LIMITS:
        if limit.name in read:
            bound = "at_least" if limit.at_least else "at_most"
            thresholds[limit.figure] = replace(thresholds.get(limit.figure, Threshold()), **{bound: read[limit.name]})
    for figure in [figure for figure, limits in thresholds.items() if limits.is_empty]:
        faults.append(f"{FIGURES[figure].label}, because its minimum is above its maximum")
        del thresholds[figure]
        given = {name: text for name, text in given.items() if name not in _LIMITS_OF[figure]}
    audit = AuditFilters(
        **{choice.name: read.get(choice.name) for choice in CHOICES},
        open=_YES_OR_NO[read.get("open")],
        late=_YES_OR_NO[read.get("late")],
        held=_YES_OR_NO[read.get("held")],
        drills={Drills.ONLY: True, Drills.INCLUDED: None, None: False}[read.get("drills")],
        since=since,
        until=until,
        due_before=_end(read.get("due")),
        thresholds=thresholds,
    )
    return ListFilters(audit, read.get("order", Order.NEWEST), given, tuple(faults))


def _end(day: date | None) -> datetime | None:
    """Include the whole last day."""
    return _midnight(day + timedelta(days=1) if day is not None and day < date.max else day)


def _midnight(day: date | None) -> datetime | None:
    return None if day is None else datetime.combine(day, time(), UTC)


@dataclass(frozen=True)
class Word:
    """Label, badge and meaning of a state."""

    label: str
    #: Class of the badge: `quiet`, `busy`, `good`, `warn` or `bad`.
    tone: str
    #: What it means.
    meaning: str


WORDS: dict[StrEnum, Word] = {
    RequestStatus.QUEUED: Word("Queued", "busy", "Accepted and stored durably; work on it has not begun."),
    RequestStatus.APPLIED: Word(
        "Applied", "busy", "Out of the graph and every prediction; being erased from the disk."
    ),
    RequestStatus.COMPLETED: Word(
        "Completed", "good", "Erased from the disk too, with every older version of the weights."
    ),
    RequestStatus.FAILED: Word("Failed", "bad", "Nothing was deleted; its page says why and what to do."),
    RequestStatus.CANCELLED: Word(
        "Cancelled", "quiet", "Withdrawn by the caller or an operator before work on it began."
    ),
    Stopped.HELD: Word("On hold", "warn", "Queued, and held for a stated reason until it is released or cancelled."),
    Stopped.BEHIND: Word("Behind a hold", "warn", "Queued behind a request on hold that names the same."),
    Answer.YES: Word("Yes", "quiet", "Only these."),
    Answer.NO: Word("No", "quiet", "All but these."),
    Drills.ONLY: Word("Only drills", "quiet", "Drills and nothing else."),
    Drills.INCLUDED: Word("Included", "quiet", "Drills among all others."),
    Order.NEWEST: Word("Newest first", "quiet", "Received last at the top."),
    Order.OLDEST: Word("Oldest first", "quiet", "Received first at the top."),
    Order.DUE: Word("Due first", "quiet", "Due first at the top."),
    Order.DUE_LAST: Word("Due last", "quiet", "Due last at the top."),
    **{kind: Word(kind.rules.label, "quiet", kind.rules.meaning) for kind in RequestKind},
    Guarantee.SPAN: Word("Span", "warn", GUARANTEES[Guarantee.SPAN]),
    Guarantee.RETRAINED: Word("Retrained", "good", GUARANTEES[Guarantee.RETRAINED]),
    Guarantee.GRAPH_ONLY: Word("Graph only", "warn", GUARANTEES[Guarantee.GRAPH_ONLY]),
    RepairStatus.NONE: Word("No repair", "quiet", "This model is not re-optimised after deletions."),
    RepairStatus.PENDING: Word("Repair pending", "busy", "The weights are being brought to those of retraining."),
    RepairStatus.CONVERGED: Word(
        "Repair converged", "good", "The weights were brought to those of retraining, within the bound."
    ),
    RepairStatus.NOT_CONVERGED: Word(
        "Repair not converged", "bad", "The weights are not those of retraining; an operator should look into it."
    ),
    DeliveryState.WAITING: Word("Waiting", "busy", "Will be sent at the next attempt."),
    DeliveryState.DELIVERED: Word("Delivered", "good", "The receiver accepted it."),
    DeliveryState.GIVEN_UP: Word("Given up", "bad", "Not accepted within three days, or the receiver was removed."),
}


def words_of(state: StrEnum) -> Word:
    """Return label, badge and meaning of a state."""
    return WORDS[state]
