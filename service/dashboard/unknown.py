"""Unknown addresses below the dashboard's: an error page for browsers."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.dashboard.pages import error_page
from service.dashboard.sessions import PATH

_REMEDY = "Check the address, or continue from the overview."
#: Status -> title and detail.
_WORDS = {
    HTTPStatus.NOT_FOUND: ("Not found", "There is no such page."),
    HTTPStatus.METHOD_NOT_ALLOWED: ("No page", "This address accepts forms only; it is not a page."),
}


def install(app: FastAPI) -> None:
    """Answer what no route of the dashboard takes with a page; all else, and programs, get what they got before."""
    otherwise = cast(Callable[[Request, Exception], Awaitable[Response]], app.exception_handlers[HTTPException])

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = _WORDS.get(HTTPStatus(error.status_code))
        is_browser = "text/html" in request.headers.get("accept", "")
        if words is None or not is_browser or not request.scope["path"].startswith(f"{PATH}/"):
            return await otherwise(request, error)
        page = error_page(error.status_code, *words, _REMEDY)
        allowed = (await otherwise(request, error)).headers.get("allow")
        if allowed is not None:
            page.headers["Allow"] = allowed
        return page

    app.add_exception_handler(HTTPException, answer)
