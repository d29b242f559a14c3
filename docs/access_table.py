"""Generates access.md: every route by every credential, from the routes' own declarations.

python -m docs.access_table     rewrites it; a test tries every cell against the running application
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry

from service.domain.scopes import Scope
from service.observability.logging import AccessLog
from service.web.api.application import build
from service.web.api.auth import BearerKey, local_or_keyed, local_or_reading
from service.web.dashboard.installation import install
from service.web.dashboard.signing_in import signed_in

PAGE = Path(__file__).parent / "access.md"
START, END = "<!-- routes -->\n", "<!-- end of routes -->\n"
#: Credentials that no route accepts, with the reason that the answer gives.
INVALID = {
    "none": "This route requires an API key.",
    "wrong key": "The API key is unknown or revoked.",
    "expired key": "The API key expired on",
    "revoked key": "The API key is unknown or revoked.",
    "expired token": "The token has expired.",
    "token not valid yet": "The token is not valid yet.",
    "token for another audience": "The token is for another audience.",
    "token of another issuer": "The token is of another issuer.",
    "token without a signature (`none`)": "The token is signed by 'none'",
    "token signed with the public key as a secret (`HS256`)": "The token is signed by 'HS256'",
    "token signed by an unknown key": "The token has a wrong signature.",
    "token signed by a key that the issuer has withdrawn": "The token is signed with a key that its issuer does not",
    "changed token": "The token has a wrong signature.",
    "ID token of the dashboard": "The token is for another audience.",
}


@dataclass(frozen=True)
class RouteAccess:
    """What a route of the interface requires."""

    method: str
    path: str
    #: Sets of scopes of which one is enough; none if the route needs no credential.
    alternatives: tuple[frozenset[Scope], ...]

    def allows(self, scopes: Iterable[Scope]) -> bool:
        """Return whether a caller with exactly these scopes is let in."""
        return not self.alternatives or any(needed <= {*scopes} for needed in self.alternatives)


def application() -> FastAPI:
    """Return the application with all routes, without anything behind them."""
    log = AccessLog("console", "info", io.StringIO(), process="docs")
    app = build(max_body_bytes=1_024, registry=CollectorRegistry(), access_log=log)
    install(app)
    return app


def interface(app: FastAPI) -> list[RouteAccess]:
    """Return the routes of the interface whose access does not depend on where the caller is."""
    local = local_routes(app)
    return [
        RouteAccess(method, route.path, tuple(_needed(route.dependant)))
        for route in _routes(app.routes)
        if not (route.path in local or route.path.startswith("/dashboard"))
        for method in sorted(route.methods or ())
    ]


def local_routes(app: FastAPI) -> dict[str, tuple[Scope, ...]]:
    """Return the routes that are open on this machine, with the scopes of which a caller elsewhere needs one."""
    found = {}
    for route in _routes(app.routes):
        calls = _calls(route.dependant)
        if local_or_keyed in calls:
            found[route.path] = tuple(Scope)
        elif local_or_reading in calls:
            found[route.path] = (Scope.DELETIONS_READ, Scope.PREDICTIONS_READ, Scope.AUDIT_READ)
    return found


def pages(app: FastAPI) -> list[tuple[str, str, bool]]:
    """Return method, path and whether a session is needed, for the routes of the dashboard."""
    return [
        (method, route.path, signed_in in _calls(route.dependant))
        for route in _routes(app.routes)
        if route.path.startswith("/dashboard")
        for method in sorted(route.methods or ())
    ]


def tables() -> str:
    """Return the generated part of the page."""
    app = application()
    lines = ["| method | route | no or invalid credential |" + "".join(f" `{scope}` |" for scope in Scope)]
    lines.append("| --- | --- | ---: |" + " ---: |" * len(Scope))
    for route in interface(app):
        without = "401" if route.alternatives else "yes"
        alone = "".join(f" {'yes' if route.allows([scope]) else '403'} |" for scope in Scope)
        both = next((one for one in route.alternatives if len(one) > 1), None)
        together = "" if both is None else f" (needs {' and '.join(f'`{one}`' for one in sorted(both))})"
        lines.append(f"| {route.method} | `{route.path}`{together} | {without} |{alone}")
    for path, enough in local_routes(app).items():
        alone = "".join(f" {'yes' if scope in enough else '403'} |" for scope in Scope)
        lines.append(f"| GET | `{path}` from elsewhere | 401 |{alone}")
    lines += ["", "| credential | answer | detail |", "| --- | ---: | --- |"]
    lines += [f"| {name} | 401 | {said if said.endswith('.') else f'{said} …'} |" for name, said in INVALID.items()]
    lines += ["", "| method | page | without a session |", "| --- | --- | --- |"]
    for method, path, needs_session in pages(app):
        lines.append(f"| {method} | `{path}` | {'to the sign-in page' if needs_session else 'open'} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with new tables."""
    before, _, rest = PAGE.read_text().partition(START)
    return before + START + tables() + END + rest.partition(END)[2]


def _needed(dependant: Dependant) -> Iterator[frozenset[Scope]]:
    for call in _calls(dependant):
        if isinstance(call, BearerKey):
            yield from call.alternatives


def _routes(routes: Iterable[Any]) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif router := getattr(route, "original_router", None):
            yield from _routes(router.routes)


def _calls(dependant: Dependant) -> set[Any]:
    return {call for one in dependant.dependencies for call in ({one.call} | _calls(one))}


if __name__ == "__main__":
    PAGE.write_text(page())
