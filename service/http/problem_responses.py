"""What /docs says of errors: which problem documents a route can answer, with an example of each."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.http.problems import FRAMEWORK_ERRORS, MEDIA_TYPE, TYPE_PREFIX


class Problem(BaseModel):
    """An error as RFC 9457 has it. Further members depend on the type."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="A URI that names the kind of problem; compare this, not the title.")
    title: str
    status: int
    detail: str = Field(description="What was wrong with this request.")
    remedy: str = Field(description="What to do about it.")


#: What /docs says of a 202 answer beside its body.
LOCATION: dict[int | str, dict[str, Any]] = {
    202: {"headers": {"Location": {"description": "Where the request is found.", "schema": {"type": "string"}}}}
}

#: status -> (slug, title, detail, remedy, further members)
_EXAMPLES: dict[int, tuple[str, str, str, str, dict[str, Any]]] = {
    400: (*FRAMEWORK_ERRORS[400], {}),
    401: (
        "unauthenticated",
        "API key required",
        "This route requires an API key.",
        "Send `Authorization: Bearer lethe_…`.",
        {},
    ),
    403: (
        "missing-scope",
        "Scope missing",
        "This route requires the scope deletions:write, which the API key lacks.",
        "Use a key with deletions:write.",
        {"scope": "deletions:write"},
    ),
    404: (
        "not-found",
        "Not found",
        "Unknown node or request, or one that this key may not see.",
        "Check the id.",
        {},
    ),
    409: (
        "conflict",
        "Conflict",
        "This Idempotency-Key was used before with a different body.",
        "Use a new Idempotency-Key for a new request.",
        {},
    ),
    410: (
        "node-deleted",
        "Node deleted",
        "The node was deleted on request.",
        "Do not request it again: its data is gone. A person who returns needs a new id.",
        {},
    ),
    413: (
        "too-large",
        "Request too large",
        "The body is larger than 1048576 bytes.",
        "Split it into several requests.",
        {},
    ),
    415: (*FRAMEWORK_ERRORS[415], {}),
    422: (
        *FRAMEWORK_ERRORS[422],
        {"errors": [{"loc": ["body", "node", "nodes"], "msg": "must name at least 1"}]},
    ),
    429: (
        "too-many-attempts",
        "Too many attempts",
        "Too many unknown API keys from your address: 300 within 60 seconds.",
        "Try again in 12 seconds.",
        {"retry_after": 12},
    ),
    500: (*FRAMEWORK_ERRORS[500], {}),
    503: ("unavailable", "Temporarily unavailable", "Postgres does not answer.", "Try again in a moment.", {}),
}
#: An ambiguous head, a compressed body, unknown input, and unexpected errors.
_EVERYWHERE = (400, 415, 422, 500)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that can answer these error statuses, besides those that every route can.

    Where a key is needed, there may have been too many wrong ones.
    """
    all_statuses = sorted({*_EVERYWHERE, *statuses, *([429] if 401 in statuses else [])})
    return {status: _response(status) for status in all_statuses}


def _response(status: int) -> dict[str, Any]:
    slug, title, detail, remedy, extra = _EXAMPLES[status]
    example = {"type": TYPE_PREFIX + slug, "title": title, "status": status, "detail": detail, "remedy": remedy}
    document: dict[str, Any] = {
        "description": title,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example | extra}},
    }
    headers = {
        401: {"WWW-Authenticate": "Names the Bearer scheme."},
        403: {"WWW-Authenticate": "Names the scope that is missing."},
        429: {"Retry-After": "Seconds to wait."},
        503: {"Retry-After": "Seconds to wait."},
    }.get(status, {})
    if headers:
        document["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()
        }
    return document
