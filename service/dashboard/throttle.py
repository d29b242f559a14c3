"""How often an address may try to sign in: a bucket of attempts per address, refilled as time passes."""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

#: Failed attempts in a row, and seconds after which one more is allowed.
BURST = 10
REFILL_S = 30.0
#: Addresses remembered; the one that tried longest ago is forgotten first, and its bucket would be the fullest.
MAX_ADDRESSES = 10_000


class Throttle:
    """Counts failed attempts by address; an IPv6 network of one subscriber (/64) counts as one address."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: By address: attempts left, and when that was true.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> int:
        """Take one attempt; returns 0 when it is allowed, otherwise the seconds until the next one is."""
        network = _network(address)
        left = self._left(network)
        if left < 1.0:
            return math.ceil((1.0 - left) * REFILL_S)
        self._keep(network, left - 1.0)
        return 0

    def give_back(self, address: str) -> None:
        """Return an attempt that succeeded: only failures count."""
        network = _network(address)
        self._keep(network, min(BURST, self._left(network) + 1.0))

    def _left(self, network: str) -> float:
        left, at = self._buckets.get(network, (float(BURST), 0.0))
        return min(float(BURST), left + (self._clock() - at) / REFILL_S)

    def _keep(self, network: str, left: float) -> None:
        self._buckets[network] = (left, self._clock())
        self._buckets.move_to_end(network)
        while len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
