"""The access log: one line for each answer, by route template."""

import structlog

#: Routes that monitoring asks every few seconds; their answers are logged at `debug`.
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})
_logger = structlog.stdlib.get_logger("lethe.access")


def log_answer(*, request_id: str, method: str, route: str, status: int, seconds: float) -> None:
    """Log one answer. `route` is the template (`/predict/{node}`), never the path; nothing of the caller is logged."""
    log = _logger.debug if route in _PROBES and status < 500 else _logger.info
    log("http.answered", request=request_id, method=method, route=route, status=status, ms=round(seconds * 1000, 2))
