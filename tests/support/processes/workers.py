"""The number of workers that a service reports."""

import socket
import time

from tests.support.processes.lethe_process import LetheProcess


def free_port() -> int:
    """Return a free TCP port."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    return port


def reported_workers(lethe: LetheProcess) -> str | None:
    """Return what readiness reports about workers; None if there is only one."""
    with lethe.http() as http:
        checks = http.get("/readyz").json()["checks"]
    return next((str(check["detail"]) for check in checks if check["name"] == "workers"), None)


def until_together(lethe: LetheProcess, count: int, *, of: int) -> None:
    """Wait until `count` workers compute together."""
    while reported_workers(lethe) != f"{count} of {of} compute together":
        lethe.assert_runs()
        time.sleep(0.02)
