"""`serve` as its own process: its output and files, how it stops, and when it refuses to start."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests.support.preloaded import Start, fresh
from tests.support.processes.lethe_process import LetheProcess

pytestmark = pytest.mark.ci


def is_private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_it_says_where_it_is_keeps_the_first_key_private_and_stops_in_order(
    home: Path,
    servers: dict[str, str],
    make_database: Callable[[], str],
    lethe_start: Start,
) -> None:
    facts, key_file = home / "run" / "server.json", home / "run" / "admin.key"
    command = fresh(sys.executable, "-m", "service.cli")
    with LetheProcess(command, home, admin_key="", **servers).start() as lethe:
        assert f"  Dashboard  {lethe.url}/dashboard\n" in lethe.printed
        assert httpx2.get(f"{lethe.url}/readyz").status_code == 200
        assert json.loads(facts.read_text())["url"] == lethe.url
        assert json.loads(facts.read_text())["model"] == str(home / "model")
        key = key_file.read_text().strip()
        assert str(key_file) in lethe.printed
        assert key not in lethe.printed + lethe.log()
        assert is_private(key_file)
        assert is_private(facts)
        with lethe.client(key) as client:
            client.wait(client.request_deletion(["3"]).id)
        ended = lethe.stop()
    assert (ended.status, "[error" in ended.stderr) == (0, False), ended.stderr
    assert not facts.exists()

    refused = LetheProcess(lethe_start, home, **servers | {"database_url": make_database()}).try_to_start()
    assert refused is not None
    assert refused.status == 1
    assert "The store holds version 1-" in refused.stderr
    assert not facts.exists()
