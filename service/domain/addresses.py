"""Addresses of this machine and of clients."""

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that `host` spells, with IPv4-mapped IPv6 as IPv4; None if it is not an address."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def subscriber(host: str) -> str:
    """Return the address that identifies a client at `host`; for IPv6 its /64, the smallest assigned network."""
    address = address_of(host)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address) >> 64 << 64, 64)))
    return host if address is None else str(address)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener on `host`; False if the name has no address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return all(ip_address(address[0]).is_loopback for *_, address in found)


def is_private(url: str) -> bool:
    """Return whether nobody on the network can read what is sent to `url`: it is https, or on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def url_of(bound: socket.socket) -> str:
    """Return the URL by which processes on this machine reach `bound`."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
