"""Where the unlearner meets the other workers, and the network interface that they use for it."""

import os
from dataclasses import dataclass
from ipaddress import ip_address

import psutil

from service.settings import Settings


@dataclass(frozen=True)
class MeetingPlace:
    """What all workers of one model are told."""

    address: str
    port: int
    #: After which one that does not answer is lost (seconds).
    timeout_s: float

    @classmethod
    def of(cls, settings: Settings) -> "MeetingPlace":
        """As the settings say; a worker is missed as soon as a lease is."""
        return cls(settings.workers_address, settings.workers_port, settings.lease_ttl_s)


def use_interface_of(address: str) -> None:
    """Has gloo and nccl listen, in this process, on the interface of one of its own addresses.

    What the environment says of it already stays. gloo takes the first address of an interface.
    """
    found = next((name for name, own in psutil.net_if_addrs().items() if any(_is(one.address, address) for one in own)))
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, found)


def _is(one: str, wanted: str) -> bool:
    """Whether an interface that has the address `one` has the address `wanted`, as loopback has all of its network."""
    try:
        found, sought = ip_address(one.partition("%")[0]), ip_address(wanted)
    except ValueError:
        return False  # of hardware
    return found == sought or (found.version == sought.version and found.is_loopback and sought.is_loopback)
