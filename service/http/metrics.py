"""Counts and durations of answers by route template."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from service.http.middleware import Answer

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class HttpMetrics:
    """The metrics of one application, in the registry it is given."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answers = Counter(
            "lethe_http_requests_total",
            "Requests answered, by route template.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = Histogram(
            "lethe_http_request_seconds",
            "Time from the request's head to the end of its answer.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=registry,
        )
        # Looking a labelled child up costs more than counting; the combinations are few.
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def observe(self, answer: Answer) -> None:
        """Count one answer."""
        method = answer.method if answer.method in _METHODS else "OTHER"
        label = (method, answer.route, answer.status)
        children = self._children.get(label)
        if children is None:
            children = (
                self._answers.labels(method, answer.route, str(answer.status)),
                self._seconds.labels(method, answer.route),
            )
            self._children[label] = children
        children[0].inc()
        children[1].observe(answer.seconds)
