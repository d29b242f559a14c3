"""Addresses of clients, and what stands for whoever has one."""

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
