"""Which addresses webhooks may be sent to: public ones, and those that the operator names.

A name is looked up once for each attempt, and what was found and checked is what is connected to: that the name leads
elsewhere a moment later changes nothing.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from threading import Thread
from urllib.parse import urlsplit

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
    """Nothing is sent to this address."""


async def addresses_of(url: str, allowed: Networks) -> Sequence[str]:
    """Return the IP addresses of a URL's host, in the order in which to try them.

    Raises `AddressRefused` when one of them is neither public nor `allowed`, or public and not to be reached by https;
    and OSError when the name is not found.
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
    """Whether an address is everybody's to reach, and no way to one that is not."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return is_public(IPv4Address(address.packed[-4:]))
        if address in _SIXTOFOUR:
            return is_public(IPv4Address(address.packed[2:6]))
        if address not in _GLOBAL_UNICAST:
            return False
    return not any(address in block for block in _SPECIAL)


async def _looked_up(host: str, port: int) -> Sequence[Address]:
    """The addresses of a name. On a thread of its own: a name server that hangs keeps nobody else's work waiting."""
    loop = asyncio.get_running_loop()
    looking: asyncio.Future[Sequence[Address]] = loop.create_future()

    def tell(found: Sequence[Address] | Exception) -> None:
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
            loop.call_soon_threadsafe(tell, found)

    Thread(target=look_up, name="webhook-name", daemon=True).start()
    return await looking


def _parsed(texts: Iterable[str]) -> Sequence[Address]:
    """Each address once; one of IPv4 that is written as one of IPv6, as what it is."""
    found: dict[Address, None] = {}
    for text in texts:
        address = ip_address(text)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        found[mapped or address] = None
    return list(found)
