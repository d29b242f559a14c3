"""uvicorn around an application, as every process that answers callers runs it."""

import socket
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network

import uvicorn
from starlette.types import ASGIApp

from service.http.connections import REQUESTS_GRACE_S, Network
from service.http.protocol import protocol


def server_config(app: ASGIApp, proxies: Sequence[Network] = ()) -> uvicorn.Config:
    """How uvicorn serves an application here; what `proxies` say of whom they forward is believed."""
    return uvicorn.Config(
        app,
        http=protocol(proxies),
        # Nothing here speaks WebSocket, and uvicorn's own protocols for it log the path.
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=[name for network in proxies for name in _names(network)],
        lifespan="on",
        timeout_graceful_shutdown=REQUESTS_GRACE_S,
    )


class Server:
    """Serves an application; an activity of its that fails stops it, and its error is raised."""

    def __init__(self) -> None:
        self._failure: BaseException | None = None
        self._stopping = False
        self._uvicorn: uvicorn.Server | None = None

    def stop(self) -> None:
        """Stop in order, at the next turn of the event loop; before the start, right after it."""
        self._stopping = True
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    def fail(self, error: BaseException) -> None:
        """Stop, and have `serve` raise the first error that was given."""
        self._failure = self._failure or error
        self.stop()

    def serve(self, config: uvicorn.Config, bound: socket.socket) -> None:
        """Serve until stopped; raises what a failed activity, or the start, raised."""
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.should_exit = self._stopping
        try:
            self._uvicorn.run(sockets=[bound])
        except SystemExit:
            if self._failure is None:
                raise
        if self._failure is not None:
            raise self._failure


def _names(network: Network) -> Iterator[str]:
    """How clients of a network are named, those of IPv4 also on a socket for both."""
    yield str(network)
    if isinstance(network, IPv4Network):
        yield f"::ffff:{network.network_address}/{96 + network.prefixlen}"
