"""Any killed process of a `serve` returns and nothing is lost; if `serve` itself is killed, all end."""

import contextlib
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess

PARTS = ("unlearner", "api-0", "api-1")


def pids(home: Path) -> dict[str, int]:
    """Return the processes of the Lethe that runs in `home`, by name."""
    found: dict[str, int] = json.loads((home / "run" / "server.json").read_text())["pids"]
    return found


def test_what_is_killed_comes_back_and_requests_are_completed(
    home: Path, servers: dict[str, str], lethe_start: Start
) -> None:
    lethe = LetheProcess(lethe_start, home, **servers, api_workers=2, lease_ttl_s=1)
    with lethe.start():
        for node, name in enumerate(PARTS):
            before = pids(home)
            assert set(before) == set(PARTS)
            os.kill(before[name], signal.SIGKILL)
            psutil.wait_procs([psutil.Process(before[name])] if psutil.pid_exists(before[name]) else [])
            if name == "unlearner":
                # Accepted and answered while there is none.
                assert lethe.predict(["40"]).model_version == node
            assert lethe.delete([str(node)]).status == "completed"
        lethe.stop()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_all_processes_end_with_one_that_is_killed_and_the_next_takes_their_place(
    home: Path, servers: dict[str, str], lethe_start: Start, workers: int
) -> None:
    lethe = LetheProcess(lethe_start, home, **servers, lease_ttl_s=1, api_workers=workers)
    with lethe.start():
        port = int(lethe.url.rpartition(":")[2])
        left = []
        for pid in pids(home).values():
            with contextlib.suppress(psutil.NoSuchProcess):
                left.append(psutil.Process(pid))
        assert len(left) == workers + 1
        lethe.kill()
        assert psutil.wait_procs(left, timeout=60.0)[1] == []
    again = LetheProcess(lethe_start, home, **servers, lease_ttl_s=1, port=port)
    with again.start():
        assert again.url.endswith(f":{port}")
        assert again.delete(["1"]).status == "completed"
        again.stop()
