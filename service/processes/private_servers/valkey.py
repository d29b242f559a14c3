"""The private Valkey: its configuration and its readiness."""

import logging
import shutil
import signal
import socket

import psutil

from service.processes.private_servers.home import Home
from service.processes.private_servers.postgres import works_in
from service.processes.private_servers.programs import ServerPlan, find_valkey, server_account

PROGRAMS = ("valkey-server", "redis-server")
_logger = logging.getLogger(__name__)


class Valkey:
    """One private Valkey below a LETHE_HOME, with an append-only file."""

    name = "valkey"

    def __init__(self, home: Home, *, durable: bool) -> None:
        self.folder = home.valkey
        self.log = home.logs / "valkey.log"
        self._home = home
        self._durable = durable
        self._account = server_account(self.folder)

    @property
    def _password(self) -> str:
        return self._home.password(self.name)

    def prepare(self, lock: int) -> None:
        """Create the data folder if missing."""
        self._account.make_folder(self.folder)

    def plan(self, port: int) -> ServerPlan:
        """Return the guardian's plan for the server on `port`."""
        configuration = (
            "bind 127.0.0.1",
            f"port {port}",
            f"requirepass {self._password}",
            "daemonize no",
            "set-proc-title no",
            "dir .",
            'save ""',
            "appendonly yes",
            f"appendfsync {'everysec' if self._durable else 'no'}",
            "maxmemory-policy noeviction",
        )
        return ServerPlan(
            name=self.name,
            argv=[str(find_valkey(self._account)), "-"],
            folder=self.folder,
            log=self.log,
            account=self._account,
            stop_signals=(signal.SIGTERM, signal.SIGTERM, signal.SIGKILL),
            stdin="\n".join(configuration) + "\n",
        )

    def is_ready(self, pid: int, port: int) -> bool:
        """Return whether the server on `port` accepts our password, has loaded its data and is process `pid`."""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\nINFO server\r\nQUIT\r\n".encode())
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
        except OSError:
            return False
        return answer.startswith(b"+OK\r\n+PONG\r\n") and f"\r\nprocess_id:{pid}\r\n".encode() in answer

    def main_process(self) -> psutil.Process | None:
        """Return the process that serves the data folder now, or None."""
        return next((process for process in psutil.process_iter() if works_in(process, self.folder, *PROGRAMS)), None)

    def clear_stale_files(self) -> None:
        """Do nothing: Valkey leaves no files that could hinder its next start."""

    def recover(self) -> bool:
        """Set aside an append-only file that cannot be loaded; return whether one existed.

        Nothing is lost: every request in it is in Postgres too, and is sent again from there.
        """
        damaged = self.folder / "appendonlydir"
        if not damaged.exists():
            return False
        damaged_copy = self.folder / "appendonlydir.damaged"
        shutil.rmtree(damaged_copy, ignore_errors=True)
        damaged.rename(damaged_copy)
        _logger.warning("Valkey could not load its append-only file; set aside, starting empty")
        return True


def redis_url(home: Home, port: int) -> str:
    """Return the URL of the database that Lethe uses, including the password."""
    password = home.password(Valkey.name)
    return f"redis://:{password}@127.0.0.1:{port}/0"
