"""The connections of one process: how many there may be, and an end for those whose clients keep it waiting."""

import asyncio
import resource
from collections import Counter
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol

import structlog

from service.domain.addresses import address_of, subscriber

Network = IPv4Network | IPv6Network

#: Most connections, where there are descriptors enough: each may hold 256 KiB that was read and not parsed.
MAX_CONNECTIONS = 1024

#: Seconds that requests under way get at shutdown; the rest of `shutdown_grace_s` is the unlearner's.
REQUESTS_GRACE_S = 2
#: Seconds between two looks at the deadlines.
SWEEP_S = 1.0
#: Least time between two log lines about connections that were refused or cut (seconds).
_LOG_EVERY_S = 60.0


class Member(Protocol):
    """What is known here of a connection."""

    #: What shares a limit with it.
    origin: str
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def look(self, now: float) -> None:
        """End it when its client has kept it waiting too long; a deadline moves on by `SWEEP_S` while it may not."""


class Connections:
    """Keeps count of connections, and looks at each every `SWEEP_S`.

    Where there are too many, the one that has waited longest for a request makes room; where all are at work, or have
    an answer that is being read, the new one is refused.
    """

    def __init__(self, most: int, most_of_one: int, proxies: Sequence[Network] = ()) -> None:
        """At most `most` in all, and `most_of_one` from one address that is none of the `proxies`."""
        self._most = most
        self._most_of_one = most_of_one
        self._proxies = tuple(proxies)
        self._open: set[Member] = set()
        #: Those without a request at work, the longest waiting first.
        self._waiting: dict[Member, None] = {}
        self._of: Counter[str] = Counter()
        self._sweeping = False
        self._warned_at = float("-inf")
        self._cut: Counter[str] = Counter()
        self._log = structlog.stdlib.get_logger(__name__)

    def admit(self, connection: Member, host: str) -> bool:
        """Take `connection` in, in place of one that waits if need be; False when there is no room."""
        connection.origin = origin = self._origin(host)
        if origin and self._of[origin] >= self._most_of_one:
            # Its own, however few there are: what one address does costs no other its place.
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
        """`connection` is gone."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._waiting.pop(connection, None)
        self._of[connection.origin] -= 1
        if not self._of[connection.origin]:
            del self._of[connection.origin]

    def mark_busy(self, connection: Member) -> None:
        """`connection` has a request."""
        self._waiting.pop(connection, None)

    def mark_idle(self, connection: Member) -> None:
        """`connection` has no request."""
        if connection in self._open:
            self._waiting[connection] = None

    def count(self, what: str) -> None:
        """One more connection was `refused`, `malformed`, `too_large`, `too_slow` or `unread`, or made `room`."""
        self._cut[what] += 1

    def _origin(self, host: str) -> str:
        """What shares a limit; "" for a proxy."""
        address = address_of(host)
        is_proxy = address is not None and any(address in network for network in self._proxies)
        return "" if is_proxy else subscriber(host)

    def _cut_first(self, candidates: Iterable[Member]) -> bool:
        for connection in candidates:
            if connection.transport.get_write_buffer_size():
                # Of its last answer.
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
    """How many connections leave descriptors enough for Postgres, Redis, the model's files and those just refused."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, descriptors // 2)
