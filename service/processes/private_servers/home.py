"""The folder LETHE_HOME: its locks, and the ports and passwords of the private servers."""

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from service.errors import AlreadyRunning, ConfigurationError
from service.home_id import id_of, known_id
from service.private_files import ignore_in_git, write_private


class _KeptPorts(msgspec.Struct, frozen=True):
    """TCP ports of the private servers on 127.0.0.1, by name."""

    ports: dict[str, int]
    #: Id of the home. A copy has another one and must not reach its original's servers.
    home: str


class Home:
    """Paths and small files below LETHE_HOME. Only the owner can read them."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.postgres = self.path / "postgres"
        self.valkey = self.path / "valkey"
        self.logs = self.path / "logs"
        self.lock_file = self.path / "lock"
        self.guardian_lock_file = self.path / "run" / "guardian.lock"
        self.servers_lock_file = self.path / "run" / "servers.lock"
        self.reservation_file = self.path / "run" / "alone.lock"
        self._ports_file = self.path / "run" / "ports.json"
        self._secrets = self.path / "secrets"

    def prepare(self) -> None:
        """Create missing folders; raises ConfigurationError on failure."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.logs, self._secrets, self.path / "run"):
                folder.mkdir(mode=0o700, exist_ok=True)
            ignore_in_git(self.path)
        except OSError as error:
            raise ConfigurationError(
                f"LETHE_HOME {self.path} cannot be used: {error.strerror}.", "Choose a writable folder."
            ) from error

    def password(self, name: str) -> str:
        """Return the password of a server, creating it if missing; it is stored in a 0600 file."""
        path = self._secrets / f"{name}-password"
        if path.exists() and path.stat().st_size:
            return path.read_text().strip()
        password = secrets.token_urlsafe(32)
        write_private(path, password + "\n")
        return password

    def keep_ports(self, ports: dict[str, int]) -> None:
        """Store the ports of the private servers, by name, for later starts."""
        if ports != self.kept_ports():
            write_private(self._ports_file, msgspec.json.encode(_KeptPorts(ports, id_of(self.path))))

    def kept_ports(self) -> dict[str, int]:
        """Return the ports chosen for this home; ignore those that a copy has from its original."""
        try:
            kept = msgspec.json.decode(self._ports_file.read_bytes(), type=_KeptPorts)
        except (FileNotFoundError, ValueError):
            return {}
        return kept.ports if kept.home == known_id(self.path) else {}

    def part_from_original(self) -> None:
        """Drop the passwords that a copied home shares with its original; the next start creates others."""
        if self._ports_file.exists() and not self.kept_ports():
            for password in self._secrets.glob("*-password"):
                password.unlink()


class HomeLock:
    """The right to use one LETHE_HOME, alone or shared; ends with `release` or with the process."""

    def __init__(self, home: Home, *, share: bool = False) -> None:
        """Take the lock alone or, with `share`, together with others that share it.

        Raises AlreadyRunning if others use the home; with `share`, if another process has it alone.
        """
        self._descriptor: int | None = os.open(home.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        self._reservation: int | None = None
        #: Whether this lock is exclusive.
        self.alone = try_lock(self._descriptor)
        if not self.alone and not (share and try_lock(self._descriptor, share=True)):
            self.release()
            raise already_running(home)
        if not share:
            self._reservation = os.open(home.reservation_file, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._reservation, fcntl.LOCK_EX)

    def share(self) -> bool:
        """Let others use the home too. False if another process has it alone: this lock is lost and can be retried.

        The kernel frees the exclusive lock before it takes the shared one, and another process may be faster.
        """
        assert self._descriptor is not None
        self.alone = False
        return try_lock(self._descriptor, share=True)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        for descriptor in (self._descriptor, self._reservation):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._reservation = None


def already_running(home: Home) -> AlreadyRunning:
    """Build the error for a home that this process may not use."""
    return AlreadyRunning(f"Lethe already runs in {home.path}.", "Stop it, or use another LETHE_HOME.")


def is_reserved(home: Home) -> bool:
    """Return whether a process reserves `home` until its end, like `recover`, and not just for a start."""
    return _is_locked(home.reservation_file)


def is_shared(home: Home) -> bool:
    """Return whether processes that share `home` are using it."""
    with suppress(AlreadyRunning):
        lock = HomeLock(home, share=True)
        lock.release()
        return not lock.alone
    return False


def is_guarded(home: Home) -> bool:
    """Return whether a guardian runs, or is starting, in `home`."""
    return _is_locked(home.guardian_lock_file)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor, share=True)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, share: bool = False) -> bool:
    """Try to lock `descriptor`; the lock lasts as long as any copy of it, in this or a child process."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if share else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
