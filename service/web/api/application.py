"""The HTTP application: routes, errors and the surrounding middleware, independent of how `Services` are made."""

from collections.abc import Callable

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.types import Lifespan

from service.observability import tracing
from service.observability.logging import AccessLog, Answer
from service.version import VERSION
from service.web import problems
from service.web.api import (
    audit_routes,
    bulk_routes,
    deletion_routes,
    docs,
    drill_routes,
    event_routes,
    graph_routes,
    health_routes,
    inference_routes,
    log_routes,
    model_routes,
    new_node_routes,
    prediction_routes,
)
from service.web.middleware import HttpMetrics, OuterMiddleware, TracedRequests

_DESCRIPTION = """\
Lethe makes a trained graph model forget nodes, and proves it.

Every request except health checks needs an API key: `Authorization: Bearer lethe_…`. Errors are problem documents
(RFC 9457) whose `remedy` says what to do. Times are UTC.
"""
_TAGS = [
    {"name": "predictions", "description": "Predictions of the live nodes, and of nodes outside the graph."},
    {"name": "inference", "description": "The same predictions by the Open Inference Protocol (V2)."},
    {"name": "deletions", "description": "Request deletions and follow them."},
    {"name": "graph", "description": "Add nodes and edges, and correct nodes."},
    {"name": "drills", "description": "Delete canaries and measure that the weights forgot them."},
    {"name": "events", "description": "Events of requests in order, and deliveries of webhooks."},
    {"name": "audit", "description": "The whole audit, for keys with audit:read."},
    {"name": "log", "description": "The transparency log: checkpoints and proofs."},
    {"name": "model", "description": "The served model."},
    {"name": "operation", "description": "Health and metrics."},
]


def build(
    *,
    max_body_bytes: int,
    registry: CollectorRegistry,
    access_log: AccessLog,
    lifespan: Lifespan[FastAPI] | None = None,
) -> FastAPI:
    """Return the application. Its lifespan sets `app.state.services` before the first request."""
    app = FastAPI(
        title="Lethe",
        summary="Makes a trained graph model forget.",
        description=_DESCRIPTION,
        version=VERSION,
        openapi_tags=_TAGS,
        lifespan=lifespan,
        # /docs has routes of its own, which need no other origin and also serve the description.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        # The framework's own telemetry would export paths, queries and messages of errors, which contain ids.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    problems.install(app)
    # Routes are matched one by one. The busiest comes first, outside a router of its own.
    app.router.routes.extend(prediction_routes.single.routes)
    for router in (
        prediction_routes.router,
        new_node_routes.router,
        bulk_routes.router,
        inference_routes.infer_router,
        inference_routes.router,
        inference_routes.open_router,
        deletion_routes.router,
        graph_routes.router,
        drill_routes.router,
        event_routes.router,
        deletion_routes.receipt_router,
        audit_routes.router,
        log_routes.router,
        model_routes.router,
        health_routes.router,
    ):
        app.include_router(router)
    docs.install(app)
    app.add_middleware(
        OuterMiddleware,
        max_body_bytes=max_body_bytes,
        observe=_observer(registry, access_log),
    )
    if tracing.is_on():
        app.add_middleware(TracedRequests)
    return app


def _observer(registry: CollectorRegistry, access_log: AccessLog) -> Callable[[Answer], None]:
    """Count each response and write its access log line. Both use route templates, so neither contains ids."""
    count = HttpMetrics(registry).observe

    def observe(answer: Answer) -> None:
        count(answer)
        access_log.answered(answer)

    return observe
