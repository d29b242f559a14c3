"""Installs the dashboard in the application, and an error page for its unknown addresses."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.web.dashboard import (
    log_page,
    login_page,
    model_page,
    overview_page,
    pages,
    report_page,
    request_list_page,
    request_page,
    sign_on_page,
    verify_page,
    webhooks_page,
)
from service.web.dashboard.pages import error_page
from service.web.dashboard.signing_in import PATH

_REMEDY = "Check the address, or continue from the overview."
#: Status -> title and detail.
_WORDS = {
    HTTPStatus.NOT_FOUND: ("Not found", "This page does not exist."),
    HTTPStatus.METHOD_NOT_ALLOWED: ("No page", "This address accepts forms only; it is not a page."),
}


def install_unknown(app: FastAPI) -> None:
    """Return an error page for unknown dashboard addresses in a browser; everything else is answered as before."""
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


def install(app: FastAPI) -> None:
    """Serve the dashboard at /dashboard of `app`, using its `services`."""
    for router in (
        pages.router,
        login_page.router,
        sign_on_page.router,
        sign_on_page.return_router,
        overview_page.router,
        model_page.router,
        overview_page.drill_router,
        request_list_page.router,
        request_page.router,
        request_list_page.export_router,
        request_list_page.find_router,
        report_page.router,
        log_page.router,
        verify_page.router,
        webhooks_page.router,
    ):
        app.include_router(router)
    install_unknown(app)
