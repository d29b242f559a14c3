"""The report of a month or quarter: its days, and its account of failed requests."""

from dataclasses import replace
from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from service.domain.formats import share
from service.domain.states import RequestStatus
from service.errors import InvalidRequest
from service.reports.period_report import Span, became
from tests.support.service.records import queued_request

AT = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
FAILED = queued_request(AT, status=RequestStatus.FAILED, failed_at=AT)


@pytest.mark.parametrize(
    ("name", "words", "since", "until"),
    [
        ("2026-10", "October 2026", date(2026, 10, 1), date(2026, 11, 1)),
        ("2026-12", "December 2026", date(2026, 12, 1), date(2027, 1, 1)),
        ("2026-Q1", "the first quarter of 2026", date(2026, 1, 1), date(2026, 4, 1)),
        ("2026-Q4", "the fourth quarter of 2026", date(2026, 10, 1), date(2027, 1, 1)),
    ],
)
def test_a_report_is_of_a_month_or_a_quarter(name: str, words: str, since: date, until: date) -> None:
    assert Span.parse(name) == Span(name, words, since, until)


@pytest.mark.parametrize("name", ["", "2026", "2026-13", "2026-00", "2026-Q5", "2026-1", "1999-01", "2026-10 "])
def test_what_is_neither_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        Span.parse(name)


def test_the_last_months_are_offered_each_quarter_once_it_is_over() -> None:
    names = [span.name for span in Span.up_to(date(2026, 2, 3), 6)]
    assert names == ["2026-02", "2026-01", "2025-Q4", "2025-12", "2025-11", "2025-10", "2025-Q3", "2025-09"]


def test_it_says_what_became_of_a_request_that_failed() -> None:
    by = UUID(int=7)
    assert became(FAILED) == "Open."
    assert became(replace(FAILED, handled_at=AT)) == "Marked as handled."
    assert became(replace(FAILED, handled_at=AT, handled_by=by)) == f"Settled by request {str(by)[:8]}…"
    assert became(replace(FAILED, status=RequestStatus.COMPLETED)) == "Retried and completed."
    assert became(replace(FAILED, status=RequestStatus.QUEUED)) == "Retried: queued."


def test_a_share_is_never_rounded_up_to_all_or_down_to_none() -> None:
    shares = (0.0, 1e-9, 0.005, 0.5, 0.9995, 1.0)
    assert [share(one) for one in shares] == ["0%", "less than 0.1%", "0.5%", "50%", "more than 99.9%", "100%"]
