"""Strict routes: input checks, responses, and descriptions of their errors in /docs."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, ClassVar

import orjson
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from service.errors import (
    BodyTooLarge,
    Conflict,
    InvalidRequest,
    MissingScope,
    NodeDeleted,
    NotFound,
    TooManyAttempts,
    Unauthenticated,
    Unavailable,
)
from service.web.problems import FRAMEWORK_ERRORS, LONGEST_PART, MEDIA_TYPE, TYPE_PREFIX


class StrictRoute(APIRoute):
    """A route that accepts each declared query parameter at most once, and no others; base of all of Lethe's routes."""

    #: Whether to refuse a body that no parameter declares; false for routes that read forms, which declare none.
    refuses_bodies: ClassVar[bool] = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that the framework calls."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            self.require_known(request)
            return await handle(request)

        return handle_strictly

    def require_known(self, request: Request) -> None:
        """Raise InvalidRequest for input that the endpoint would ignore."""
        fields = request.headers
        if (
            self.refuses_bodies
            and self.body_field is None
            and (fields.get("content-length", "0") != "0" or "transfer-encoding" in fields)
        ):
            raise InvalidRequest("This route accepts no body.", "Send no body; /docs describes each route.")
        if not request.scope["query_string"]:
            return
        known = _query_names(self.dependant)
        for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
            shown = name[:LONGEST_PART]
            if name not in known:
                takes = f"It takes {', '.join(sorted(known))}." if known else "It accepts none."
                raise _refused(shown, f"This route has no query parameter `{shown}`.", takes)
            if times > 1:
                raise _refused(shown, f"The query parameter `{shown}` is given {times} times.", "Give it once.")


def _refused(name: str, detail: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(detail, remedy, errors=[{"loc": ["query", name], "msg": detail}])


def _query_names(dependant: Dependant) -> set[str]:
    """Return the names of a route's query parameters, including the fields of a parameter model."""
    names = {name for inner in dependant.dependencies for name in _query_names(inner)}
    for field in dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            names |= {info.alias or name for name, info in model.model_fields.items()}
        else:
            names.add(field.alias)
    return names


def reply(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return `model` as JSON. The route declares it as `response_model`, so /docs knows the schema."""
    content = model.__pydantic_serializer__.to_json(model, by_alias=True)
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def reply_record(record: Any) -> Response:
    """Return a frozen dataclass, or a dict of them, as JSON; fast, for prediction routes."""
    return Response(orjson.dumps(record), media_type="application/json")


def page_reply(html: str, policy: str, status: int = 200) -> Response:
    """Return a page with its Content-Security-Policy."""
    return HTMLResponse(html, status, headers={"Content-Security-Policy": policy})


async def file_reply(parts: AsyncIterator[bytes], name: str, media_type: str) -> Response:
    """Return a file download, streamed as it is made. The first part's errors are raised before the response begins."""
    first = await anext(parts)

    async def content() -> AsyncIterator[bytes]:
        yield first
        async for part in parts:
            yield part

    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(content(), media_type=media_type, headers=disposition)


class Problem(BaseModel):
    """An error in the format of RFC 9457. Further members depend on the type."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="A URI that names the kind of problem; compare this, not the title.")
    title: str
    status: int
    detail: str = Field(description="What was wrong with this request.")
    remedy: str = Field(description="What to do about it.")


#: Description in /docs of a 202 response's headers.
LOCATION: dict[int | str, dict[str, Any]] = {
    202: {"headers": {"Location": {"description": "Where the request is found.", "schema": {"type": "string"}}}}
}

#: An error of each status that a route may name.
_TYPED = (
    Unauthenticated("This route requires an API key.", "Send `Authorization: Bearer lethe_…`."),
    MissingScope(
        "This route requires the scope deletions:write, which the API key lacks.",
        "Use a key with deletions:write.",
        scope="deletions:write",
    ),
    NotFound("Unknown node or request, or one that this key may not see.", "Check the id."),
    Conflict(
        "This Idempotency-Key was used before with a different body.", "Use a new Idempotency-Key for a new request."
    ),
    NodeDeleted(
        "The node was deleted on request.",
        "Do not request it again: its data is gone. If the person returns, add the node with `rejoin`.",
    ),
    BodyTooLarge("The body is larger than 1048576 bytes.", "Split it into several requests."),
    TooManyAttempts(
        "Too many unknown API keys or tokens from your address: 300 within 60 seconds.",
        "Try again in 12 seconds.",
        retry_after=12,
    ),
    Unavailable("Postgres does not answer.", "Try again in a moment."),
)
#: status -> (slug, title, detail, remedy, further members)
_EXAMPLES: Mapping[int, tuple[str, str, str, str, Mapping[str, Any]]] = {
    **{status: (*words, {}) for status, words in FRAMEWORK_ERRORS.items()},
    **{error.status: (error.slug, error.title, error.detail, error.remedy, error.extra) for error in _TYPED},
    422: (*FRAMEWORK_ERRORS[422], {"errors": [{"loc": ["body", "node", "nodes"], "msg": "must name at least 1"}]}),
}
#: An ambiguous head, a compressed body, unknown input, and unexpected errors.
_EVERYWHERE = (400, 415, 422, 500)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route with these error statuses, besides those of every route.

    Routes that need a key can also refuse after too many wrong ones.
    """
    all_statuses = sorted({*_EVERYWHERE, *statuses, *([429] if 401 in statuses else [])})
    return {status: _response(status) for status in all_statuses}


def _response(status: int) -> dict[str, Any]:
    slug, title, detail, remedy, extra = _EXAMPLES[status]
    example = {"type": TYPE_PREFIX + slug, "title": title, "status": status, "detail": detail, "remedy": remedy}
    document: dict[str, Any] = {
        "description": title,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": {**example, **extra}}},
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
