"""The outermost layer of every response: id, security headers, size limit, log line and last-resort error."""

import asyncio
import os
import time
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.db.transactions import CommitUnanswered
from service.errors import BodyTooLarge, LetheError
from service.observability import tracing
from service.observability.logging import Answer
from service.web.problems import BODY_REMEDY, for_route, internal_error, of_error, require_plain_head, route_template

#: Default headers of every response. Responses may contain personal data, so nobody may store them.
SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_OVERRIDABLE = frozenset({b"cache-control", b"content-security-policy"})
#: Status in the log when the caller left before the response began.
CLIENT_GONE = 499


class OuterMiddleware:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body_bytes: int,
        observe: Callable[[Answer], None],
    ) -> None:
        """`observe` receives every response."""
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._observe = observe
        self._log = structlog.stdlib.get_logger(__name__)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope; passes on anything but HTTP unchanged."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = scope["method"]
        if asked == "HEAD":
            # Handled as GET; the server omits the body.
            scope = {**scope, "method": "GET"}
        started = time.perf_counter()
        request_id = os.urandom(12).hex()
        status = CLIENT_GONE

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                own = {name for name, _ in headers} & _OVERRIDABLE
                headers.extend(pair for pair in SECURITY_HEADERS if pair[0] not in own)
                headers.append((b"x-request-id", request_id.encode()))
                message["headers"] = headers
            await send(message)

        try:
            if refusal := self._refusal(scope):
                await for_route(scope["path"], of_error(refusal))(scope, receive, send_guarded)
            else:
                await self._app(scope, self._limited(receive), send_guarded)
        except asyncio.CancelledError:
            # The server stops, and waits no longer. It says so, and the caller can repeat the request.
            if status != CLIENT_GONE:
                raise
            await of_error(_stopped())(scope, receive, send_guarded)
        except Exception as error:  # noqa: BLE001 - the last resort: whatever it is, the caller gets an answer
            # Type and place only. The log withholds exception messages, which may quote input.
            self._log.error("http.unexpected_error", route=route_template(scope), request=request_id, exc_info=error)
            if status != CLIENT_GONE:
                raise BrokenAnswer(request_id) from None
            await for_route(scope["path"], internal_error())(scope, receive, send_guarded)
        finally:
            seconds = time.perf_counter() - started
            self._observe(Answer(request_id, asked, route_template(scope), status, seconds))

    def _refusal(self, scope: Scope) -> LetheError | None:
        try:
            require_plain_head(scope)
        except LetheError as error:
            return error
        return self._too_large() if self._declared_too_large(scope) else None

    def _declared_too_large(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"content-length":
                return len(value) > 18 or (value.isdigit() and int(value) > self._max_body_bytes)
        return False

    def _limited(self, receive: Receive) -> Receive:
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_body_bytes:
                    # Only an HTTPException passes unchanged through the framework's reading of the body.
                    raise HTTPException(BodyTooLarge.status, detail=self._too_large().detail)
            return message

        return receive_limited

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than {self._max_body_bytes} bytes.", BODY_REMEDY)


#: Routes that accept a request of some kind: the calls that are traced. None has a parameter.
TRACED = frozenset({"/deletions", "/additions", "/corrections", "/drills"})


class TracedRequests:
    """ASGI middleware that traces the calls by which requests are accepted; added only if this process traces."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope; passes on anything but these calls unchanged."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in TRACED:
            await self._app(scope, receive, send)
            return
        parents = [value.decode("latin-1") for name, value in scope["headers"] if name == b"traceparent"]
        attributes = {"http.request.method": "POST", "http.route": scope["path"]}
        with tracing.request(f"POST {scope['path']}", parents, attributes) as span:

            async def send_noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._app(scope, receive, send_noted)


def _stopped() -> CommitUnanswered:
    return CommitUnanswered(
        "Lethe stopped before it had the answer.",
        "It is unknown whether anything was stored. Repeat the request with the same Idempotency-Key.",
    )


class BrokenAnswer(Exception):
    """A response failed after its first bytes; the connection is cut. Contains only the request's id."""


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class HttpMetrics:
    """The HTTP metrics of one application, in its registry."""

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
        # Cached, because looking up a labelled child costs more than counting; there are few combinations.
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def observe(self, answer: Answer) -> None:
        """Count one response."""
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
