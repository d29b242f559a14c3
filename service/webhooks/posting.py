"""One delivery attempt: a POST to checked addresses, bounded in time and in bytes read."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import httpx2
import structlog

from service.errors import ConfigurationError

Address = IPv4Address | IPv6Address
Networks = Sequence[IPv4Network | IPv6Network]

#: Assigned IPv6 unicast, the NAT64 prefix (RFC 6052), and 6to4 addresses, which embed IPv4 addresses (RFC 3056).
_GLOBAL_UNICAST, _NAT64 = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96")
_SIXTOFOUR = IPv6Network("2002::/16")
#: Blocks without receivers: IANA's special-purpose addresses, and multicast. Python's own list depends on its version,
#: and treats services that anybody may run as public.
_SPECIAL = tuple(
    ip_network(block)
    for block in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3fff::/20"),
    )
)


class AddressRefused(ConfigurationError):
    """Lethe sends nothing to this address."""


async def addresses_of(url: str, allowed: Networks) -> Sequence[str]:
    """Return the IP addresses of a URL's host, in the order in which to try them.

    Raises `AddressRefused` if an address is neither public nor `allowed`, or is public but not addressed by https.
    Raises OSError if the name does not resolve.
    """
    parts = urlsplit(url)
    found = await _looked_up(parts.hostname or "", parts.port or {"https": 443, "http": 80}[parts.scheme])
    for address in found:
        if any(address in network for network in allowed):
            continue
        if not is_public(address):
            raise AddressRefused(
                f"{address} is not a public address.", "Add its network to LETHE_WEBHOOK_NETWORKS if it is yours."
            )
        if parts.scheme != "https":
            raise AddressRefused(
                "Outside the networks of LETHE_WEBHOOK_NETWORKS, webhooks are sent by https.", "Give the https address."
            )
    return [str(address) for address in found]


def is_public(address: Address) -> bool:
    """Return whether an address is public and does not lead to one that is not."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(IPv4Address(address.packed[-4:]))
        if address in _SIXTOFOUR:
            return is_public(IPv4Address(address.packed[2:6]))
        if address not in _GLOBAL_UNICAST:
            return False
    return not any(address in block for block in _SPECIAL)


async def _looked_up(host: str, port: int) -> Sequence[Address]:
    """Resolve a name, in a separate thread, so that a hanging name server blocks no other work."""
    loop = asyncio.get_running_loop()
    looking: asyncio.Future[Sequence[Address]] = loop.create_future()

    def settle(found: Sequence[Address] | Exception) -> None:
        if looking.done():
            return
        if isinstance(found, Exception):
            looking.set_exception(found)
        else:
            looking.set_result(found)

    def look_up() -> None:
        found: Sequence[Address] | Exception
        try:
            found = _parsed(str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found = error
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, found)

    Thread(target=look_up, name="webhook-name", daemon=True).start()
    return await looking


def _parsed(texts: Iterable[str]) -> Sequence[Address]:
    """Return each address once, with IPv4-mapped IPv6 as IPv4."""
    found: dict[Address, None] = {}
    for text in texts:
        address = ip_address(text)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        found[mapped or address] = None
    return list(found)


#: Time limits for a whole attempt, and for connecting (seconds).
_ATTEMPT_S, _CONNECT_S = 15.0, 5.0
#: Most bytes read of a response.
_MOST_READ = 65_536
#: Most characters reported of an error.
_MOST_REPORTED = 200


@dataclass(frozen=True)
class Answer:
    """A receiver's response."""

    #: For people.
    text: str
    #: None without a response.
    status: int | None = None
    #: Wait that it requests before the next attempt (seconds).
    retry_after_s: float = 0.0

    @property
    def is_delivered(self) -> bool:
        """Whether the receiver accepted the event."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        """Whether it wants no further events, as defined by the specification."""
        return self.status == 410


class Poster:
    """Makes attempts, each on its own connection."""

    def __init__(self, *, attempt_s: float = _ATTEMPT_S) -> None:
        self._attempt_s = attempt_s

    @cached_property
    def _authorities(self) -> ssl.SSLContext:
        """Certificate authorities of SSL_CERT_FILE, else the system's; reading them takes 50 ms, so not at a start."""
        return httpx2.create_ssl_context()

    async def post(self, url: str, addresses: Sequence[str], headers: Mapping[str, str], body: bytes) -> Answer:
        """Attempt to deliver `body` to `url`, at the first of `addresses` that accepts a connection."""
        try:
            async with asyncio.timeout(self._attempt_s):
                status, fields = await self._exchange(url, addresses, headers, body)
        except TimeoutError:
            return Answer(f"It did not answer within {self._attempt_s:g} s.")
        except (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
            return Answer(_plain(f"It cannot be reached: {error or type(error).__name__}."))
        except Exception as error:  # noqa: BLE001 - what a receiver sends must end nothing but its own attempt
            structlog.get_logger(__name__).exception("webhook.unforeseen")
            return Answer(f"The attempt failed with {type(error).__name__}; check the log.")
        if 300 <= status < 400:
            return Answer(f"It answered {status}: redirects are not followed.", status)
        return Answer(f"It answered {status}.", status, _retry_after(fields))

    async def _exchange(
        self, url: str, addresses: Sequence[str], headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Mapping[bytes, bytes]]:
        async with (
            httpcore2.AsyncConnectionPool(
                ssl_context=self._authorities, network_backend=_Checked(addresses), max_connections=1
            ) as pool,
            pool.stream("POST", url, headers=list(headers.items()), content=body) as response,
        ):
            return response.status, {name.lower(): value for name, value in response.headers}


class _Checked(httpcore2.AsyncNetworkBackend):
    """Connects to given addresses, whatever the host; the request and TLS still name the host."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's interface, here and below
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError("the name has no address")
        for address in self._addresses:
            try:
                return _Bounded(await self._network.connect_tcp(address, port, timeout=_CONNECT_S))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure


class _Bounded(httpcore2.AsyncNetworkStream):
    """A connection that limits the bytes read to those of a response head."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left = _MOST_READ

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._left <= 0:
            raise httpcore2.ReadError(f"more than {_MOST_READ} bytes and no end of the head")
        read = await self._stream.read(min(max_bytes, self._left), timeout)
        self._left -= len(read)
        return read

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        return _Bounded(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _retry_after(fields: Mapping[bytes, bytes]) -> float:
    """Return the seconds in a Retry-After header; a date or no header means no wait."""
    asked = fields.get(b"retry-after", b"")
    return float(asked) if asked.isdigit() and len(asked) < 9 else 0.0


def _plain(text: str) -> str:
    """Return `text` shortened, with unprintable characters as spaces."""
    return "".join(one if one.isprintable() else " " for one in text)[:_MOST_REPORTED]
