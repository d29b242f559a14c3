"""Checks of text in settings."""

from collections.abc import Callable

from pydantic import AfterValidator


def scheme(*allowed: str) -> AfterValidator:
    """Return a check that a URL has one of these schemes."""

    def check(url: str | None) -> str | None:
        if url is not None and url.partition("://")[0] not in allowed:
            raise ValueError(f"must start with {' or '.join(f'{scheme}://' for scheme in allowed)}")
        return url

    return AfterValidator(check)


def promise_text(text: str | None) -> str | None:
    """Check that a text is a privacy level, EPSILON,DELTA. Raises ValueError."""
    if text is not None:
        parts = text.split(",")
        try:
            epsilon, delta = map(float, parts)
        except ValueError:
            raise ValueError("must be two numbers EPSILON,DELTA, such as 1,1e-4") from None
        if not (0 <= epsilon < float("inf") and 0 < delta < 1):
            raise ValueError("must have an epsilon of at least 0 and a delta between 0 and 1")
    return text


def readable(read: Callable[[str], object]) -> AfterValidator:
    """Return a check that `read` reads a text."""

    def check(url: str | None) -> str | None:
        if url is not None:
            read(url)
        return url

    return AfterValidator(check)
