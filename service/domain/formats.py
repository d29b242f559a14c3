"""Formats of figures, times and durations on pages, on papers and in the terminal."""

import math
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal

_DASH = "–"
#: Smallest share written as per cent: 0.01%.
_LEAST_PERCENT = 1e-4


def number(value: float | int | None) -> str:
    """Format an integer with thousands separators, another number to four significant digits, and None as a dash."""
    if value is None:
        return _DASH
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0.0:
        return "0"
    if math.isfinite(value) and 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa} × 10{_superscript(int(exponent))}" if exponent else f"{value}"


def percent(value: float | None) -> str:
    """Format a share as per cent, ppm or ppb, whichever reads best; below a thousandth of a ppb, as a power of ten."""
    if value is None:
        return _DASH
    if value == 0.0 or abs(value) >= _LEAST_PERCENT:
        return f"{100.0 * value:.3g}%"
    scale, unit, _ = _part(value)
    return f"{scale * value:.3g} {unit}" if unit else number(value)


def at_most(value: float) -> str:
    """Format an upper limit on a share in words, rounded up; small limits are followed by three digits."""
    if value == 0.0:
        return "0%"
    if value >= _LEAST_PERCENT:
        return f"{100.0 * rounded_up(value, 2):g}%"
    scale, _, words = _part(value)
    exact = number(rounded_up(value, 3))
    return f"{scale * rounded_up(value, 2):g} {words} ({exact})" if words else exact


def rounded_up(value: float, digits: int) -> float:
    """Round a positive number up to `digits` significant digits."""
    exact = Decimal(repr(value))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_CEILING))


def _part(value: float) -> tuple[float, str, str]:
    """Return scale, unit and words for a small share."""
    if abs(value) >= 1e-7:
        return 1e6, "ppm", "parts per million"
    return (1e9, "ppb", "parts per billion") if abs(value) >= 1e-12 else (1.0, "", "")


def share(value: float) -> str:
    """Format a share of counted things; never rounds to all or none."""
    shown = f"{100.0 * value:.1f}"
    if shown in ("100.0", "0.0") and value not in (0.0, 1.0):
        return "more than 99.9%" if value > 0.5 else "less than 0.1%"
    return f"{shown.removesuffix('.0')}%"


def moment(value: datetime | None) -> str:
    """Format a time to the second, in UTC."""
    return _DASH if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def day(value: datetime) -> str:
    """Format the day of a time, in UTC, as in a letter."""
    value = value.astimezone(UTC)
    return f"{value.day} {value:%B %Y}"


def minute(value: datetime) -> str:
    """Format a time to the minute, in UTC, as in a letter."""
    return f"{day(value)}, {value.astimezone(UTC):%H:%M} UTC"


def machine_time(value: datetime) -> str:
    """Format a time for the HTML attribute `datetime`."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds")


def duration(seconds: float | timedelta | None) -> str:
    """Format a length of time in one or two units."""
    if seconds is None:
        return _DASH
    total = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    sign, total = ("−" if total < 0 else ""), abs(total)
    if total < 1.0:
        return f"{sign}{total * 1000:.0f} ms"
    if total < 60.0:
        return f"{sign}{total:.2g} s" if total < 10 else f"{sign}{total:.0f} s"
    for unit, smaller, size, parts in (("d", "h", 86_400, 24), ("h", "min", 3_600, 60), ("min", "s", 60, 60)):
        if total >= size:
            whole, rest = divmod(round(total / (size / parts)), parts)
            return f"{sign}{whole} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("unreachable")


def days(count: float) -> str:
    """Format a number of days, in words if whole."""
    return plural(int(count), "day") if count == int(count) else duration(86_400 * count)


def coarse(time: timedelta) -> str:
    """Format a length of time to the hour from two days on, else to the minute, so that idle pages stay unchanged."""
    unit = timedelta(hours=1) if time >= timedelta(days=2) else timedelta(minutes=1)
    return duration(time // unit * unit) if time >= unit else duration(time)


def ago(time: timedelta) -> str:
    """Format how long ago something was, with the precision of `coarse`."""
    return f"{coarse(time)} ago" if time >= timedelta(minutes=1) else "just now"


def plural(count: int, one: str, several: str | None = None) -> str:
    """Return `count` with its noun."""
    return f"{number(count)} {one if count == 1 else several or one + 's'}"


def in_groups(digest: str) -> str:
    """Split a digest into groups of eight for comparison by eye."""
    return " ".join(digest[start : start + 8] for start in range(0, len(digest), 8))


def _superscript(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
