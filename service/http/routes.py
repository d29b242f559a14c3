"""Strict routes: they refuse query parameters and bodies that the endpoint does not take."""

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from service.errors import InvalidRequest
from service.http.problems import LONGEST_PART


class StrictRoute(APIRoute):
    """A route that accepts each declared query parameter at most once, and no other; every route of Lethe is one."""

    #: Whether to refuse a body that no parameter declares; false for routes that read forms, which declare none.
    refuses_bodies: ClassVar[bool] = True

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that the framework calls."""
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
    """The names of a route's query parameters, including the fields of a parameter model."""
    names = {name for inner in dependant.dependencies for name in _query_names(inner)}
    for field in dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            names |= {info.alias or name for name, info in model.model_fields.items()}
        else:
            names.add(field.alias)
    return names
