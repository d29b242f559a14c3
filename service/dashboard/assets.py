"""The files of the dashboard: style sheet, scripts and vendored libraries, served from here alone.

A page names each with a digest of its content, so a browser may keep it for good and never shows an old one.
"""

import hashlib
from functools import cache
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"
#: Where they are served.
PREFIX = "/dashboard/static"


class Assets(StaticFiles):
    """The folder `static`; what is asked for with a digest may be kept."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file, with its licence to be kept."""
        response = await super().get_response(path, scope)
        kept = b"v=" in scope["query_string"] and response.status_code == 200
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if kept else "no-cache"
        return response


@cache
def asset_url(name: str) -> str:
    """The URL of a file below `static`, with its digest; raises FileNotFoundError."""
    digest = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()[:12]
    return f"{PREFIX}/{name}?v={digest}"
