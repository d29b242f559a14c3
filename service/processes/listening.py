"""The process around the server: its socket, its signals and what it tells other processes of itself."""

import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import FrameType

import msgspec
import psutil

from service.errors import ConfigurationError
from service.private_files import write_private
from service.processes.numbers import numbered

_BACKLOG = 2048


class ServerFacts(msgspec.Struct, frozen=True):
    """What a running `serve` that answers requests says of itself, at its `facts_path`."""

    pid: int
    url: str
    #: The folder of the model that it serves.
    model: str
    started_at: datetime
    #: Of the processes that it has started, by their names.
    pids: dict[str, int]


def was_there(process: psutil.Process, moment: float) -> bool:
    """Whether a process was started before a moment (seconds since 1970); else its id was another's then.

    Raises psutil's errors, when it has ended.
    """
    return bool(process.create_time() <= moment + 1.0)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, not yet listening; port 0 takes a free one.

    Raises ConfigurationError when the port is in use or the address is not one of this machine.
    """
    remedy = "Choose another with --port or LETHE_PORT (0: any free port), or stop the program that uses it."
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigurationError(
            f"There is no address {host!r} ({error.strerror}).", "Correct --host or LETHE_HOST."
        ) from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # Listening now, and not when the server is up, shows at once whether another process does.
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError(f"Port {port} of {host} is in use.", remedy) from None
        raise ConfigurationError(f"Lethe cannot listen on port {port} of {host} ({error.strerror}).", remedy) from None
    return bound


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Let SIGTERM and SIGINT end the block in order: every `with` around and inside it is left.

    Yields a function that takes over what a signal does from then on: called with the server's own way to stop, before
    the server starts, so that a signal is neither lost before the server handles signals itself nor taken for a second
    one after it has stopped.
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
    """Where the facts are of the `serve` with this number among those that answer requests in `home`."""
    return home / "run" / f"{numbered('server', number)}.json"


def facts_paths(home: Path) -> list[tuple[int, Path]]:
    """The numbers and paths of all facts, also of those of a `serve` that was killed."""
    paths = (home / "run").glob("server*.json")
    found = ((path.stem.removeprefix("server") or "1", path) for path in paths)
    return sorted((int(number), path) for number, path in found if number.isdecimal())


@contextlib.contextmanager
def facts_file(path: Path) -> Iterator[Callable[[ServerFacts], None]]:
    """Yield a function that replaces the facts in a file only this user can read; it goes with the end of the block."""
    try:
        yield lambda facts: write_private(path, msgspec.json.encode(facts).decode() + "\n")
    finally:
        path.unlink(missing_ok=True)
