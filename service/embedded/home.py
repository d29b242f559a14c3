"""The folder LETHE_HOME: who holds it, and the passwords kept in it."""

import fcntl
import os
import secrets
from pathlib import Path

import msgspec

from service.errors import AlreadyRunning, ConfigurationError
from service.private_files import ignore_in_git, write_private


class Ports(msgspec.Struct, frozen=True):
    """TCP ports of the private servers on 127.0.0.1; None for a server that is not private."""

    postgres: int | None
    valkey: int | None
    #: The process that they are of.
    pid: int = msgspec.field(default_factory=os.getpid)


class Home:
    """Paths and small files below LETHE_HOME. Everything in it is for its owner only."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.postgres = self.path / "postgres"
        self.valkey = self.path / "valkey"
        self.logs = self.path / "logs"
        self.lock_file = self.path / "lock"
        self.servers_lock_file = self.path / "run" / "servers.lock"
        self._ports_file = self.path / "run" / "ports.json"
        self._secrets = self.path / "secrets"

    def prepare(self) -> None:
        """Make the folders that are missing; ConfigurationError when that is not possible."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.logs, self._secrets, self.path / "run"):
                folder.mkdir(mode=0o700, exist_ok=True)
            ignore_in_git(self.path)
        except OSError as error:
            raise ConfigurationError(
                f"LETHE_HOME {self.path} cannot be used: {error.strerror}.", "Choose a folder you may write to."
            ) from error

    def password(self, name: str) -> str:
        """Return the password of a server, made when there is none; it is kept in a 0600 file."""
        path = self._secrets / f"{name}-password"
        if path.exists() and path.stat().st_size:
            return path.read_text().strip()
        password = secrets.token_urlsafe(32)
        write_private(path, password + "\n")
        return password

    def write_ports(self, ports: Ports) -> None:
        """Publish where the servers of this process listen, for other commands of the same user."""
        write_private(self._ports_file, msgspec.json.encode(ports).decode())

    def read_ports(self, pid: int) -> Ports | None:
        """Return where the servers of process `pid` listen, or None while that is not known."""
        try:
            found = msgspec.json.decode(self._ports_file.read_bytes(), type=Ports)
        except (FileNotFoundError, ValueError):
            return None
        return found if found.pid == pid else None

    def forget_ports(self) -> None:
        """Remove what `write_ports` wrote."""
        self._ports_file.unlink(missing_ok=True)


class HomeLock:
    """The right to run Lethe in one LETHE_HOME; released by `release` or the end of the process."""

    def __init__(self, home: Home) -> None:
        """Take the lock; AlreadyRunning, naming the process, when another one holds it."""
        self._descriptor: int | None = os.open(home.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        if not try_lock(self._descriptor):
            self.release()
            pid = holder(home)
            raise AlreadyRunning(
                f"Lethe already runs in {home.path}" + (f" as process {pid}." if pid else "."),
                "Stop that process, or give this one a LETHE_HOME of its own.",
                pid=pid,
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back; harmless when it was given back already."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def holder(home: Home) -> int | None:
    """Return the id of the process that last took the lock of `home`, if it is written down."""
    try:
        return int(home.lock_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def try_lock(descriptor: int) -> bool:
    """Take an exclusive lock that lasts as long as any copy of `descriptor`, in this or a child process."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
