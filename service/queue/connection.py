"""Connections to Redis on which nothing waits for ever."""

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

#: Seconds until a connection that does not answer counts as down; longer than any blocking read of the queue.
SOCKET_TIMEOUT_S = 10.0


def connect(url: str, *, socket_timeout_s: float = SOCKET_TIMEOUT_S) -> Redis:
    """A client of the Redis at `url` (nothing is sent yet); close it with `aclose()`.

    A command on a connection that turns out dead is tried once more on a new one, at once; every wait
    between further attempts belongs to the caller's own backoff.
    """
    return Redis.from_url(
        url,
        socket_timeout=socket_timeout_s,
        socket_connect_timeout=min(socket_timeout_s, 3.0),
        retry=Retry(NoBackoff(), 1),
    )
