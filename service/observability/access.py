"""The access log: one line for each answer, by route template."""

import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import orjson

from service.observability.logging import LogFormat

#: Routes that monitoring asks every few seconds; their answers are logged at `debug`.
_PROBES = frozenset({"/healthz", "/readyz", "/readyz/predictions", "/metrics"})


class AccessLog:
    """Writes lines of the form that `configure_logging` gives all others, without going through it.

    A line through structlog and the standard library costs as much as the rest of a prediction (37 of 65 us); this, 4.
    """

    def __init__(self, log_format: LogFormat, level: str, stream: TextIO | None = None, *, process: str) -> None:
        """Lines of `process` below `level` are left out; `stream` is standard error by default."""
        self._process = process
        self._json = log_format == "json"
        self._level = logging.getLevelNamesMapping()[level.upper()]
        self._stream = sys.stderr if stream is None else stream
        #: Lines that the stream did not take since the last one that it took.
        self._lost = 0

    def answered(self, *, request_id: str, method: str, route: str, status: int, seconds: float) -> None:
        """Log one answer. `route` is the template (`/predict/{node}`), never the path; the caller is not named.

        A log that cannot be written, as on a full disk, keeps nobody from their answer; the next line that can be says
        how many are missing before it.
        """
        level = logging.DEBUG if route in _PROBES and status < 500 else logging.INFO
        if level < self._level:
            return
        name = "debug" if level == logging.DEBUG else "info"
        missing = self._lost
        timestamp = f"{datetime.now(UTC).replace(tzinfo=None).isoformat()}Z"
        ms = round(seconds * 1000, 2)
        if self._json:
            line = orjson.dumps(
                {
                    "request": request_id,
                    "method": method,
                    "route": route,
                    "status": status,
                    "ms": ms,
                    "logger": "lethe.access",
                    "level": name,
                    "process": self._process,
                    "timestamp": timestamp,
                    "message": "http.answered",
                }
                | ({"lines_lost_before": missing} if missing else {})
            ).decode()
        else:
            line = (
                f"{timestamp} [{name:<9}] {'http.answered':<30} [lethe.access] "
                f"method={method} ms={ms} process={self._process} request={request_id} route={route} status={status}"
            ) + (f" lines_lost_before={missing}" if missing else "")
        try:
            self._stream.write(line + "\n")
        except OSError:
            self._lost += 1
        else:
            self._lost = 0
