"""The periods that the overview can show."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from service.audit_records.schemas import SeriesStep


@dataclass(frozen=True)
class Period:
    """Some days up to now."""

    #: As in the URL.
    name: str
    label: str
    #: In words, after "in".
    words: str
    #: How many days, today among them.
    days: int
    step: SeriesStep

    def first_day(self, now: datetime) -> date:
        """The first day (UTC)."""
        return now.astimezone(UTC).date() - timedelta(days=self.days - 1)

    def start(self, now: datetime) -> datetime:
        """The first moment (UTC)."""
        return datetime.combine(self.first_day(now), time(), UTC)


PERIODS = (
    Period("2d", "2 days", "the last 2 days", 2, SeriesStep.HOUR),
    Period("7d", "7 days", "the last 7 days", 7, SeriesStep.DAY),
    Period("30d", "30 days", "the last 30 days", 30, SeriesStep.DAY),
    Period("90d", "90 days", "the last 90 days", 90, SeriesStep.DAY),
    Period("365d", "1 year", "the last year", 365, SeriesStep.DAY),
)
_DEFAULT = PERIODS[2]


def period_of(name: str | None) -> Period:
    """The period of that name; thirty days for any other text."""
    return next((period for period in PERIODS if period.name == name), _DEFAULT)
