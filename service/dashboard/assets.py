"""The files of the dashboard: style sheet, scripts and vendored libraries, served from here alone.

A page names each with a digest of its content, so a browser may keep it for good and never shows an old one.
"""

import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from service.http.routes import StrictRoute

FOLDER = Path(__file__).parent / "static"
#: Where they are served.
PREFIX = "/dashboard/static"

router = APIRouter(prefix=PREFIX, route_class=StrictRoute, include_in_schema=False)


@router.get("/{name:path}")
async def asset(request: Request, name: str, v: str = "") -> Response:
    """A file below `static`; one that is asked for with its digest may be kept for good."""
    response = await _files().get_response(name, request.scope)
    kept = bool(v) and response.status_code == 200
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if kept else "no-cache"
    return response


@cache
def asset_url(name: str) -> str:
    """The URL of a file below `static`, with its digest; raises FileNotFoundError."""
    digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:12]
    return f"{PREFIX}/{name}?v={digest}"


@cache
def _files() -> StaticFiles:
    return StaticFiles(directory=FOLDER)
