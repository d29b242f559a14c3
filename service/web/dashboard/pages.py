"""Pages: templates, self-refreshing regions, error pages and static files."""

import functools
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from service.access.sessions import Session
from service.domain import formats
from service.domain.figures import FIGURES
from service.errors import InvalidRequest, LetheError
from service.reports.paper import environment
from service.text import in_words
from service.web.dashboard.signing_in import PATH, SESSION_COOKIE, LoginNeeded, delete_cookie
from service.web.dashboard.words import state_shown, words_of
from service.web.routes import StrictRoute, page_reply
from service.web.services import services_of

FOLDER = Path(__file__).parent / "static"
#: URL prefix of static files.
PREFIX = "/dashboard/static"

router = APIRouter(prefix=PREFIX, route_class=StrictRoute, include_in_schema=False)


@router.get("/{name:path}")
async def asset(request: Request, name: str, v: str = "") -> Response:
    """A file below `static`; requests with its digest may be cached forever."""
    response = await _files().get_response(name, request.scope)
    kept = bool(v) and response.status_code == 200
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if kept else "no-cache"
    return response


@cache
def asset_url(name: str) -> str:
    """Return the URL of a file below `static`, with its digest. Raises FileNotFoundError."""
    digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:12]
    return f"{PREFIX}/{name}?v={digest}"


@cache
def _files() -> StaticFiles:
    return StaticFiles(directory=FOLDER)


#: A page may load from and send to the dashboard's own origin only, and contains nothing inline.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
#: Header in which a polling region names its current content.
_SHOWN = "lethe-shown"
_REMEDY = "Correct it, or go back to the overview."
_TEMPLATES = Path(__file__).parent / "templates"


class Page(StrictRoute):
    """A route whose errors are pages; redirects to the sign-in page if nobody is signed in."""

    refuses_bodies = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler, with errors turned into pages."""
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                return await handle(request)
            except LoginNeeded:
                return _to_login(request)
            except LetheError as error:
                if error.status == 500:
                    raise
                return error_page(error.status, error.title, error.detail, error.remedy)
            except RequestValidationError as error:
                if faults := [fault for fault in error.errors() if fault["loc"][0] == "query"]:
                    words = "; ".join(f"`{fault['loc'][-1]}` {in_words(fault)}" for fault in faults)
                    return error_page(422, InvalidRequest.title, f"In the address, {words}.", _REMEDY)
                return error_page(
                    404,
                    "Not found",
                    "This page does not exist.",
                    "Go back to the overview, or to the list of requests.",
                )

        return handle_page


def page(request: Request, template: str, visitor: Session, /, **values: object) -> Response:
    """Return a page for a signed-in user."""
    return html(
        _environment()
        .get_template(template)
        .render(visitor=visitor, model=services_of(request).model, form_token=visitor.form_token, **values)
    )


def public_page(
    template: str, /, *, status: int = 200, policy: str = CONTENT_SECURITY_POLICY, **values: object
) -> Response:
    """Return a page that anybody may see."""
    return page_reply(_environment().get_template(template).render(visitor=None, **values), policy, status)


def html(text: str) -> Response:
    """Return a page under the dashboard's Content-Security-Policy."""
    return page_reply(text, CONTENT_SECURITY_POLICY)


def error_page(status: int, title: str, detail: str, remedy: str) -> Response:
    """Return a page with the error and its remedy."""
    return public_page("error.html", status=status, title=title, detail=detail, remedy=remedy)


@dataclass(frozen=True)
class Region:
    """A part of a page that refreshes itself."""

    #: Its id in the page.
    name: str
    #: Its content, in its frame.
    markup: Markup
    #: Digest of its content.
    shown: str

    def __html__(self) -> str:
        """Return the HTML for templates."""
        return str(self.markup)


def region(name: str, template: str, /, *, url: str, every_s: float | None, **values: object) -> Region:
    """Return the region `name`, which polls `url` every `every_s` seconds, or never if None."""
    body = Markup(_environment().get_template(template).render(**values))
    shown = hashlib.sha256(f"{url} {every_s} {body}".encode()).hexdigest()[:16]
    frame = _environment().get_template("region.html")
    markup = frame.render(name=name, url=url, every_s=every_s, shown=shown, header=_SHOWN, body=body)
    return Region(name, Markup(markup), shown)


def polls(request: Request, name: str) -> bool:
    """Return whether a request is a refresh of the region `name`, not a visitor's."""
    return request.headers.get("hx-request") == "true" and request.headers.get("hx-target") == name


def current(request: Request, now: Region) -> Response:
    """Return a refreshed region; 204 if it already shows this content, so that the page stays unchanged."""
    return Response(status_code=204) if request.headers.get(_SHOWN) == now.shown else html(str(now.markup))


def url_with(path: str, values: Mapping[str, object]) -> str:
    """Return `path` with the non-empty `values` as its query."""
    query = urlencode({name: str(value) for name, value in values.items() if value not in (None, "")})
    return f"{path}?{query}" if query else path


def _to_login(request: Request) -> Response:
    query = request.scope["query_string"].decode("latin-1")
    asked = request.scope["path"] + (f"?{query}" if query else "")
    url = url_with(f"{PATH}/login", {"next": asked if request.method == "GET" and asked != PATH else None})
    if request.headers.get("hx-request") == "true":
        # The session of a page with regions has ended, so redirect the whole page.
        current_page = request.headers.get("hx-current-url", "")
        path = current_page[current_page.find(PATH) :] if PATH in current_page else PATH
        response = Response(status_code=204, headers={"HX-Redirect": url_with(f"{PATH}/login", {"next": path})})
    else:
        response = RedirectResponse(url, 303)
    if SESSION_COOKIE in request.cookies:
        delete_cookie(request, response, SESSION_COOKIE)
    return response


@functools.cache
def _environment() -> jinja2.Environment:
    made = environment(_TEMPLATES)
    made.filters |= {
        "percent": formats.percent,
        "at_most": formats.at_most,
        "moment": formats.moment,
        "machine_time": formats.machine_time,
        "short": lambda identity: str(identity)[:8],
        "words": words_of,
        "state": state_shown,
    }
    made.globals |= {"asset": asset_url, "path": PATH, "FIGURES": FIGURES}
    return made
