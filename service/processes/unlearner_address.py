"""The unlearner's own address: whether it is well, and its metrics. No route of the interface is here."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service.access.key_memory import READING, KeyMemory, presented_key, require
from service.access.limits import RateLimits
from service.domain.lease_report import Check, Condition, Phase
from service.errors import LetheError
from service.http.origin import is_from_elsewhere

#: Connections at a time: Prometheus' and those of whoever looks after the process.
_MOST_CONNECTIONS = 32


def unlearner_app(
    *,
    condition: Callable[[], Condition],
    readiness: Callable[[], Awaitable[tuple[Check, ...]]],
    exposition: Callable[[], Awaitable[bytes]],
    keys: KeyMemory,
    limits: RateLimits,
) -> Starlette:
    """`readiness` looks at what the unlearner alone can look at."""

    async def healthz(request: Request) -> Response:
        """503 when something that it needs does not work; one that waits for the lease, or loads, is well."""
        checks, now = await readiness(), condition()
        well = now.phase not in (Phase.FAILED, Phase.HELD_UP) and all(check.ok for check in checks)
        answer = {
            "status": "healthy" if well else "unhealthy",
            "phase": now.phase.value,
            "reason": now.reason,
            "checks": [asdict(check) for check in checks],
        }
        return JSONResponse(answer, 200 if well else 503)

    async def metrics(request: Request) -> Response:
        """Open to callers on this very machine; from elsewhere with a key that may read."""
        if is_from_elsewhere(request):
            require(await presented_key(request, keys, limits), READING, any)
        return Response(await exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/metrics", metrics)], exception_handlers={LetheError: _refuse}
    )


async def _refuse(request: Request, error: Exception) -> Response:
    """A problem document, as all errors of Lethe are."""
    assert isinstance(error, LetheError)
    answer = {
        "type": f"urn:lethe:problem:{error.slug}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "remedy": error.remedy,
    }
    headers = {"WWW-Authenticate": 'Bearer realm="lethe"'} if error.status == 401 else {}
    return JSONResponse(answer, error.status, headers, media_type="application/problem+json")


class _Server(uvicorn.Server):
    """One that leaves signals to its process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: Starlette, bound: socket.socket, stop: asyncio.Event) -> None:
    """Answer on a bound socket until `stop` is set."""
    # h11 reads no more of a connection than it answers; nothing here needs to be quick.
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[bound]), name="unlearner-http")
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        stopping.cancel()
        await serving
