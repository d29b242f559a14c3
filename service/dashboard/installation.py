"""The dashboard as part of the application."""

from fastapi import FastAPI

from service.dashboard import assets, charts, drills, export, find, log, login, overview, request, requests, unknown


def install(app: FastAPI) -> None:
    """Serve the dashboard at /dashboard of `app`, whose `services` it uses."""
    for part in (assets, login, overview, drills, charts, requests, request, export, find, log):
        app.include_router(part.router)
    unknown.install(app)
