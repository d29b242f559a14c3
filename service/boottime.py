"""The clock by which this process gives up a lease."""

import time


def boottime() -> float:
    """Seconds since the machine was started, those in which it slept among them.

    Unlike `time.monotonic`, which stands still while a machine is suspended: a lease runs out meanwhile.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)
