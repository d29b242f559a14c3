"""How figures, times and durations are written, on pages, papers and at the terminal."""

import math
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal

_DASH = "–"
#: Smaller shares are not written per cent: 0.01%.
_LEAST_PERCENT = 1e-4


def number(value: float | int | None) -> str:
    """An integer with thousands marked, another number to four significant digits, a dash for None."""
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
    """A share: per cent, ppm or ppb, whichever is read most easily, or a power of ten below a thousandth of a ppb."""
    if value is None:
        return _DASH
    if value == 0.0 or abs(value) >= _LEAST_PERCENT:
        return f"{100.0 * value:.3g}%"
    scale, unit, _ = _part(value)
    return f"{scale * value:.3g} {unit}" if unit else number(value)


def at_most(value: float) -> str:
    """An upper limit on a share, in words and rounded up, with three digits of it beside where it is small."""
    if value == 0.0:
        return "0%"
    if value >= _LEAST_PERCENT:
        return f"{100.0 * rounded_up(value, 2):g}%"
    scale, _, words = _part(value)
    exact = number(rounded_up(value, 3))
    return f"{scale * rounded_up(value, 2):g} {words} ({exact})" if words else exact


def rounded_up(value: float, digits: int) -> float:
    """A positive number to so many significant digits, never less than it is."""
    exact = Decimal(repr(value))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1), ROUND_CEILING))


def _part(value: float) -> tuple[float, str, str]:
    """What a small share is counted in: its scale, unit and words."""
    if abs(value) >= 1e-7:
        return 1e6, "ppm", "parts per million"
    return (1e9, "ppb", "parts per billion") if abs(value) >= 1e-12 else (1.0, "", "")


def share(value: float) -> str:
    """A share of things that are counted, never rounded up to all or down to none."""
    shown = f"{100.0 * value:.1f}"
    if shown in ("100.0", "0.0") and value not in (0.0, 1.0):
        return "more than 99.9%" if value > 0.5 else "less than 0.1%"
    return f"{shown.removesuffix('.0')}%"


def moment(value: datetime | None) -> str:
    """A time to the second, in UTC."""
    return _DASH if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def day(value: datetime) -> str:
    """The day of a time, in UTC, as people write it in a letter."""
    value = value.astimezone(UTC)
    return f"{value.day} {value:%B %Y}"


def minute(value: datetime) -> str:
    """The same with the time of day."""
    return f"{day(value)}, {value.astimezone(UTC):%H:%M} UTC"


def machine_time(value: datetime) -> str:
    """The same for the attribute `datetime`."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds")


def duration(seconds: float | timedelta | None) -> str:
    """A length of time in one or two units, as people say it."""
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
    """So many days, in words where they are whole."""
    return plural(int(count), "day") if count == int(count) else duration(86_400 * count)


def coarse(time: timedelta) -> str:
    """A length of time to the hour while there are days, else to the minute: a page at rest stays the same."""
    unit = timedelta(hours=1) if time >= timedelta(days=2) else timedelta(minutes=1)
    return duration(time // unit * unit) if time >= unit else duration(time)


def ago(time: timedelta) -> str:
    """How long ago something was, as coarse."""
    return f"{coarse(time)} ago" if time >= timedelta(minutes=1) else "just now"


def plural(count: int, one: str, several: str | None = None) -> str:
    """`count` with its noun."""
    return f"{number(count)} {one if count == 1 else several or one + 's'}"


def in_groups(digest: str) -> str:
    """A digest in groups of eight, to be compared by eye."""
    return " ".join(digest[start : start + 8] for start in range(0, len(digest), 8))


def _superscript(exponent: int) -> str:
    return str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
