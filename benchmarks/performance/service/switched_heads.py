"""An additional process that answers for a running Lethe, with a switchable look at heads.

It runs the application itself. SIGUSR1 makes it answer from the head that it found first, without a look at the
entries; SIGUSR2 makes it look again. It prints its port once it is ready.

    LETHE_HOME=… python -m benchmarks.performance.service.switched_heads
"""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from benchmarks.performance.service.http_load import Seen
from service.observability.logging import configure_logging
from service.predictions.heads import Head, Heads
from service.processes.api_process import run
from service.processes.listening import listen
from service.processes.private_servers import running_servers
from service.settings import load_settings

WITHOUT, WITH = int(signal.SIGUSR1), int(signal.SIGUSR2)
#: Interval of switching the look at heads (seconds).
_SLOT_S = 0.25
_ROOT = Path(__file__).parents[3]


@contextmanager
def switched(home: Path) -> Iterator[tuple[psutil.Process, int]]:
    """Yield a process with a switchable look at heads that answers for the Lethe in `home`, and its port."""
    command = [sys.executable, "-m", "benchmarks.performance.service.switched_heads"]
    environment = os.environ | {"LETHE_HOME": str(home), "LETHE_LOG_LEVEL": "warning"}
    process = subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield psutil.Process(process.pid), int(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()


def slots(process: psutil.Process, stop: threading.Event) -> list[tuple[int, float, float]]:
    """Switch the look on and off until `stop`. Returns the time and the processor time of `process` at each switch."""
    # The clock of another process' processor time (`man 3 clock_getcpuclockid`), in nanoseconds rather than ticks.
    clock, found = ~process.pid << 3 | 2, list[tuple[int, float, float]]()
    while not stop.wait(_SLOT_S):
        switch = WITHOUT if len(found) % 2 else WITH
        process.send_signal(switch)
        found.append((switch, time.monotonic(), time.clock_gettime(clock)))
    return found


def costs(switches: Sequence[tuple[int, float, float]], seen: Seen) -> tuple[float, float]:
    """Return an answer's processor time (us) with the look and without, over the slots with requests."""
    answered = np.sort(np.array(seen.due) + seen.latencies)
    first, last = min(seen.due), max(seen.due)
    spent, answers = {WITH: 0.0, WITHOUT: 0.0}, {WITH: 0, WITHOUT: 0}
    for (switch, began, before), (_, ended, after) in itertools.pairwise(switches):
        if first < began and ended < last:
            spent[switch] += 1e6 * (after - before)
            begin, end = np.searchsorted(answered, [began, ended])
            answers[switch] += int(end - begin)
    return spent[WITH] / answers[WITH], spent[WITHOUT] / answers[WITHOUT]


def main() -> None:
    """Answer until stopped."""
    looking, kept = Heads.newest, dict[Heads, Head]()

    def remembered(heads: Heads, least: Head | None = None) -> Head | None:
        if (head := kept.get(heads)) is None and (head := looking(heads, least)) is not None:
            kept[heads] = head
        return head

    def switch(number: int, frame: object) -> None:
        Heads.newest = remembered if number == WITHOUT else looking  # type: ignore[method-assign,assignment]

    for number in (WITHOUT, WITH):
        signal.signal(number, switch)
    settings = load_settings()
    servers = running_servers(settings.home)
    if servers is None or servers.api_database_url is None or servers.redis_url is None:
        raise SystemExit(f"No Lethe with private servers runs in {settings.home}. Start one there first.")
    settings = settings.model_copy(update={"database_url": servers.api_database_url, "redis_url": servers.redis_url})
    configure_logging(settings.log_format, settings.log_level, process="switched")
    bound = listen("127.0.0.1", 0)
    run(settings, bound, lambda: print(bound.getsockname()[1], flush=True), "switched", 0)


if __name__ == "__main__":
    main()
