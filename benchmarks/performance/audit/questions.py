"""Questions of the audit's benchmark: pages with many, few or no matches, and contradictory filters."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_TODAY = datetime.now(UTC).date()
_DAY = timedelta(days=1)


@dataclass(frozen=True, eq=False)
class Question:
    """One request to the API."""

    name: str
    #: The p95 goal in milliseconds, if any.
    goal_ms: float | None
    path: str
    parameters: Mapping[str, str]
    body: Mapping[str, object] | None = None


def _list(name: str, **parameters: str) -> Question:
    return Question(f"list: {name}", 150, "/deletions", parameters)


def _search(name: str, **body: object) -> Question:
    return Question(f"search: {name}", 150, "/deletions/search", {}, body)


def _ago(days: int) -> str:
    return f"{_TODAY - days * _DAY}T00:00:00Z"


SUMMARIES = (
    Question("summary: everything", 300, "/audit/summary", {}),
    Question("summary: 30 days", 300, "/audit/summary", {"since": str(_TODAY - 30 * _DAY)}),
    Question("series: 30 days", None, "/audit/series", {}),
    Question("series: 48 hours", None, "/audit/series", {"step": "hour", "since": _ago(2)}),
    Question("series: 365 days", None, "/audit/series", {"since": _ago(365)}),
)
PAGES = (
    _list("newest"),
    _list("200 newest", limit="200"),
    _list("half a year ago", until=_ago(180)),
    _list("failed", status="failed"),
    _list("failed edges", status="failed", kind="edge"),
    _list("cancelled edges (none)", status="cancelled", kind="edge"),
    _list("projected alone", guarantee="span"),
    _list("not converged", repair="not_converged"),
    _list("repair pending (none)", repair="pending"),
    _list("retrained without a repair (contradiction)", guarantee="retrained", repair="none"),
    _list("failed and converged (contradiction)", status="failed", repair="converged"),
    _search("by reference", reference="DSR-170000"),
    _search("unknown reference (none)", reference="nobody"),
    _search("a reference of every tenth request", reference="DSR-shared"),
    _search(
        "that reference, edges with a norm (contradiction)",
        reference="DSR-shared",
        kind="edge",
        injected_norm_before_min=0,
    ),
    _search("norm before >= 0.9", injected_norm_before_min=0.9),
    _search("norm before >= 0.99999 (few)", injected_norm_before_min=0.99999),
    _search("norm after > 0 (none)", injected_norm_after_min=1e-12),
    _search("bound after >= 1e-3 (1 %)", distance_bound_after_relative_min=1e-3),
    _search("converged, bound >= 1e-3 (contradiction)", repair="converged", distance_bound_after_relative_min=1e-3),
    _search("span residual >= 1e-9 (none)", span_residual_min=1e-9),
    _search("projected alone, a month of last year's", guarantee="span", since=_ago(330), until=_ago(300)),
    _search("edges with a norm (contradiction)", kind="edge", injected_norm_before_min=0),
    _search("failed with a bound (contradiction)", status="failed", distance_bound_after_relative_min=0),
    _search("norm after above norm before (contradiction)", injected_norm_before_max=0.5, injected_norm_after_min=0.5),
    _search(
        "every figure bounded, edges (contradiction)",
        kind="edge",
        guarantee="retrained",
        injected_norm_before_min=0,
        injected_norm_after_min=0,
        distance_bound_before_relative_min=0,
        distance_bound_after_relative_min=0,
        span_residual_min=0,
    ),
)
QUESTIONS = (*SUMMARIES, *PAGES)
