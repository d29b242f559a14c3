"""`/docs` and `/openapi.json`: the API description, browsable without a network."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from service.web.api.auth import ANY_OF, local_or_keyed
from service.web.routes import Problem, StrictRoute, problems

_STATIC = Path(__file__).parent / "static"
#: Files of Swagger UI, served from here so that no response needs another origin.
_ASSETS = _STATIC / "swagger-ui"
#: The page runs only its own scripts. Swagger UI sets style attributes and draws icons from data URLs.
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter(include_in_schema=False, route_class=StrictRoute)

Allowed = Annotated[None, Depends(local_or_keyed)]


@router.get("/docs")
async def page(allowed: Allowed) -> Response:
    """The browsable description, for callers on this machine or with any valid key."""
    return FileResponse(_STATIC / "docs.html", headers={"Content-Security-Policy": _CONTENT_SECURITY_POLICY})


@router.get("/docs/start.js")
async def start() -> Response:
    """The script that starts Swagger UI, in a separate file because the page allows no inline script."""
    return FileResponse(_STATIC / "docs.js", media_type="text/javascript")


@router.get("/docs/assets/{name:path}")
async def asset(request: Request, name: str) -> Response:
    """A file of Swagger UI. A route instead of a mount, so that logs and metrics name it."""
    return await _files().get_response(name, request.scope)


@router.get("/openapi.json", responses=problems(401))
async def description(request: Request, allowed: Allowed) -> Response:
    """The OpenAPI 3.1 document."""
    return JSONResponse(request.app.openapi())


def install(app: FastAPI) -> None:
    """Serve the description of `app`, with its problem documents instead of the framework's error schema."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _describe(app)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
    app.include_router(router)


@cache
def _files() -> StaticFiles:
    return StaticFiles(directory=_ASSETS)


def _describe(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )
    invalid = problems(422)[422]
    for operations in document["paths"].values():
        for operation in operations.values():
            if "security" in operation:
                operation["security"] = _alternatives(operation["security"])
            for status, response in operation["responses"].items():
                if status == "422" and "application/json" in response.get("content", {}):
                    operation["responses"][status] = invalid
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    return document


def _alternatives(security: list[dict[str, list[str]]]) -> list[dict[str, list[str]]]:
    """Return a separate requirement for each scope that is sufficient alone."""
    return [
        {scheme: [*(scope for scope in scopes if ANY_OF not in scope), *one]}
        for requirement in security
        for scheme, scopes in requirement.items()
        for one in ([[each] for scope in scopes if ANY_OF in scope for each in scope.split(ANY_OF)] or [[]])
    ]
