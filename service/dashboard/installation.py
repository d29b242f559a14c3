"""The dashboard as part of the application."""

from fastapi import FastAPI

from service.dashboard import assets, unknown
from service.dashboard.views import (
    drill_card,
    export,
    find,
    log,
    login,
    model,
    overview,
    report,
    request,
    requests,
    verify,
    webhooks,
)


def install(app: FastAPI) -> None:
    """Serve the dashboard at /dashboard of `app`, whose `services` it uses."""
    for part in (
        assets,
        login,
        overview,
        model,
        drill_card,
        requests,
        request,
        export,
        find,
        report,
        log,
        verify,
        webhooks,
    ):
        app.include_router(part.router)
    unknown.install(app)
