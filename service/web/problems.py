"""Errors as RFC 9457 problem documents, and checks of a request's head before the body is read."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from service.errors import (
    MOST_FAULTS,
    BodyTooLarge,
    InvalidRequest,
    LetheError,
    MissingScope,
    QueueFull,
    TooManyAttempts,
    Unauthenticated,
    Unavailable,
)
from service.text import in_words

#: Fields with a single value. Excludes lists, which may be sent in several fields.
_SINGLE = frozenset(
    name.encode()
    for name in (
        *("authorization", "content-encoding", "content-length", "content-type", "host", "idempotency-key"),
        *("if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-event-id"),
        *("origin", "range", "sec-fetch-site", "transfer-encoding"),
        *("hx-current-url", "hx-request", "hx-target", "hx-trigger", "lethe-shown"),
    )
)

_CHARSET = re.compile(rb';\s*charset\s*=\s*"?([^";\s]*)')
#: Names of UTF-8, and of its subset ASCII.
_UTF_8 = (b"utf-8", b"utf8", b"us-ascii", b"ascii")


class MalformedRequest(LetheError):
    """The head of a request is ambiguous."""

    status = 400
    slug = "malformed-request"
    title = "Malformed request"


class UnsupportedCoding(LetheError):
    """The body is compressed, or its text is not UTF-8."""

    status = 415
    slug = "unsupported-coding"
    title = "Unsupported content coding"


def require_plain_head(scope: Scope) -> None:
    """Raise MalformedRequest for an ambiguous head, and UnsupportedCoding for a compressed or non-UTF-8 body."""
    times = Counter(name for name, _ in scope["headers"])
    repeated = sorted(name.decode() for name in times.keys() & _SINGLE if times[name] > 1)
    if repeated:
        raise MalformedRequest(
            f"The header field {repeated[0]} occurs {times[repeated[0].encode()]} times.", "Send it once."
        )
    if scope["http_version"] == "1.1" and not times[b"host"]:
        raise MalformedRequest("The request has no Host field, which HTTP/1.1 requires.", "Send one.")
    fields = dict(scope["headers"])
    for name, plain in (("Content-Encoding", b"identity"), ("Transfer-Encoding", b"chunked")):
        if fields.get(name.lower().encode(), plain).strip().lower() != plain:
            raise UnsupportedCoding(f"{name} declares a compressed or encoded body.", "Send the body unencoded.")
    charset = _CHARSET.search(fields.get(b"content-type", b"").lower())
    if charset is not None and charset[1] not in _UTF_8:
        raise UnsupportedCoding("The charset in Content-Type is not UTF-8.", "Send UTF-8, and omit the charset.")


MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:lethe:problem:"
LONGEST_PART = 200
#: Remedy for a body over the limit.
BODY_REMEDY = "Split it into several requests, or ask the operator to raise LETHE_MAX_BODY_BYTES."

#: For refusals by the web framework and unforeseen errors, by status: slug, title, detail, remedy.
FRAMEWORK_ERRORS: dict[int, tuple[str, str, str, str]] = {
    400: (
        "malformed-body",
        "Malformed body",
        "The body is not UTF-8 encoded JSON.",
        "Send a JSON document; /docs has an example for every route.",
    ),
    404: (
        "no-such-route",
        "No such route",
        "This path does not exist.",
        "See /docs for the routes and their methods.",
    ),
    405: (
        "method-not-allowed",
        "Method not allowed",
        "This path does not support this method.",
        "Use a method from the Allow header; see /docs.",
    ),
    415: (
        "unsupported-media-type",
        "Unsupported media type",
        "The body is not declared as JSON.",
        "Send the header Content-Type: application/json.",
    ),
    422: (
        InvalidRequest.slug,
        InvalidRequest.title,
        "The request does not fit the schema of this route.",
        "Correct the members listed in `errors`; /docs has the schema and an example.",
    ),
    500: (
        "internal-error",
        "Internal error",
        "The server failed to process this request.",
        "Try again. If this persists, send the X-Request-ID of this answer to the operator.",
    ),
}


def problem(
    status: int,
    slug: str,
    title: str,
    detail: str,
    remedy: str,
    *,
    extra: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an application/problem+json response; `extra` adds members, but never replaces standard ones."""
    body: dict[str, Any] = dict(extra or {})
    body.update(type=TYPE_PREFIX + slug, title=title, status=status, detail=detail, remedy=remedy)
    return Response(
        orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS),
        status_code=status,
        headers=dict(headers or {}),
        media_type=MEDIA_TYPE,
    )


def for_route(path: str, answer: Response) -> Response:
    """Return a problem document, for a route of the Open Inference Protocol with that protocol's member `error`."""
    if path != "/v2" and not path.startswith("/v2/"):
        return answer
    document = orjson.loads(answer.body)
    document["error"] = f"{document['detail']} {document['remedy']}"
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return Response(orjson.dumps(document, option=orjson.OPT_SORT_KEYS), answer.status_code, headers)


def internal_error() -> Response:
    """Return the response to an unforeseen error; it reveals nothing internal."""
    return problem(500, *FRAMEWORK_ERRORS[500])


def of_error(error: LetheError) -> Response:
    """Return the problem document of a typed error, with the headers of its status."""
    if error.status == 500:
        return internal_error()
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated):
        invalid = ', error="invalid_token"' if error.extra.get("presented") else ""
        headers["WWW-Authenticate"] = f'Bearer realm="lethe"{invalid}'
    elif isinstance(error, MissingScope):
        scope = error.extra.get("scope", "")
        headers["WWW-Authenticate"] = f'Bearer realm="lethe", error="insufficient_scope", scope="{scope}"'
    elif isinstance(error, QueueFull | TooManyAttempts | Unavailable):
        headers["Retry-After"] = str(error.extra.get("retry_after", 1))
    elif isinstance(error, UnsupportedCoding):
        headers["Accept-Encoding"] = "identity"
    extra = {name: value for name, value in error.extra.items() if name != "presented"}
    return problem(error.status, error.slug, error.title, error.detail, error.remedy, extra=extra, headers=headers)


def of_validation(errors: Sequence[Mapping[str, Any]], content_type: str | None) -> Response:
    """Return the problem document for a body or parameters that violate the schema.

    It lists `{loc, msg}` for the first `MOST_FAULTS` faults and never repeats the values sent. A body that is not JSON
    gives 400, another media type 415.
    """
    first = errors[0] if errors else {}
    if first.get("type") == "json_invalid":
        return problem(400, *FRAMEWORK_ERRORS[400])
    if tuple(first.get("loc", ())) == ("body",) and first.get("type") != "missing" and not _is_json(content_type):
        return problem(415, *FRAMEWORK_ERRORS[415], headers={"Accept": "application/json"})
    faults = [{"loc": _place(fault), "msg": in_words(fault)[:LONGEST_PART]} for fault in errors[:MOST_FAULTS]]
    return problem(422, *FRAMEWORK_ERRORS[422], extra={"errors": faults})


def install(app: FastAPI) -> None:
    """Make `app` return every error as a problem document."""
    log = structlog.stdlib.get_logger(__name__)

    async def lethe_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, LetheError)
        if error.status == 500:
            log.error("http.error", error=type(error).__name__, route=route_template(request.scope))
        return for_route(request.url.path, of_error(error))

    async def validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return for_route(request.url.path, of_validation(error.errors(), request.headers.get("content-type")))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, LetheError):
            # Raised while the framework read the body.
            return for_route(request.url.path, of_error(error.__cause__))
        if error.status_code == BodyTooLarge.status:
            return for_route(request.url.path, of_error(BodyTooLarge(error.detail, BODY_REMEDY)))
        headers = error.headers
        if error.status_code == 405:
            headers = {"Allow": ", ".join(_methods_of(request))}
        slug, title, detail, remedy = FRAMEWORK_ERRORS.get(
            error.status_code,
            ("http-error", "Request refused", "The request was refused.", "/docs describes this route."),
        )
        answer = problem(error.status_code, slug, title, detail, remedy, headers=headers)
        return for_route(request.url.path, answer)

    async def unserialisable(request: Request, error: Exception) -> Response:
        log.error("http.answer_does_not_fit_schema", route=route_template(request.scope))
        return internal_error()

    app.add_exception_handler(LetheError, lethe_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(ResponseValidationError, unserialisable)


def _methods_of(request: Request) -> list[str]:
    """Return all methods of all routes that match the path; the framework knows only those of the first."""
    routes = request.app.router.routes
    return [
        method
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
        if any(
            # HEAD is handled as GET.
            route.matches({**request.scope, "method": method.replace("HEAD", "GET")})[0] is Match.FULL
            for route in routes
        )
    ]


def route_template(scope: Scope) -> str:
    """Return the template of the matched route, such as `/predict/{node}`; `unmatched` if none matched.

    Logs and metrics use it instead of the path, which may contain an id.
    """
    path = getattr(scope.get("route"), "path", None)
    return path.replace(":path}", "}") if isinstance(path, str) else "unmatched"


def _place(fault: Mapping[str, Any]) -> list[str | int]:
    return [part[:LONGEST_PART] if isinstance(part, str) else part for part in fault["loc"]]


def _is_json(content_type: str | None) -> bool:
    essence = (content_type or "").partition(";")[0].strip().lower()
    return essence == "application/json" or (essence.startswith("application/") and essence.endswith("+json"))
