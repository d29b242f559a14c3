"""A `lethe serve` for a benchmark, on private servers unless it is given others."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import psutil
from prometheus_client.parser import text_string_to_metric_families

from lethe_client import LetheClient
from service.predictions.layout import Layout
from service.processes.listening import facts_paths
from service.processes.private_servers import running_servers

#: The first key, with all scopes.
KEY = "the-key-of-a-benchmark"
HEADERS = {"Authorization": f"Bearer {KEY}"}


def memory_text(memory: Mapping[str, float]) -> str:
    """Format MiB by process."""
    return ", ".join(f"{name} {value:.0f}" for name, value in memory.items())


class LetheProcess:
    """A `lethe serve` that is ready."""

    def __init__(self, home: Path, settings: Mapping[str, str], *arguments: str) -> None:
        """Start it in `home`; `settings` are environment variables, and `arguments` those of `serve`."""
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "LETHE_HOME": str(home),
            "LETHE_PORT": "0",
            "LETHE_ADMIN_KEY": KEY,
            "LETHE_LOG_LEVEL": "warning",
            **settings,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.cli", "serve", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("  Docs"):
                break
        else:
            raise SystemExit("The service ended before it was ready; see its log above.")
        #: `time.time()` when it became ready.
        self.ready_at = time.time()
        self.home = home
        self.url: str = self._facts()["url"]

    @property
    def port(self) -> int:
        """Its port on 127.0.0.1."""
        return int(self.url.rpartition(":")[2])

    def client(self) -> LetheClient:
        """Return a client with all scopes."""
        return LetheClient(self.url, KEY, timeout_s=60.0)

    @property
    def database_url(self) -> str:
        """Its private Postgres, with the owner's login."""
        servers = running_servers(self.home)
        assert servers is not None
        assert servers.database_url is not None
        return servers.database_url

    @property
    def processes(self) -> dict[str, psutil.Process]:
        """Processes by name: `supervisor`, `unlearner`, `api-0` and so on."""
        facts = self._facts()
        pids = {"supervisor": facts["pid"], **facts["pids"]}
        return {name: psutil.Process(pid) for name, pid in pids.items()}

    @property
    def answering(self) -> list[psutil.Process]:
        """The processes that answer requests."""
        return [process for name, process in self.processes.items() if name.startswith("api-")]

    def memory(self) -> dict[str, float]:
        """Return resident memory by process (MiB). Shared pages of the publication count for each reader."""
        return {name: process.memory_info().rss / (1 << 20) for name, process in self.processes.items()}

    def metrics(self) -> dict[str, float]:
        """Return samples by name and labels, summed over processes."""
        found = dict[str, float]()
        text = httpx2.get(f"{self.url}/metrics", headers=HEADERS).raise_for_status().text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = (value for name, value in sample.labels.items() if name != "process")
                name = f"{sample.name}{{{','.join(labels)}}}"
                found[name] = found.get(name, 0.0) + sample.value
        return found

    def _facts(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = [json.loads(path.read_text()) for _, path in facts_paths(self.home)]
        return next(facts for facts in found if facts["pid"] == self.process.pid)

    def stop(self) -> int:
        """Send SIGTERM and return the exit status. Removes the publication, which lies outside the home."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        for layout in Layout.all_of(self.home):
            layout.remove()
        return status
