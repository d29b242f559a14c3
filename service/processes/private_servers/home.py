"""The folder LETHE_HOME: who uses it, and what is kept in it for the private servers, their ports and passwords."""

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
    #: The id of the home. A copy has another, and must not reach the servers of its original.
    home: str


class Home:
    """Paths and small files below LETHE_HOME. Everything in it is for its owner only."""

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
        """Make the folders that are missing; ConfigurationError when that is not possible."""
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
        """Return the password of a server, made when there is none; it is kept in a 0600 file."""
        path = self._secrets / f"{name}-password"
        if path.exists() and path.stat().st_size:
            return path.read_text().strip()
        password = secrets.token_urlsafe(32)
        write_private(path, password + "\n")
        return password

    def keep_ports(self, ports: dict[str, int]) -> None:
        """Keep the ports of the private servers, by name, for every later start."""
        if ports != self.kept_ports():
            write_private(self._ports_file, msgspec.json.encode(_KeptPorts(ports, id_of(self.path))))

    def kept_ports(self) -> dict[str, int]:
        """Return the ports that were chosen for this home; none of those that a copy has from its original."""
        try:
            kept = msgspec.json.decode(self._ports_file.read_bytes(), type=_KeptPorts)
        except (FileNotFoundError, ValueError):
            return {}
        return kept.ports if kept.home == known_id(self.path) else {}

    def part_from_original(self) -> None:
        """Drop the passwords that a copied home shares with its original; the next start makes others."""
        if self._ports_file.exists() and not self.kept_ports():
            for password in self._secrets.glob("*-password"):
                password.unlink()


class HomeLock:
    """The right to use one LETHE_HOME, alone or with others; ends with `release` or with the process."""

    def __init__(self, home: Home, *, share: bool = False) -> None:
        """Take the lock alone or, with `share`, beside others that share it.

        Raises AlreadyRunning when others use the home; with `share`, when another process has it alone.
        """
        self._descriptor: int | None = os.open(home.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        self._reservation: int | None = None
        #: Whether nobody else uses the home.
        self.alone = try_lock(self._descriptor)
        if not self.alone and not (share and try_lock(self._descriptor, share=True)):
            self.release()
            raise already_running(home)
        if not share:
            self._reservation = os.open(home.reservation_file, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._reservation, fcntl.LOCK_EX)

    def share(self) -> bool:
        """Let others use the home, too. False if another process has it alone: this lock is lost, and can be tried for.

        The kernel frees the one lock before it takes the other, and a process in between may be faster.
        """
        assert self._descriptor is not None
        self.alone = False
        return try_lock(self._descriptor, share=True)

    def release(self) -> None:
        """Give the lock back; harmless when it was given back already."""
        for descriptor in (self._descriptor, self._reservation):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._reservation = None


def already_running(home: Home) -> AlreadyRunning:
    """The error of whoever may not use `home`."""
    return AlreadyRunning(f"Lethe already runs in {home.path}.", "Stop it, or use another LETHE_HOME.")


def is_reserved(home: Home) -> bool:
    """Whether a process has `home` alone until its end, as `recover`, and not for a while, as at a start."""
    return _is_locked(home.reservation_file)


def is_shared(home: Home) -> bool:
    """Tell whether processes use `home` that let others use it, too."""
    with suppress(AlreadyRunning):
        lock = HomeLock(home, share=True)
        lock.release()
        return not lock.alone
    return False


def is_guarded(home: Home) -> bool:
    """Tell whether a guardian runs in `home`, or is being started."""
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
    """Take a lock that lasts as long as any copy of `descriptor`, in this or a child process."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if share else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
