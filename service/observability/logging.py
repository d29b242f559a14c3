"""Log lines on standard error, in one format for Lethe and its libraries, and without personal ids."""

import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

import orjson
import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from service.errors import (
    ConfigurationError,
    EmbeddedServerError,
    KeyMissing,
    LeaseLost,
    LetheError,
    StateMismatch,
    Unavailable,
)
from service.observability.tracing import trace_id, with_ids

LogFormat = Literal["console", "json"]

#: Names whose values could be or contain an id.
_PERSONAL = frozenset(
    {"node", "nodes", "edge", "edges", "external_id", "ids", "unknown", "deleted", "reference", "targets", "body"}
    | {"path", "query", "url", "headers", "client"}
)
_WITHHELD = "[withheld]"
#: Events logged at each attempt while a server or a disk is unavailable.
_OF_OUTAGES = frozenset(
    {"outage", "lease.renewal_failed", "limits.local", "stream.unacknowledged", "webhook.not_recorded"}
)
#: Seconds between two log lines about the same outage.
_REPEAT_AFTER_S = 60.0
#: Errors about operating the service. We write their texts, which identify no person.
_OPERATIONAL = (ConfigurationError, EmbeddedServerError, KeyMissing, LeaseLost, StateMismatch, Unavailable)


def configure_logging(log_format: LogFormat, level: str, stream: TextIO | None = None, *, process: str) -> None:
    """Send every log line of the process, structlog's and the standard library's, to `stream` (standard error).

    Each line has a field `process`: the process name as in `ps` and in metrics.

    Start uvicorn with `log_config=None, access_log=False`: its own lines then arrive here, and `AccessLog` replaces
    its access log, which contains paths.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        with_ids,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _of(process),
        _place_of_exception,
        _withhold_personal,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            OutageThrottle(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _first_line],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _drop_color_message,
                *_renderers(log_format, colors=target.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "sqlalchemy", "alembic"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = name != "uvicorn.access"
    logging.getLogger("uvicorn.access").disabled = True
    for name in ("sqlalchemy", "alembic", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    # Below `debug`, which no setting selects, uvicorn logs whole requests and their senders.
    logging.disable(logging.DEBUG - 1)
    logging.captureWarnings(capture=True)


class OutageThrottle:
    """Drops lines about an outage that was logged within the last minute; the next line counts them.

    Every activity of the process logs the same outage at each attempt, so lines are grouped by reason.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Reason -> time of its last line, and number of lines dropped since.
        self._logged: dict[str, tuple[float, int]] = {}

    def __call__(self, _logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
        """Pass a line on, or raise DropEvent."""
        if line["event"] not in _OF_OUTAGES or "reason" not in line:
            return line
        reason, now = str(line["reason"]), self._clock()
        logged_at, dropped = self._logged.get(reason, (-math.inf, 0))
        if now - logged_at < _REPEAT_AFTER_S:
            self._logged[reason] = (logged_at, dropped + 1)
            raise structlog.DropEvent
        # Forget reasons of outages that are over.
        self._logged = {each: last for each, last in self._logged.items() if now - last[0] < 2 * _REPEAT_AFTER_S}
        self._logged[reason] = (now, 0)
        if dropped:
            line["lines_like_this"] = dropped
        return line


def _renderers(log_format: LogFormat, *, colors: bool) -> Iterator[Processor]:
    if log_format == "json":
        yield structlog.processors.EventRenamer("message")
        yield structlog.processors.JSONRenderer(serializer=_to_json)
    else:
        yield structlog.dev.ConsoleRenderer(colors=colors)


def _to_json(line: MutableMapping[str, Any], **_: object) -> str:
    return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _of(process: str) -> Processor:
    # A closure instead of a context variable, because executor threads have contexts of their own.
    def name(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
        line["process"] = process
        return line

    return name


def _withhold_personal(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    for name in _PERSONAL & line.keys():
        if not isinstance(line[name], int | float):
            line[name] = _WITHHELD
    return line


def _drop_color_message(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    line.pop("color_message", None)
    return line


def _first_line(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    """Keep the first line of a library's message; asyncio, for example, quotes an exception's message on the next.

    If a library rendered a traceback itself, as uvicorn does for a failed start, keep the type of the error.
    """
    first, *others = str(line["event"]).strip().split("\n")
    if first.startswith("Traceback "):
        # Frames are indented; `type: message` follows them.
        error = next((other for other in others if not other.startswith(" ")), "an error")
        first = f"Failed with {error.partition(':')[0]}."
    line["event"] = first
    return line


def _place_of_exception(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    error = _exception(line.pop("exc_info", None))
    if error is not None:
        line["exception"] = "\n".join(_describe(error))
    return line


def _exception(exc_info: bool | BaseException | ExcInfo | None) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return exc_info[1]
    return sys.exc_info()[1] if exc_info else None


def _describe(error: BaseException, depth: int = 0) -> Iterator[str]:
    """Yield types and places of `error`, its causes and its grouped errors; texts only if we wrote them."""
    operational = isinstance(error, LetheError) and type(error) in _OPERATIONAL
    yield f"{type(error).__module__}.{type(error).__qualname__}" + (f": {error}" if operational else "")
    yield from _frames(error.__traceback__)
    if depth >= 5:
        return
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        yield "after"
        yield from _describe(cause, depth + 1)
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield "containing"
            yield from _describe(part, depth + 1)


def _frames(trace: TracebackType | None) -> Iterator[str]:
    for frame in traceback.extract_tb(trace)[-12:]:
        yield f"  {frame.filename}:{frame.lineno} in {frame.name}"


#: Routes that monitoring polls every few seconds; their responses are logged at `debug`.
_PROBES = frozenset({"/healthz", "/readyz", "/readyz/predictions", "/metrics"})


@dataclass(frozen=True, slots=True)
class Answer:
    """Log and metrics data of one request; contains the route's template, never its path."""

    request_id: str
    method: str
    route: str
    status: int
    seconds: float


class AccessLog:
    """Writes access lines in the format of `configure_logging`, but bypasses it.

    A line through structlog and the standard library costs as much as the rest of a prediction (37 of 65 us); this one
    costs 4.
    """

    def __init__(self, log_format: LogFormat, level: str, stream: TextIO | None = None, *, process: str) -> None:
        """Lines of `process` below `level` are dropped; `stream` defaults to standard error."""
        self._process = process
        self._json = log_format == "json"
        self._level = logging.getLevelNamesMapping()[level.upper()]
        self._stream = sys.stderr if stream is None else stream
        #: Lines that the stream refused since the last successful one.
        self._lost = 0

    def answered(self, answer: Answer) -> None:
        """Log one response. `route` is the template (`/predict/{node}`), never the path; the caller is not named.

        A log that cannot be written, as on a full disk, never blocks a response. The next line that succeeds counts the
        missing ones before it.
        """
        level = logging.DEBUG if answer.route in _PROBES and answer.status < 500 else logging.INFO
        if level < self._level:
            return
        name = "debug" if level == logging.DEBUG else "info"
        missing = self._lost
        timestamp = f"{datetime.now(UTC).replace(tzinfo=None).isoformat()}Z"
        ms = round(answer.seconds * 1000, 2)
        trace = trace_id()
        if self._json:
            line = orjson.dumps(
                {
                    "request": answer.request_id,
                    "method": answer.method,
                    "route": answer.route,
                    "status": answer.status,
                    "ms": ms,
                    "logger": "lethe.access",
                    "level": name,
                    "process": self._process,
                    "timestamp": timestamp,
                    "message": "http.answered",
                }
                | ({"lines_lost_before": missing} if missing else {})
                | ({} if trace is None else {"trace_id": trace})
            ).decode()
        else:
            line = (
                f"{timestamp} [{name:<9}] {'http.answered':<30} [lethe.access] "
                f"method={answer.method} ms={ms} process={self._process} request={answer.request_id} "
                f"route={answer.route} status={answer.status}"
            ) + (f" lines_lost_before={missing}" if missing else "")
            line += "" if trace is None else f" trace_id={trace}"
        try:
            self._stream.write(line + "\n")
        except OSError:
            self._lost += 1
        else:
            self._lost = 0
