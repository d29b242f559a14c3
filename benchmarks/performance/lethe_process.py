"""A `lethe serve` of a benchmark's own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from lethe_client import LetheClient

#: The first key, all scopes.
KEY = "the-key-of-a-benchmark"


class LetheProcess:
    """A `lethe serve` that is ready."""

    def __init__(self, home: Path, settings: Mapping[str, str]) -> None:
        """Starts it in `home`; `settings` are environment variables."""
        environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "LETHE_HOME": str(home),
            "LETHE_PORT": "0",
            "LETHE_ADMIN_KEY": KEY,
            "LETHE_LOG_LEVEL": "warning",
            **settings,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.cli", "serve"], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("  Docs"):
                break
        else:
            raise SystemExit("The service ended before it was ready; see its log above.")
        self.url: str = json.loads((home / "run" / "server.json").read_text())["url"]

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return int(self.url.rpartition(":")[2])

    def client(self) -> LetheClient:
        """A client with all scopes."""
        return LetheClient(self.url, KEY, timeout_s=60.0)

    def memory(self) -> float:
        """Resident memory of the service itself (MiB)."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / (1 << 20)

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels."""
        text = httpx.get(f"{self.url}/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
        return {
            f"{sample.name}{{{','.join(sample.labels.values())}}}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def stop(self) -> int:
        """SIGTERM; returns the status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait()
