"""Private Postgres and Valkey servers that live and die with this process."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from service.embedded.home import Home, HomeLock, Ports, holder
from service.embedded.launch import Launch, StartFailed
from service.embedded.orphans import Server, take_over
from service.embedded.postgres import API, UNLEARNER, Postgres, database_url
from service.embedded.valkey import Valkey, redis_url
from service.errors import AlreadyRunning, ConfigurationError, EmbeddedServerError
from service.settings import Settings

_START_ATTEMPTS = 4
_JOIN_SECONDS = 30.0
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class PrivateServers:
    """Where the private servers are reached, passwords included; None for a server that is not private."""

    database_url: str | None
    redis_url: str | None
    #: The same database, with the logins of single processes.
    api_database_url: str | None = None
    unlearner_database_url: str | None = None


class Embedded:
    """The private servers of one LETHE_HOME: `start`, use, `stop`; also a context manager.

    They stop with this process however it ends (see `guardian`), and are started again when they crash; with the
    guardian they stop as well, which `require_guardian` tells. A second
    `start` of the same object takes the same ports where they are free, so that the URLs stay valid.
    """

    def __init__(self, home: Path, *, postgres: bool = True, valkey: bool = True, durable: bool = True) -> None:
        """Choose the servers; `durable=False`, for tests alone, turns fsync off."""
        self._home = Home(home)
        self._postgres = postgres
        self._valkey = valkey
        self._durable = durable
        self._lock: HomeLock | None = None
        self._launch: Launch | None = None
        self._ports: dict[str, int] = {}

    def start(self) -> PrivateServers:
        """Start the servers and return their URLs once they serve.

        Raises AlreadyRunning when another process holds the home, EmbeddedServerError when a server does not start.
        """
        self._home.prepare()
        self._lock = HomeLock(self._home)
        try:
            self._home.forget_ports()
            servers = self._servers()
            descriptor = take_over(self._home, servers)
            try:
                for server in servers:
                    server.prepare(descriptor)
                self._launch_servers(servers, descriptor)
            finally:
                os.close(descriptor)  # the guardian and the servers hold copies
            ports = Ports(self._ports.get(Postgres.name), self._ports.get(Valkey.name))
            self._home.write_ports(ports)
        except BaseException:
            self.stop()
            raise
        return _urls(self._home, ports)

    def stop(self) -> None:
        """Stop the servers and let go of the home; harmless when nothing runs."""
        if self._lock is None:
            return
        self._home.forget_ports()
        self._stop_launch()
        self._lock.release()
        self._lock = None

    def require_guardian(self) -> None:
        """Raise EmbeddedServerError when servers were started here and their guardian has ended."""
        if self._launch is not None and self._launch.process.poll() is not None:
            raise EmbeddedServerError(
                "The process that looks after the private servers was ended, and they have ended with it.",
                "Start Lethe again; nothing that was accepted is lost.",
            )

    def __enter__(self) -> PrivateServers:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _servers(self) -> list[Server]:
        servers: list[Server] = []
        if self._postgres:
            servers.append(Postgres(self._home, durable=self._durable))
        if self._valkey:
            servers.append(Valkey(self._home, durable=self._durable))
        return servers

    def _launch_servers(self, servers: Sequence[Server], descriptor: int) -> None:
        """Try a few times: a port may be taken between choosing and using it, and Valkey's file be damaged."""
        for attempt in range(1, _START_ATTEMPTS + 1):
            ports = {server.name: self._ports.get(server.name) or _free_port() for server in servers}
            self._launch = Launch(self._home, servers, ports, descriptor)
            try:
                self._launch.wait_until_ready()
            except StartFailed as failure:
                self._stop_launch()
                self._ports = {}
                if attempt == _START_ATTEMPTS or failure.timed_out:
                    raise EmbeddedServerError(
                        f"The private {failure.server.name} server did not start. {failure}\n",
                        "Fix what it names. If its data is damaged, restore LETHE_HOME from a backup.",
                    ) from failure
                _logger.warning("the private %s server ended while starting; trying again", failure.server.name)
                if attempt == 2:  # the first failure may have been a port that was taken just then
                    failure.server.recover()
            else:
                self._ports = ports
                return

    def _stop_launch(self) -> None:
        if self._launch is not None:
            self._launch.stop()
            self._launch = None


def private_servers(settings: Settings) -> Embedded:
    """The servers that `settings` do not name."""
    return Embedded(settings.home, postgres=settings.database_url is None, valkey=settings.redis_url is None)


@contextlib.contextmanager
def open_servers(settings: Settings, embedded: Embedded | None = None, *, share: bool = False) -> Iterator[Settings]:
    """Give settings with both URLs, starting private servers for those not set, until the end of the block.

    They are `embedded`, for whoever looks after them meanwhile. With `share`, servers that another process of this home
    runs are used instead of raising AlreadyRunning: what every command but `serve` wants. Raises ConfigurationError
    where a process' login is named and no database.
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
    try:
        servers = _start_or_join(embedded, settings.home) if share else embedded.start()
        database, redis = settings.database_url or servers.database_url, settings.redis_url or servers.redis_url
        if database is None or redis is None:
            raise EmbeddedServerError(
                f"The Lethe that runs in {settings.home} uses a server of its operator's.",
                f"Set {'DATABASE_URL' if database is None else 'REDIS_URL'} here as it is set there.",
            )
        yield settings.with_servers(
            database_url=database,
            redis_url=redis,
            api_database_url=settings.api_database_url or servers.api_database_url,
            unlearner_database_url=settings.unlearner_database_url or servers.unlearner_database_url,
        )
    finally:
        embedded.stop()


def running_servers(home: Path) -> PrivateServers | None:
    """Return where the servers that another process runs in `home` are reached, or None while it does not say."""
    place = Home(home)
    pid = holder(place)
    ports = None if pid is None else place.read_ports(pid)
    return None if ports is None else _urls(place, ports)


def owns_database(settings: Settings) -> bool:
    """Whether the database that settings name, to whichever process, is the private one in their LETHE_HOME."""
    running = running_servers(settings.home)
    own = () if running is None else (running.database_url, running.api_database_url, running.unlearner_database_url)
    return settings.database_url is not None and settings.database_url in own


def _start_or_join(embedded: Embedded, home: Path) -> PrivateServers:
    deadline = time.monotonic() + _JOIN_SECONDS
    while True:
        try:
            return embedded.start()
        except AlreadyRunning:
            servers = running_servers(home)
            if servers is not None:
                return servers
            if time.monotonic() > deadline:  # it neither ends nor gets ready
                raise
        time.sleep(0.05)


def _urls(home: Home, ports: Ports) -> PrivateServers:
    valkey = None if ports.valkey is None else redis_url(home, ports.valkey)
    if ports.postgres is None:
        return PrivateServers(None, valkey)
    return PrivateServers(
        database_url(home, ports.postgres),
        valkey,
        api_database_url=database_url(home, ports.postgres, API),
        unlearner_database_url=database_url(home, ports.postgres, UNLEARNER),
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
