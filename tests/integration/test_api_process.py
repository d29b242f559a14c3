"""`serve` as a process of its own: what it prints and writes, how it stops, and when it refuses to start."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from lethe_process import copied
from test_api_end_to_end import small_model

from lethe_client import LetheClient

__all__ = ["small_model"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Serve:
    """`lethe serve` in one home."""

    home: Path
    database_url: str
    redis_url: str

    @contextmanager
    def start(self) -> Iterator[subprocess.Popen[str]]:
        settings = {
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "LETHE_HOME": str(self.home),
            "LETHE_PORT": "0",
            "LETHE_DEVICE": "cpu",
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LETHE_")}
        with (
            (self.home / "log").open("w") as log,
            subprocess.Popen(
                [sys.executable, "-m", "service.cli", "serve"],
                cwd=ROOT,
                env=inherited | settings,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):
            yield process

    @contextmanager
    def running(self) -> Iterator[tuple[str, str]]:
        """The address of a server that is ready and what it printed; stopped in order at the end."""
        with self.start() as process:
            try:
                assert process.stdout is not None
                lines: list[str] = []
                while not any(line.startswith("  Docs") for line in lines):
                    lines.append(process.stdout.readline())
                    assert lines[-1], self.log
                (url,) = [line.split()[1] for line in lines if line.startswith("  API ")]
                assert f"  Dashboard  {url}/dashboard\n" in lines
                yield url, "".join(lines)
            finally:
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0, self.log

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()


@pytest.fixture
def serve(small_model: Path, tmp_path: Path, database_url: str, redis_url: str) -> Serve:
    home = tmp_path / "home"
    copied(small_model, home / "model")
    return Serve(home, database_url, redis_url)


def is_private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_says_where_it_is_keeps_the_first_key_private_and_stops_in_order(
    serve: Serve, make_database: Callable[[], str]
) -> None:
    facts, key_file = serve.home / "run" / "server.json", serve.home / "run" / "admin.key"
    with serve.running() as (url, printed):
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert json.loads(facts.read_text())["url"] == url
        key = key_file.read_text().strip()
        assert str(key_file) in printed
        assert key not in printed + serve.log
        assert is_private(key_file)
        assert is_private(facts)
        client = LetheClient(url, key)
        client.wait(client.request_deletion(["3"]).id)
        client.close()
    assert not facts.exists()

    with replace(serve, database_url=make_database()).start() as process:
        assert process.wait(60) == 1
    assert "The store holds version 1-" in serve.log
    assert not facts.exists()
