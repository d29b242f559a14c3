"""Private Postgres and Valkey servers, shared by all processes that use one LETHE_HOME."""

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.errors import AlreadyRunning, ConfigurationError, EmbeddedServerError
from service.processes.private_servers.guardian import wait_until
from service.processes.private_servers.home import (
    Home,
    HomeLock,
    already_running,
    is_guarded,
    is_reserved,
    is_shared,
    try_lock,
)
from service.processes.private_servers.launch import STOP_SECONDS, Launch, Server, StartFailed, StartGivenUp, take_over
from service.processes.private_servers.postgres import API, UNLEARNER, Postgres, database_url
from service.processes.private_servers.valkey import Valkey, redis_url
from service.settings import Settings

_START_ATTEMPTS = 4
#: Maximum wait for an exclusive user of the home, such as an ending guardian, and for servers that another process
#: starts.
_JOIN_SECONDS = STOP_SECONDS
_PAUSE_SECONDS = 0.05
#: Systems do not use these ports for outgoing connections, which could block them while a server is down.
_PORTS = range(20_000, 30_000)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class PrivateServers:
    """URLs of the private servers, including passwords; None for a server that is not private."""

    database_url: str | None
    redis_url: str | None
    #: URLs of the same database with the logins of single processes.
    api_database_url: str | None = None
    unlearner_database_url: str | None = None


class Embedded:
    """The private servers of one LETHE_HOME: `start`, use, `stop`; also a context manager.

    They belong to the home. The first user starts them. They run until nobody uses the home any more, however processes
    end (see `guardian`). Their ports stay the same, so that URLs stay valid.
    """

    def __init__(self, home: Path, *, postgres: bool = True, valkey: bool = True, durable: bool = True) -> None:
        """Choose the servers; `durable=False`, for tests alone, turns fsync off."""
        self._home = Home(home)
        self._postgres = postgres
        self._valkey = valkey
        self._durable = durable
        self._lock: HomeLock | None = None
        self._launch: Launch | None = None

    def start(self, *, alone: bool = False) -> PrivateServers:
        """Start the servers unless they run, and return their URLs once they are ready.

        With `alone` nobody else can use the home until `stop`.

        Raises:
            AlreadyRunning: another process has the home alone; with `alone`, others use it.
            EmbeddedServerError: a server does not start, or another program took a stored port that others rely on.
        """
        self._home.prepare()
        deadline = time.monotonic() + _JOIN_SECONDS
        self._lock = _enter(self._home, alone, deadline)
        try:
            while not (ports := self._start_servers() or self._ports_of_running()):
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"The private servers of the Lethe that runs in {self._home.path} are not ready.",
                        f"Check {self._home.logs}. If that Lethe uses other servers, set the same DATABASE_URL "
                        "and REDIS_URL here.",
                    )
                time.sleep(_PAUSE_SECONDS)
            if not alone and self._lock.alone:
                while not self._lock.share():
                    if time.monotonic() > deadline or is_reserved(self._home):
                        raise already_running(self._home)
                    time.sleep(_PAUSE_SECONDS)
                # Between the two locks the guardian may have found the home unused and ended.
                self.keep_running()
        except BaseException:
            self.stop()
            raise
        return _urls(self._home, ports)

    def keep_running(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Restart the servers, on their ports, if their guardian has ended.

        Gives up once `is_stopping`. Raises EmbeddedServerError.
        """
        with contextlib.suppress(StartGivenUp):
            if self._lock is not None and self._start_servers(is_stopping):
                _logger.warning("the private servers had ended with their guardian; they run again")

    def stop(self) -> None:
        """Release the home; if nobody else uses the servers, they have ended on return. Idempotent."""
        if self._lock is None:
            return
        self._lock.release()
        self._lock = None
        wait_until(lambda: not is_guarded(self._home) or is_shared(self._home), STOP_SECONDS)
        if self._launch is not None and not is_guarded(self._home):
            self._launch.process.wait()
            self._launch = None

    def __enter__(self) -> PrivateServers:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _servers(self) -> list[Server]:
        servers: list[Server] = []
        if self._postgres:
            servers.append(Postgres(self._home, durable=self._durable))
        if self._valkey:
            servers.append(Valkey(self._home, durable=self._durable))
        return servers

    def _start_servers(self, is_stopping: Callable[[], bool] = lambda: False) -> dict[str, int]:
        """Start the servers and return their ports, or none if a guardian runs or is starting."""
        guardian_lock = os.open(self._home.guardian_lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not try_lock(guardian_lock):
                return {}
            if self._launch is not None:
                self._launch.process.wait()
            self._home.part_from_original()
            servers = self._servers()
            servers_lock = take_over(self._home, servers)
            try:
                for server in servers:
                    server.prepare(servers_lock)
                return self._launch_servers(servers, guardian_lock, servers_lock, is_stopping)
            finally:
                os.close(servers_lock)  # the guardian and the servers hold copies
        finally:
            os.close(guardian_lock)  # the guardian holds a copy

    def _ports_of_running(self) -> dict[str, int]:
        """Return the ports of the running servers of this home's guardian, or none until all are ready."""
        kept = self._home.kept_ports()
        for server in self._servers():
            port, process = kept.get(server.name), server.main_process()
            if port is None or process is None or not server.is_ready(process.pid, port):
                return {}
        return kept

    def _launch_servers(
        self, servers: Sequence[Server], guardian_lock: int, servers_lock: int, is_stopping: Callable[[], bool]
    ) -> dict[str, int]:
        """Try a few times: another program may take a chosen port first, and Valkey's file may be damaged."""
        for attempt in range(1, _START_ATTEMPTS + 1):
            ports = self._choose_ports(servers)
            self._home.keep_ports(ports)
            launch = Launch(self._home, servers, ports, guardian_lock, servers_lock)
            try:
                launch.wait_until_ready(is_stopping)
            except StartFailed as failure:
                launch.give_up()
                if attempt == _START_ATTEMPTS or failure.timed_out:
                    raise EmbeddedServerError(
                        f"The private {failure.server.name} server did not start. {failure}\n",
                        "Fix the cause shown above. If its data is damaged, restore LETHE_HOME from a backup.",
                    ) from failure
                _logger.warning("the private %s server ended while starting; trying again", failure.server.name)
                if attempt == 2:  # the first failure may have been a port taken in between
                    failure.server.recover()
            except BaseException:
                launch.give_up()
                raise
            else:
                self._launch = launch
                return ports
        raise AssertionError("the last attempt returns or raises")

    def _choose_ports(self, servers: Sequence[Server]) -> dict[str, int]:
        """Return the stored ports; replace missing ones and, while nobody relies on them, occupied ones."""
        assert self._lock is not None
        kept, chosen = self._home.kept_ports(), dict[str, int]()
        for server in servers:
            port = kept.get(server.name)
            if port is not None and not _is_free(port):
                if not self._lock.alone:
                    raise EmbeddedServerError(
                        f"Port {port} on 127.0.0.1, where the private {server.name} server of {self._home.path} is "
                        "expected, is taken by another program.",
                        "End that program, or stop every part of this Lethe and start again: the port is then changed.",
                    )
                port = None
            chosen[server.name] = port or _free_port({*kept.values(), *chosen.values()})
        return chosen


def private_servers(settings: Settings) -> Embedded:
    """Return the servers that `settings` do not name."""
    return Embedded(settings.home, postgres=settings.database_url is None, valkey=settings.redis_url is None)


@contextlib.contextmanager
def open_servers(settings: Settings, embedded: Embedded | None = None, *, alone: bool = False) -> Iterator[Settings]:
    """Yield settings with both URLs until the end of the block, with private servers for those not set.

    Pass `embedded` to keep the servers running meanwhile. With `alone` nobody else may use this home. Raises the errors
    of `Embedded.start`, and ConfigurationError if a process's login is set without a database.
    """
    if settings.database_url is None and (settings.api_database_url or settings.unlearner_database_url):
        raise ConfigurationError(
            "LETHE_API_DATABASE_URL or LETHE_UNLEARNER_DATABASE_URL is set, and DATABASE_URL is not.",
            "Set DATABASE_URL to the same database with the login of the tables' owner; or set none of them, for a "
            "private server.",
        )
    if settings.database_url is not None and settings.redis_url is not None:
        yield settings
        return
    embedded = embedded or private_servers(settings)
    servers = embedded.start(alone=alone)
    try:
        yield with_private(settings, servers)
    finally:
        embedded.stop()


def with_private(settings: Settings, servers: PrivateServers) -> Settings:
    """Return `settings` with the URLs of private servers where they name none."""
    return settings.model_copy(
        update={name: url for name, url in vars(servers).items() if getattr(settings, name) is None}
    )


def running_servers(home: Path) -> PrivateServers | None:
    """Return the URLs of the servers that run in `home`, or None if none run there."""
    place = Home(home)
    return _urls(place, place.kept_ports()) if is_guarded(place) else None


def owns_database(settings: Settings) -> bool:
    """Return whether the database in `settings` is the private one of their LETHE_HOME."""
    running = running_servers(settings.home)
    own = () if running is None else (running.database_url, running.api_database_url, running.unlearner_database_url)
    return settings.database_url is not None and settings.database_url in own


def _enter(home: Home, alone: bool, deadline: float) -> HomeLock:
    """Take the lock of `home`, waiting for an ending guardian or for a process that starts the servers.

    A process that reserves the home keeps it: others are refused immediately.
    """
    while True:
        try:
            return HomeLock(home, share=not alone)
        except AlreadyRunning:
            if time.monotonic() > deadline or is_reserved(home) or (alone and is_shared(home)):
                raise
        time.sleep(_PAUSE_SECONDS)


def _urls(home: Home, ports: Mapping[str, int]) -> PrivateServers:
    valkey, postgres = ports.get(Valkey.name), ports.get(Postgres.name)
    redis = None if valkey is None else redis_url(home, valkey)
    if postgres is None:
        return PrivateServers(None, redis)
    return PrivateServers(
        database_url(home, postgres),
        redis,
        api_database_url=database_url(home, postgres, API),
        unlearner_database_url=database_url(home, postgres, UNLEARNER),
    )


def _free_port(taken: Collection[int]) -> int:
    """Return a random free port that is not in `taken`."""
    for port in secrets.SystemRandom().sample(_PORTS, len(_PORTS)):
        if port not in taken and _is_free(port):
            return port
    raise EmbeddedServerError(f"No port from {_PORTS[0]} to {_PORTS[-1]} is free.", "End programs that listen there.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
