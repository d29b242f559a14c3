"""Traces of requests, by OpenTelemetry and OTLP over HTTP, if the standard environment variables ask for them.

No span carries an id of a node: names, attributes and states are written here, and of errors only the type. The
tracer is our own, so a library that traces globally records nothing. Without traces, no package of OpenTelemetry is
imported.
"""

import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from service import failure_points
from service.errors import ConfigurationError
from service.failure_points import FailurePoint
from service.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span, Tracer

#: A parent in W3C's format, as the outbox and the stream carry it.
_TRACEPARENT = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PROTOCOL = "http/protobuf"
#: Longest wait for the last export at the end of a process (seconds).
_LAST_EXPORT_S = 3.0

#: The tracer of this process; None without traces.
_tracer: "Tracer | None" = None


class _Here(NamedTuple):
    """A span under way."""

    span: "Span"
    #: In W3C's format.
    traceparent: str


#: The span that the current task works in. Our own: OpenTelemetry's context costs as much as a span.
_here: ContextVar[_Here | None] = ContextVar("span", default=None)


class Attributes(Protocol):
    """What may be added to a span."""

    def set_attribute(self, key: str, value: str | int) -> None:
        """Add an attribute; it must not carry an id of a node."""


class _NoSpan:
    def set_attribute(self, key: str, value: str | int) -> None:
        """Do nothing."""


def is_on() -> bool:
    """Return whether this process traces."""
    return _tracer is not None


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for traces. Raises ConfigurationError if it asks for what Lethe lacks."""

    def value(*names: str) -> str:
        return next(filter(None, (environment.get(name, "").strip() for name in names)), "")

    exporter = value("OTEL_TRACES_EXPORTER")
    endpoint = value("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if value("OTEL_SDK_DISABLED").lower() == "true" or exporter == "none" or not (exporter or endpoint):
        return False
    if exporter not in ("", "otlp"):
        raise ConfigurationError(
            f"OTEL_TRACES_EXPORTER asks for {exporter}, and Lethe exports traces by OTLP only.",
            "Set it to otlp, or to none for no traces.",
        )
    protocol = value("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in ("", _PROTOCOL):
        raise ConfigurationError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL asks for {protocol}, and Lethe exports traces by {_PROTOCOL} only.",
            f"Set it to {_PROTOCOL}, and the endpoint to the collector's port for it, usually 4318.",
        )
    return True


@contextmanager
def traced(environment: Mapping[str, str], process: str) -> Iterator[None]:
    """Export the traces of `process` inside the block, if `environment` (that of this process) asks for them.

    Raises ConfigurationError if it asks for what Lethe lacks, or if the packages are not installed.
    """
    global _tracer
    if not is_asked_for(environment):
        yield
        return
    provider = _provider(process)
    _tracer = provider.get_tracer("lethe", VERSION)
    try:
        yield
    finally:
        _tracer = None
        # Not for longer: a collector that does not answer must not delay the end of a process.
        closing = threading.Thread(target=provider.shutdown, name="last export", daemon=True)
        closing.start()
        closing.join(_LAST_EXPORT_S)


def _provider(process: str) -> "TracerProvider":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigurationError(
            f"The environment asks for traces, and the package {error.name} is not installed.",
            "Install the extra `traces`: in a checkout `.venv/bin/python -m pip install -r requirements-traces.txt`, "
            "elsewhere with the wheel. Or unset OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_ENDPOINT.",
        ) from error
    own = Resource({SERVICE_NAME: "lethe", SERVICE_VERSION: VERSION, "lethe.process": process})
    named = Resource.create()
    if str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        named = named.merge(own)
    provider = TracerProvider(resource=own.merge(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def request(
    name: str, traceparents: Sequence[str], attributes: Mapping[str, str]
) -> AbstractContextManager[Attributes]:
    """Trace the answer to a request; `traceparents` are the values of its header of that name.

    The trace continues the caller's, if there is one value and it is valid. No attribute may carry an id of a node.
    """
    if _tracer is None:
        return nullcontext(_NoSpan())
    return _Span(name, "SERVER", traceparents[0] if len(traceparents) == 1 else None, attributes=attributes)


def note(key: str, value: str) -> None:
    """Add an attribute to the current span; it must not carry an id of a node."""
    here = _here.get()
    if here is not None:
        here.span.set_attribute(key, value)


def traceparent() -> str | None:
    """Return the current span in W3C's format; None without one."""
    here = _here.get()
    return None if here is None else here.traceparent


def trace_id() -> str | None:
    """Return the id of the current trace, 32 hexadecimal digits; None without one."""
    here = _here.get()
    return None if here is None else here.traceparent[3:35]


def with_ids(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the ids of the current span to a line of the log; a processor of structlog."""
    here = _here.get()
    if here is not None:
        event["trace_id"], event["span_id"] = here.traceparent[3:35], here.traceparent[36:52]
    return event


T = TypeVar("T")


async def stepped(name: str, work: Awaitable[T], requests: Sequence[str] = ()) -> T:
    """Do `work` in a span that links to its `requests` (traceparents), with a span for each durable step.

    A step's span has the name of the point that ends it. The span of `work` continues the trace of the first request
    that is sampled; the trace of every other has a span of the same time, which links here.
    """
    if _tracer is None:
        return await work
    from opentelemetry.trace import Link

    parent = next((one for one in requests if _is_sampled(one)), next(iter(requests), None))
    links = [link for one in requests if (link := _link(one)) is not None]
    since = time.time_ns()
    with _Span(name, "CONSUMER" if requests else "INTERNAL", parent, links) as span:
        token = failure_points.observer.set(_steps(span))
        try:
            return await work
        finally:
            failure_points.observer.reset(token)
            here = [Link(span.get_span_context())]
            _passed(f"{name} of several", (one for one in requests if one != parent), since, here)


def passed(point: FailurePoint, requests: Mapping[Any, str | None], since: int) -> None:
    """Add a span to the trace of each of `requests` (traceparents): it reached `point` now, from `since` on (ns)."""
    if _tracer is not None:
        _passed(point.value, filter(None, requests.values()), since)


def _passed(name: str, requests: "Iterator[str]", since: int, links: "Sequence[Link]" = ()) -> None:
    if _tracer is None:
        return
    from opentelemetry.trace import SpanKind

    for context in filter(None, map(_context, requests)):
        _tracer.start_span(name, context, SpanKind.CONSUMER, links=links, start_time=since).end()


def _steps(parent: "Span") -> Callable[[FailurePoint], None]:
    """Return a function that ends the span of a step of `parent` at each point, from the point before."""
    from opentelemetry.trace import set_span_in_context

    context, since = set_span_in_context(parent), time.time_ns()

    def reached(point: FailurePoint) -> None:
        nonlocal since
        now = time.time_ns()
        if _tracer is not None:
            _tracer.start_span(point.value, context, start_time=since).end(now)
        since = now

    return reached


class _Span:
    """Opens a span as the current one while this process traces. An error leaves its type in it, not its message."""

    def __init__(
        self,
        name: str,
        kind: str,
        parent: str | None = None,
        links: "Sequence[Link]" = (),
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        from opentelemetry.trace import SpanKind

        assert _tracer is not None
        context = None if parent is None else _context(parent)
        self._span = _tracer.start_span(name, context, SpanKind[kind], attributes, links)
        self._token: Token[_Here | None] | None = None

    def __enter__(self) -> "Span":
        own = self._span.get_span_context()
        written = f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags & 0xFF:02x}"
        self._token = _here.set(_Here(self._span, written))
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        _here.reset(self._token)
        if kind is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", kind.__qualname__)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


def _context(parent: str) -> "Context | None":
    """Return the context of a traceparent; None if it is not one."""
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not _TRACEPARENT.fullmatch(parent):
        return None
    context = TraceContextTextMapPropagator().extract({"traceparent": parent}, Context())
    return context if get_current_span(context).get_span_context().is_valid else None


def _link(parent: str) -> "Link | None":
    from opentelemetry.trace import Link, get_current_span

    context = _context(parent)
    return None if context is None else Link(get_current_span(context).get_span_context())


def _is_sampled(parent: str) -> bool:
    return int(parent[-2:], 16) & 1 == 1 if _TRACEPARENT.fullmatch(parent) else False
