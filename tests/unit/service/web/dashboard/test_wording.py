"""The text of pages: figures, times, clocks and the steps of a request."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

import pytest

from projector.forgetting.status import RepairStatus
from service.domain.formats import at_most, duration, number, percent
from service.domain.records import DeletionRequest
from service.domain.states import EventType, RequestStatus
from service.log.events import Event
from service.reports.queries import Searched, Threshold
from service.web.dashboard.request_page import is_final, timeline
from service.web.dashboard.words import FilterQuery, clock_of, list_filters
from tests.support.service.records import queued_request

RECEIVED = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
REQUEST = queued_request(RECEIVED)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (0, "0"),
        (1431, "1,431"),
        (0.4036094, "0.4036"),
        (12345.6, "12,346"),
        (7.2658e-16, "7.27 × 10⁻¹⁶"),
        (-2.5e9, "-2.50 × 10⁹"),
    ],
)
def test_figures_are_written_to_be_read(value: float | int | None, text: str) -> None:
    assert number(value) == text


def test_shares_are_written_as_percentages() -> None:
    shares = (None, 0.0, 1.0, 0.0415, 1e-4, 2.65e-6, 1e-8, 2.65e-11, 7.2658e-16)
    written = ["–", "0%", "100%", "4.15%", "0.01%", "2.65 ppm", "10 ppb", "0.0265 ppb", "7.27 × 10⁻¹⁶"]
    assert [percent(share) for share in shares] == written


def test_a_limit_is_never_written_smaller_than_it_is() -> None:
    limits = (0.0, 0.2, 0.123, 2.4101e-9, 1e-8, 3.3e-6, 5.001e-15)
    written = [
        "0%",
        "20%",
        "13%",
        "2.5 parts per billion (2.42 × 10⁻⁹)",
        "10 parts per billion (1.00 × 10⁻⁸)",
        "3.3 parts per million (3.30 × 10⁻⁶)",
        "5.01 × 10⁻¹⁵",
    ]
    assert [at_most(limit) for limit in limits] == written


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0 ms"),
        (0.612, "612 ms"),
        (4.26, "4.3 s"),
        (59.0, "59 s"),
        (61.0, "1 min 1 s"),
        (3600.0, "1 h"),
        (86_399.0, "24 h"),
        (2_591_000.0, "30 d"),
        (-7200.0, "−2 h"),
    ],
)
def test_lengths_of_time_are_written_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("age", "tone", "words"),
    [
        (timedelta(seconds=1), "good", "29 d 23 h left"),
        (timedelta(days=23), "good", "7 d left"),
        (timedelta(days=24), "warn", "6 d left"),
        (timedelta(days=29, hours=23, minutes=59, seconds=30), "warn", "30 s left"),
        (timedelta(days=31), "bad", "1 d late"),
    ],
)
def test_a_clock_shows_how_much_time_is_left(age: timedelta, tone: str, words: str) -> None:
    clock = clock_of(REQUEST, RECEIVED + age)
    assert (clock.tone, clock.words) == (tone, words)
    assert clock.due_at == REQUEST.due_at
    assert 0.0 <= clock.share <= 1.0


def states_of(request: DeletionRequest, *events: EventType) -> list[tuple[str, str]]:
    recorded = [
        Event(number, request.id, kind, {}, RECEIVED + timedelta(seconds=number)) for number, kind in enumerate(events)
    ]
    return [(step.label, step.state) for step in timeline(request, recorded)]


def test_the_timeline_shows_what_was_done_and_what_comes() -> None:
    assert states_of(REQUEST) == [("Received", "done"), ("Applied", "now"), ("Completed", "waiting")]
    applied = replace(REQUEST, status=RequestStatus.APPLIED, applied_at=RECEIVED, repair=RepairStatus.PENDING)
    assert states_of(applied, EventType.APPLIED) == [
        ("Received", "done"),
        ("Applied", "done"),
        ("Repaired", "now"),
        ("Completed", "now"),
    ]
    completed = replace(applied, status=RequestStatus.COMPLETED, completed_at=RECEIVED + timedelta(seconds=1))
    assert states_of(completed, EventType.APPLIED)[-1] == ("Repaired", "now")
    repaired = replace(completed, repair=RepairStatus.CONVERGED)
    assert states_of(repaired, EventType.APPLIED, EventType.COMPLETED, EventType.REPAIRED) == [
        ("Received", "done"),
        ("Applied", "done"),
        ("Completed", "done"),
        ("Repaired", "done"),
    ]
    # Its own repair fell short, and a later one covered it.
    short = states_of(repaired, EventType.APPLIED, EventType.COMPLETED, EventType.NOT_REPAIRED, EventType.REPAIRED)
    assert short[-2:] == [("Not repaired", "failed"), ("Repaired", "done")]
    failed = replace(REQUEST, status=RequestStatus.FAILED, failed_at=RECEIVED, failure="It named a ghost.")
    assert states_of(failed, EventType.FAILED) == [("Received", "done"), ("Failed", "failed")]
    tried_again = states_of(REQUEST, EventType.FAILED)
    assert tried_again == [("Received", "done"), ("Failed", "failed"), ("Applied", "now"), ("Completed", "waiting")]
    handled = replace(failed, handled_at=RECEIVED, ended_at=RECEIVED)
    assert not any(map(is_final, (REQUEST, applied, completed, failed)))
    assert all(map(is_final, (repaired, handled)))


def test_filters_are_read_from_a_url() -> None:
    query = {
        "status": "completed",
        "kind": "",
        "repair": "converged",
        "since": "2026-11-01",
        "until": "2026-11-19",
        "bound": "1e-9",
        "bound_most": "0.5",
    }
    found = list_filters(FilterQuery.model_validate(query))
    assert found.faults == ()
    assert set(found.given) == {"status", "repair", "since", "until", "bound", "bound_most"}
    assert (found.audit.status, found.audit.kind) == (RequestStatus.COMPLETED, None)
    assert (found.audit.since, found.audit.until) == (
        datetime(2026, 11, 1, tzinfo=UTC),
        datetime(2026, 11, 20, tzinfo=UTC),
    )
    assert found.audit.thresholds == {Searched.DISTANCE_BOUND_AFTER_RELATIVE: Threshold(at_least=1e-9, at_most=0.5)}
    # Values forbidden in a URL are not filters of it.
    assert {field.name for field in fields(found.audit)} >= {"reference", "ids"}
    assert not {"reference", "ids"} & FilterQuery.model_fields.keys()


def test_filters_that_keep_nothing_by_themselves_are_faults() -> None:
    query = {"since": "2026-11-02", "until": "2026-11-01", "bound": "2", "bound_most": "1", "status": "completed"}
    found = list_filters(FilterQuery.model_validate(query))
    assert len(found.faults) == 2
    assert set(found.given) == {"status"}
    assert (found.audit.since, found.audit.until, found.audit.thresholds) == (None, None, {})
    same_day = {"since": "2026-11-02", "until": "2026-11-02"}
    assert not list_filters(FilterQuery.model_validate(same_day)).faults
