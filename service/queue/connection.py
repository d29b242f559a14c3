"""Connections to Redis on which nothing waits for ever."""

from typing import Any

from redis.asyncio import ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from service.errors import ConfigurationError
from service.queue.refusal import NoTlsAnswer, refusal
from service.server_urls import redis

#: Seconds until a connection that does not answer counts as down; longer than any blocking read of the queue.
SOCKET_TIMEOUT_S = 10.0
_CONNECT_TIMEOUT_S = 3.0


class _TlsConnection(SSLConnection):
    """Distinguishes a port that does not answer in TLS from one that does not answer at all."""

    async def _connect(self) -> None:
        try:
            await super()._connect()  # type: ignore[no-untyped-call]  # redis gives it no types
        except TimeoutError as error:
            raise NoTlsAnswer from error


def connect(url: str, *, socket_timeout_s: float | None = None) -> Redis:
    """A client of the Redis at `url` (nothing is sent yet); close it with `aclose()`.

    A command on a connection that turns out dead is tried once more on a new one, at once; every wait
    between further attempts belongs to the caller's own backoff. A URL can shorten `socket_timeout_s`, but not lengthen
    it. Raises ConfigurationError for a `url` that cannot be read.
    """
    try:
        arguments = redis.read(url)
    except ValueError as error:
        raise ConfigurationError(f"The URL of Redis {error}.", "Correct REDIS_URL.") from None
    timeout = arguments.pop("socket_timeout", socket_timeout_s or SOCKET_TIMEOUT_S)
    if socket_timeout_s is not None:
        timeout = min(timeout, socket_timeout_s)
    kind: type[Any] = Connection
    if "path" in arguments:
        kind = UnixDomainSocketConnection
    elif "ssl_cert_reqs" in arguments:
        kind = _TlsConnection
    pool = ConnectionPool(
        kind,
        socket_timeout=timeout,
        socket_connect_timeout=min(timeout, arguments.pop("socket_connect_timeout", _CONNECT_TIMEOUT_S)),
        retry=Retry(NoBackoff(), 1),
        **arguments,
    )
    return Redis.from_pool(pool)


async def version_of(url: str, *, socket_timeout_s: float) -> str:
    """The version of the Valkey or Redis at `url`. Raises Unavailable, and ConfigurationError as `connect`."""
    try:
        async with connect(url, socket_timeout_s=socket_timeout_s) as client:
            said = await client.info("server")
    except (RedisError, OSError) as error:
        raise refusal(error) from error
    return str(said.get("valkey_version", said["redis_version"]))
