"""A service under attack: what it must go on doing, and what it must not lose."""

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

import asyncpg
import psutil

from benchmarks.performance.service import attackers
from tests.support.processes.lethe_process import KEY, LetheProcess


@dataclass
class Attacked:
    """A service under attack, and what it was before."""

    lethe: LetheProcess
    database_url: str
    fencing: int
    memory: float
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.lethe.url.rpartition(":")[2])

    def attack(self, name: str, seconds: float) -> subprocess.Popen[bytes]:
        """Begin one; the end of the test ends it."""
        self.running.append(attackers.start(name, self.port, KEY, seconds))
        return self.running[-1]

    def while_under(self, name: str, seconds: float, look: Callable[[], None]) -> float:
        """Look again and again until the attack is over; returns the most that memory grew by meanwhile (MiB)."""
        attack, most = self.attack(name, seconds), 0.0
        while attack.poll() is None:
            look()
            most = max(most, resident(self.lethe) - self.memory)
        assert attack.returncode == 0
        return most

    def ready(self) -> None:
        """AssertionError when a new client is not served: not ready, or no predictions."""
        with self.lethe.http() as client:
            answer = client.get("/readyz")
            assert answer.status_code == 200, answer.text
            assert client.get("/predict/0").status_code == 200

    def unharmed(self) -> None:
        """AssertionError when the lease has moved, or something that should not be was logged."""
        assert asyncio.run(fencing(self.database_url)) == self.fencing
        assert "[error" not in self.lethe.log()
        assert "lease" not in self.lethe.log()


def resident(lethe: LetheProcess) -> float:
    """Memory of the process that answers (MiB)."""
    return float(psutil.Process(lethe.pid_of("api-0")).memory_info().rss) / (1 << 20)


async def fencing(database_url: str) -> int:
    """The number of the lease on the model."""
    connection = await asyncpg.connect(database_url)
    try:
        return int(await connection.fetchval("SELECT max(fencing) FROM leases"))
    finally:
        await connection.close()
