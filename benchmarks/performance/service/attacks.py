"""The effect of attacks on an honest client: the p99 of its predictions, quiet and during each attack, and the ratio.

A light generator in its own process requests predictions at a fixed rate from a `lethe serve` on private Postgres and
Valkey. Beside it the attacks (`attackers`) run one by one, each bounded. A request's time starts when it was due. The
goal is a ratio of 5 at most. Memory is the peak of all its processes during the attack. A lease that moves would show
as another fencing number.

    python -m benchmarks.performance.service.attacks [--attacks NAME …] [--seconds 10]
"""

import argparse
import asyncio
import os
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import numpy as np
import torch

from benchmarks.device import device_name
from benchmarks.performance.service import attackers
from benchmarks.performance.service.http_load import Ask, Load, Plan
from benchmarks.performance.service.lethe_process import KEY, LetheProcess
from service.processes.private_servers import Embedded

_DATASET = "synthetic:n=2708,d=256,classes=7,seed=0"
_NODES = 2708
_RATE = 100.0
_CONNECTIONS = 8


def predictions(lethe: LetheProcess, seconds: float) -> list[float]:
    """Return latencies of predictions at `_RATE` (seconds)."""
    asks = [Ask("GET", f"/predict/{number}") for number in range(_NODES)]
    plan = Plan("127.0.0.1", lethe.port, KEY, _CONNECTIONS, asks, seconds=seconds, rate=_RATE)
    return Load(plan).seen().require(200).latencies


class Memory:
    """Peak resident memory of the service during the block (MiB)."""

    def __init__(self, lethe: LetheProcess) -> None:
        """Sample the memory of `lethe`."""
        self.most = sum(lethe.memory().values())
        self._lethe = lethe
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            self.most = max(self.most, sum(self._lethe.memory().values()))

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


async def fencing(database_url: str) -> int:
    """Return the fencing number of the lease on the model."""
    connection = await asyncpg.connect(database_url)
    try:
        return int(await connection.fetchval("SELECT max(fencing) FROM leases"))
    finally:
        await connection.close()


def measured(lethe: LetheProcess, database_url: str, names: list[str], seconds: float) -> None:
    """Print a row for each attack."""
    predictions(lethe, 3.0)
    quiet = float(np.percentile(predictions(lethe, seconds), 99))
    first = asyncio.run(fencing(database_url))
    print("| beside | p50 ms | p99 ms | quiet p99 ms | ratio | memory before MiB | most MiB | lease |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for name in names:
        before = sum(lethe.memory().values())
        with Memory(lethe) as memory:
            attack = attackers.start(name, lethe.port, KEY, seconds + 4.0)
            # Time for the start of the interpreter and the connections.
            predictions(lethe, 2.0)
            seen = predictions(lethe, seconds)
            status = attack.wait()
        if status:
            raise SystemExit(f"The attack {name} ended with status {status}.")
        p50, p99 = (float(one) for one in np.percentile(seen, [50, 99]))
        moved = "moved" if asyncio.run(fencing(database_url)) != first else "kept"
        print(
            f"| {name} | {p50 * 1000:.1f} | {p99 * 1000:.1f} | {quiet * 1000:.1f} | {p99 / quiet:.1f} | {before:.0f} | "
            f"{memory.most:.0f} | {moved} |",
            flush=True,
        )
        quiet = float(np.percentile(predictions(lethe, seconds), 99))


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attacks", nargs="+", choices=list(attackers.ATTACKS), default=list(attackers.ATTACKS))
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each window")
    options = parser.parse_args()
    print(
        f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores, {datetime.now(UTC):%Y-%m-%d}, "
        f"load {os.getloadavg()[1]:.1f}, {_DATASET}, {_RATE:.0f} predictions/s over {_CONNECTIONS} connections, "
        f"windows of {options.seconds:.0f} s\n"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        servers = Embedded(folder / "servers")
        urls = servers.start()
        assert urls.database_url is not None
        assert urls.redis_url is not None
        try:
            environment = {"DATABASE_URL": urls.database_url, "REDIS_URL": urls.redis_url, "LETHE_DATASET": _DATASET}
            lethe = LetheProcess(folder / "home", environment)
            try:
                measured(lethe, urls.database_url, options.attacks, options.seconds)
            finally:
                status = lethe.stop()
            if status:
                raise SystemExit(f"The service ended with status {status}.")
        finally:
            servers.stop()


if __name__ == "__main__":
    main()
