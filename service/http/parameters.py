"""What a route takes beside its path: anything else, and anything given twice, is refused by its name."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request

from service.errors import InvalidRequest

#: Longest part of a parameter's name that a refusal repeats.
_LONGEST_NAME = 200


async def require_known(request: Request) -> None:
    """Raise InvalidRequest for a query parameter that the route does not have, one given twice, or an unread body."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    require_known_query(request, route)
    # Pages read their forms themselves; what the interface describes is all that its other routes read.
    reads = route.body_field is not None or not (route.include_in_schema or request.method in ("GET", "HEAD"))
    if not reads and _has_body(request):
        raise InvalidRequest("This route takes no body.", "Send the request without one.")


def require_known_query(request: Request, route: APIRoute) -> None:
    """Raise InvalidRequest for a query parameter that `route` does not have, or that is given twice."""
    if not request.scope["query_string"]:
        return
    known = {*_names(route.dependant)}
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        shown = repr(name[:_LONGEST_NAME])
        if name not in known:
            raise _refused(name, f"This route has no parameter {shown}.", "Correct its name, or leave it out.")
        if count > 1:
            raise _refused(name, f"The parameter {shown} is given {count} times.", "Give it once.")


def _refused(name: str, detail: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(detail, remedy, errors=[{"loc": ["query", name[:_LONGEST_NAME]], "msg": detail}])


def _names(dependant: Dependant) -> Iterator[str]:
    """The names of all query parameters, those of a model one by one."""
    for parameter in dependant.query_params:
        kind: Any = parameter.field_info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (field.alias or name for name, field in kind.model_fields.items())
        else:
            yield parameter.alias
    for inner in dependant.dependencies:
        yield from _names(inner)


def _has_body(request: Request) -> bool:
    length = request.headers.get("content-length", "0")
    return length != "0" or "transfer-encoding" in request.headers
