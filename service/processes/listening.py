"""The surroundings of a server: its number, socket and signals, and its background activities."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import psutil
import structlog

from service.errors import ConfigurationError
from service.private_files import write_private
from service.processes.private_servers.home import try_lock


@contextlib.contextmanager
def own_number(home: Path, kind: str) -> Iterator[int]:
    """Reserve the lowest number, from 1, that no other `kind` of this home uses, until the end of the block."""
    tried = ((number, _taken(home, numbered(kind, number))) for number in count(1))
    number, descriptor = next((number, descriptor) for number, descriptor in tried if descriptor is not None)
    try:
        yield number
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def taken_if_free(home: Path, kind: str, number: int) -> Iterator[bool]:
    """Reserve a number until the end of the block; yields False if another process has it, in any container."""
    descriptor = _taken(home, numbered(kind, number))
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def numbered(word: str, number: int) -> str:
    """Number a name: `api`, `api2`, `api3` and so on."""
    return word if number == 1 else f"{word}{number}"


def _taken(home: Path, name: str) -> int | None:
    """Return a descriptor that locks a name until it is closed; None if another process holds the lock."""
    folder = home / "run"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


#: Seconds between two readiness checks.
_LOOK_S = 0.05


class Background:
    """Tasks that run until `stop` is set. A failure is reported immediately: no task may be missing."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self.stop = asyncio.Event()
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []
        self._log = structlog.stdlib.get_logger(__name__)

    def start(self, name: str, activity: Coroutine[Any, Any, None]) -> None:
        """Start `activity`."""
        task = asyncio.create_task(activity, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    async def close(self, grace_s: float) -> None:
        """Stop all tasks, wait `grace_s` seconds, then cancel the rest; all have ended on return."""
        self.stop.set()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=grace_s)
        for task in late:
            self._log.warning("background.cancelled", activity=task.get_name(), after_s=grace_s)
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log.error("background.failed", activity=task.get_name(), exc_info=error)
            self._on_failure(error)


async def announce(is_ready: Callable[[], Awaitable[bool]], on_ready: Callable[[], None], stop: asyncio.Event) -> None:
    """Call `on_ready` once, the first time `is_ready` is true; never after `stop` is set."""
    while not stop.is_set():
        if await is_ready() and not stop.is_set():
            on_ready()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK_S)


def notify_service_manager() -> None:
    """Report readiness to systemd if it started this process with `Type=notify` (`man sd_notify`)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            try:
                # `@` begins an abstract address.
                manager.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)
            except OSError as error:
                # The variable may be that of a service from which this process was started by hand.
                structlog.get_logger(__name__).warning("service_manager.unreachable", reason=error.strerror)


_BACKLOG = 2048


class ServerFacts(msgspec.Struct, frozen=True):
    """Facts that a running `serve` publishes at its `facts_path` while it answers requests."""

    pid: int
    url: str
    #: Folder of the served model.
    model: str
    started_at: datetime
    #: Ids of the processes it started, by name.
    pids: dict[str, int]


def was_there(process: psutil.Process, moment: float) -> bool:
    """Return whether a process started before a moment (seconds since 1970); otherwise its id was reused.

    Raises psutil's errors if it has ended.
    """
    return bool(process.create_time() <= moment + 1.0)


def resolved(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Return the first address of `host`, with its family. Raises ConfigurationError for an unknown name."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigurationError(
            f"There is no address {host!r} ({error.strerror}).", "Correct --host or LETHE_HOST."
        ) from None
    return family, address


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket and listen on it; port 0 takes a free one.

    Raises ConfigurationError if the port is in use or the address is not one of this machine.
    """
    remedy = "Choose another with --port or LETHE_PORT (0: any free port), or stop the program that uses it."
    family, address = resolved(host, port)
    try:
        # It listens now, not when the server is up, to find out immediately whether another process does.
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(f"Port {port} of {host} is in use.", remedy) from None
        reason = os.strerror(error.errno or 0)
        raise ConfigurationError(f"Lethe cannot listen on port {port} of {host} ({reason}).", remedy) from None


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Let SIGTERM and SIGINT end the block gracefully, leaving every `with` around and inside it.

    Yields a function that replaces the signals' effect. Call it with the server's own stop function before the server
    starts. Then no signal is lost before the server handles signals itself, and none counts as a second one after it
    stopped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda stop_server: None
        return
    serving: list[Callable[[], None]] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not serving:
            raise SystemExit(0)
        serving[-1]()

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield serving.append
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def facts_path(home: Path, number: int) -> Path:
    """Return the facts file of the `serve` with this number among those that answer requests in `home`."""
    return home / "run" / f"{numbered('server', number)}.json"


def facts_paths(home: Path) -> list[tuple[int, Path]]:
    """Return the numbers and paths of all facts files, including those of a killed `serve`."""
    paths = (home / "run").glob("server*.json")
    found = ((path.stem.removeprefix("server") or "1", path) for path in paths)
    return sorted((int(number), path) for number, path in found if number.isdecimal())


@contextlib.contextmanager
def facts_file(path: Path) -> Iterator[Callable[[ServerFacts], None]]:
    """Yield a function that replaces the facts in a file private to this user; the file is removed at the end."""
    try:
        yield lambda facts: write_private(path, msgspec.json.encode(facts).decode() + "\n")
    finally:
        path.unlink(missing_ok=True)
