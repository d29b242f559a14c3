"""Connections to Redis with bounded waits, and explanations of its refusals for operators."""

import os
import re
import ssl
from collections.abc import Iterator
from typing import Any

from redis.asyncio import ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from service.errors import ConfigurationError, Unavailable
from service.queue import redis_urls

#: Quotes the command, and so a request.
_OF_PIPELINE = re.compile(r"^Command # \d+ .* of pipeline caused error: ", re.DOTALL)


class NoTlsAnswer(Exception):
    """A port did not answer in TLS in time."""


_CLUSTER = (
    "it is part of a cluster",
    "Use a Redis or Valkey with cluster mode disabled; Lethe's queue is small.",
)
_CLOSED = (
    "it closed the connection",
    "Check that it runs and accepts connections (`maxclients`). Check REDIS_URL: rediss:// if it takes only TLS.",
)
#: Class of the error, or its first words -> the cause, and the remedy.
_KNOWN: tuple[tuple[type[Exception] | str, str, str], ...] = (
    (
        NoTlsAnswer,
        "its port does not answer in TLS",
        "Use redis:// in REDIS_URL if that port takes no TLS; otherwise check host and port.",
    ),
    (
        ssl.SSLCertVerificationError,
        "its certificate is not trusted here",
        "Add its CA certificate to REDIS_URL: rediss://…?ssl_ca_certs=FILE.",
    ),
    (ssl.SSLError, "TLS with it fails", "Check that its port takes TLS, and which certificates it requires."),
    (
        AuthenticationError,
        "it asks for another user or password",
        "Put the right user and password into REDIS_URL, and restart Lethe.",
    ),
    (
        NoPermissionError,
        "its access list (ACL) forbids this user a command or the key of the queue",
        "Allow the user of REDIS_URL `+@stream +@transaction +@connection +@scripting +@list +@bitmap +get +set "
        "+expire +persist ~lethe:*`.",
    ),
    (ReadOnlyError, "it is a read-only replica", "Point REDIS_URL at the primary, and restart Lethe."),
    # Their own texts name another node's address.
    (MovedError, *_CLUSTER),
    (ClusterCrossSlotError, *_CLUSTER),
    (ClusterDownError, *_CLUSTER),
    (OutOfMemoryError, "its memory is full", "Raise its `maxmemory`, or remove data of other programs."),
    (
        "max number of clients",
        "it has no connection left",
        "Close other connections, or raise its `maxclients`.",
    ),
    (
        "DENIED",
        "it accepts connections only from its own machine (protected mode)",
        "Give it a password, and put that into REDIS_URL.",
    ),
    ("DB index", "it has no such database", "Correct the number after the last / of REDIS_URL, and restart Lethe."),
    # If the server has no connection left, redis-py may not read the reason before the connection closes.
    ("Connection closed by", *_CLOSED),
    (ConnectionResetError, *_CLOSED),
    (BrokenPipeError, *_CLOSED),
    (BusyLoadingError, "it is still loading its data", "Wait; Lethe continues by itself."),
    (
        "WRONGTYPE",
        "the key of the queue ({key}) does not hold a stream",
        "Find the program that wrote it, then `DEL {key}`: Lethe rebuilds the queue from the database.",
    ),
    (
        "MISCONF",
        "it rejects writes because it could not save its data",
        "Check its log and free space on its disk. Lethe then continues by itself.",
    ),
)
_REMEDY = "Start it and check REDIS_URL. Nothing is lost, and Lethe continues by itself once it is back."


def refusal(error: RedisError | OSError, key: str = "") -> Unavailable:
    """Convert `error`, raised on the stream `key`, to an outage without request, user or address.

    Redis's own message may name the user; it is in `server_message`, for operators only.
    """
    cause, remedy, said = _known(error, key) or _unknown(error)
    refused = Unavailable(f"The queue (Redis) cannot be used: {cause}.", remedy)
    refused.server_message = said
    return refused


def _known(error: RedisError | OSError, key: str) -> tuple[str, str, str] | None:
    # A refusal while connecting is wrapped in another error.
    for at in _chain(error):
        for kind, cause, remedy in _KNOWN:
            if _text(at).startswith(f"{kind} ") if isinstance(kind, str) else isinstance(at, kind):
                return cause.format(key=key), remedy.format(key=key), _words(at)
    return None


def _unknown(error: RedisError | OSError) -> tuple[str, str, str]:
    if isinstance(error, ResponseError):
        return f"it answers {_text(error)!r}", "See its documentation and its log.", ""
    return f"it does not answer ({_reason(error)})", _REMEDY, ""


def _words(error: BaseException) -> str:
    """Return Redis's message with the leading error code that redis-py strips."""
    return f"{getattr(error, 'status_code', None) or ''} {_text(error)}".strip()


def _text(error: BaseException) -> str:
    """Return Redis's message without redis-py's prefix for a pipelined command."""
    return _OF_PIPELINE.sub("", str(error)).strip("()',\"")


def _reason(error: BaseException) -> str:
    """Return the system's message if any; redis-py's own texts contain the address."""
    for at in _chain(error):
        if isinstance(at, OSError) and at.errno is not None:
            # Negative: a name that could not be resolved.
            return os.strerror(at.errno) if at.errno > 0 else str(at.strerror)
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


#: Seconds until an unresponsive connection counts as down; longer than any blocking read of the queue.
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
    """Create a client of the Redis at `url` (nothing is sent yet); close it with `aclose()`.

    A command on a dead connection is retried once, immediately, on a new one. Any wait between further attempts is the
    caller's backoff. A URL can shorten `socket_timeout_s`, but not lengthen it. Raises ConfigurationError for an
    unreadable `url`.
    """
    try:
        arguments = redis_urls.read(url)
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
    """Return the version of the Valkey or Redis at `url`. Raises Unavailable, and ConfigurationError like `connect`."""
    try:
        async with connect(url, socket_timeout_s=socket_timeout_s) as client:
            said = await client.info("server")
    except (RedisError, OSError) as error:
        raise refusal(error) from error
    return str(said.get("valkey_version", said["redis_version"]))
