"""Connections of one process: their limit, and deadlines for slow clients."""

import asyncio
import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol

import structlog

from service.domain.addresses import address_of, subscriber

Network = IPv4Network | IPv6Network

#: Most connections if there are enough descriptors. Each may hold 256 KiB of data read but not parsed.
MAX_CONNECTIONS = 1024

#: Seconds for open requests at shutdown; the rest of `shutdown_grace_s` is the unlearner's.
REQUESTS_GRACE_S = 2
#: Seconds between two checks of the deadlines.
SWEEP_S = 1.0
#: Minimum seconds between two log lines about refused or cut connections.
_LOG_EVERY_S = 60.0


class Member(Protocol):
    """Interface of a connection."""

    #: Connections with the same origin share a limit.
    origin: str
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def look(self, now: float) -> None:
        """Close it if its client has been too slow. While the client waits, defer its deadline by `SWEEP_S`."""


class Connections:
    """Counts connections, and checks each every `SWEEP_S`.

    If there are too many, the one that has waited longest for a request is closed. If all are busy, or have a response
    that is still being read, the new one is refused.
    """

    def __init__(self, most: int, most_of_one: int, proxies: Sequence[Network] = ()) -> None:
        """Allow `most` connections in total, and `most_of_one` per address except `proxies`."""
        self._most = most
        self._most_of_one = most_of_one
        self._proxies = tuple(proxies)
        self._open: set[Member] = set()
        #: Connections without a request, longest waiting first.
        self._waiting: dict[Member, None] = {}
        self._of: Counter[str] = Counter()
        self._sweeping = False
        self._warned_at = float("-inf")
        self._cut: Counter[str] = Counter()
        self._log = structlog.stdlib.get_logger(__name__)

    def admit(self, connection: Member, host: str) -> bool:
        """Admit `connection`, if necessary in place of a waiting one; return False if there is no room."""
        connection.origin = origin = self._origin(host)
        if origin and self._of[origin] >= self._most_of_one:
            # Close one of the same origin, however few there are: no address costs another its place.
            room = self._cut_first(one for one in self._waiting if one.origin == origin)
        else:
            room = len(self._open) < self._most or self._cut_first(self._waiting)
        if not room:
            self.count("refused")
            return False
        self._open.add(connection)
        self._of[origin] += 1
        self._waiting[connection] = None
        if not self._sweeping:
            self._sweeping = True
            connection.loop.call_later(SWEEP_S, self._sweep, connection.loop)
        return True

    def leave(self, connection: Member) -> None:
        """Remove a closed connection."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._waiting.pop(connection, None)
        self._of[connection.origin] -= 1
        if not self._of[connection.origin]:
            del self._of[connection.origin]

    def mark_busy(self, connection: Member) -> None:
        """Record that `connection` has a request."""
        self._waiting.pop(connection, None)

    def mark_idle(self, connection: Member) -> None:
        """Record that `connection` has no request."""
        if connection in self._open:
            self._waiting[connection] = None

    def count(self, what: str) -> None:
        """Count a connection that was `refused`, `malformed`, `too_large`, `too_slow` or `unread`, or made `room`."""
        self._cut[what] += 1

    def _origin(self, host: str) -> str:
        """Return the key of the shared limit; "" for a proxy."""
        address = address_of(host)
        is_proxy = address is not None and any(address in network for network in self._proxies)
        return "" if is_proxy else subscriber(host)

    def _cut_first(self, candidates: Iterable[Member]) -> bool:
        for connection in candidates:
            if connection.transport.get_write_buffer_size():
                # Its last response is not fully sent.
                continue
            self.count("room")
            self.leave(connection)
            connection.transport.abort()
            return True
        return False

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweeping = bool(self._open or self._cut)
        if self._sweeping:
            loop.call_later(SWEEP_S, self._sweep, loop)
        now = loop.time()
        for connection in tuple(self._open):
            connection.look(now)
        if self._cut and now - self._warned_at >= _LOG_EVERY_S:
            self._warned_at = now
            self._log.warning("connections.cut", **self._cut)
            self._cut.clear()


def most_connections() -> int:
    """Return the limit that leaves descriptors for Postgres, Redis, the model's files and recent refusals."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, descriptors // 2)
