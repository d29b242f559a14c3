"""Addresses: of this machine, of clients, and what stands for whoever has one."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address that `host` is, of IPv4 also where it is written as one of IPv6; None when it is none."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def subscriber(host: str) -> str:
    """What stands for whoever has `host`: an address, or with IPv6 the smallest network that is given out (/64)."""
    address = address_of(host)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address) >> 64 << 64, 64)))
    return host if address is None else str(address)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`; False also for a name without an address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return all(ip_address(address[0]).is_loopback for *_, address in found)


def url_of(bound: socket.socket) -> str:
    """The address under which a process on this machine reaches `bound`."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
