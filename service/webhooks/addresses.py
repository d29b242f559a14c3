"""Which addresses webhooks may be sent to: public ones, and those that the operator names.

A name is looked up once for each attempt, and what was found and checked is what is connected to: that the name leads
elsewhere a moment later changes nothing.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from threading import Thread
from urllib.parse import urlsplit

from service.errors import LetheError

Address = IPv4Address | IPv6Address
Networks = Sequence[IPv4Network | IPv6Network]

#: What is assigned of IPv6, and the prefix by which IPv4 is reached from where there is none (RFC 6052).
_GLOBAL_UNICAST, _NAT64 = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96")


class AddressRefused(LetheError):
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
                f"{address} is no public address.", "Name its network in LETHE_WEBHOOK_NETWORKS if it is yours."
            )
        if parts.scheme != "https":
            raise AddressRefused(
                "Outside the networks of LETHE_WEBHOOK_NETWORKS, webhooks are sent by https.", "Give the https address."
            )
    return [str(address) for address in found]


def is_public(address: Address) -> bool:
    """Whether an address is everybody's to reach, and no way to one that is not."""
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    if address in _NAT64:
        return is_public(IPv4Address(address.packed[-4:]))
    inner = [address.sixtofour, *(address.teredo or ())]
    return address in _GLOBAL_UNICAST and address.is_global and all(is_public(one) for one in inner if one is not None)


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
