"""Servers that have outlived their guardian, or left files which say so."""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence

import psutil

from service.embedded.guardian import wait_until
from service.embedded.home import Home, try_lock
from service.embedded.postgres import Postgres, works_in
from service.embedded.valkey import PROGRAMS, Valkey
from service.errors import EmbeddedServerError

_GENTLE_SECONDS = 30.0
_HARSH_SECONDS = 10.0
_SERVER_PROGRAMS = ("postgres", *PROGRAMS)


Server = Postgres | Valkey


def take_over(home: Home, servers: Sequence[Server]) -> int:
    """Stop servers that outlived their guardian, clear what they left, and return the lock's open descriptor.

    The guardian and every server process hold a copy of that descriptor, so the lock is free exactly when all of them
    are gone, whatever process ids were reused meanwhile. The caller holds the guardian's lock: no guardian runs.
    Raises EmbeddedServerError when a leftover does not end.
    """
    descriptor = os.open(home.servers_lock_file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _stop_orphans(home, servers, lambda: try_lock(descriptor))
        for server in servers:
            server.clear_stale_files()
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _stop_orphans(home: Home, servers: Sequence[Server], is_free: Callable[[], bool]) -> None:
    def gone() -> bool:
        return is_free() and not any(server.main_process() for server in servers)

    if gone():
        return
    for server in servers:
        process = server.main_process()
        if process is not None:
            # A shutdown under way is not disturbed by asking for it once more.
            _send(process, signal.SIGINT if server.name == "postgres" else signal.SIGTERM)
    if wait_until(gone, _GENTLE_SECONDS):
        return
    for process in _processes_of(home):
        _send(process, signal.SIGKILL)
    if not wait_until(gone, _HARSH_SECONDS):
        pids = ", ".join(str(process.pid) for process in _processes_of(home)) or "unknown"
        raise EmbeddedServerError(
            f"Servers left by an earlier Lethe in {home.path} do not end (processes: {pids}).", "Stop them manually."
        )


def _processes_of(home: Home) -> list[psutil.Process]:
    folders = (home.postgres, home.valkey)
    return [
        process
        for process in psutil.process_iter()
        if any(works_in(process, folder, *_SERVER_PROGRAMS) for folder in folders)
    ]


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
