"""What the processes of a home say of themselves through sockets, and what Prometheus is shown of their metrics."""

import asyncio
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

#: Process id, user and group, as the kernel gives them.
_CREDENTIALS = struct.Struct("3i")


@asynccontextmanager
async def answering(path: Path, answer: Callable[[], Awaitable[bytes]]) -> AsyncIterator[None]:
    """Answer whoever connects to `path`, inside the block. What a dead process left there is replaced."""

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await answer())
            await writer.drain()
        except OSError:
            # Whoever asked has gone.
            return
        finally:
            writer.close()

    with _bound(path) as listening:
        server = await asyncio.start_unix_server(send, sock=listening)
        try:
            yield
        finally:
            server.close()


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """The answer of the process at `path`, to be read to its end, and the id of that process.

    The id is 0 if the process runs in another container. Raises OSError if none listens there.
    """
    with _reachable(path) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        asked = writer.get_extra_info("socket")
        pid, _, _ = _CREDENTIALS.unpack(asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        yield reader, pid
    finally:
        writer.close()


@contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as bound:
        with _reachable(path) as address:
            bound.bind(address)
        path.chmod(0o600)
        try:
            yield bound
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """An address for a socket: its path may have any length, an address has at most 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


#: Longest wait for a sibling: one that is stopped is left out (seconds).
_SIBLING_S = 1.0
_FAMILY = re.compile(r"^(?=# HELP )", re.MULTILINE)


class Exposition:
    """The metrics of a process, and of those that share a folder with it."""

    def __init__(self, registry: CollectorRegistry, process: str, folder: Path | None = None) -> None:
        """`process` is its name among its siblings, such as `api-0`; without a `folder` it has none."""
        self.registry = registry
        self._process = process
        self._folder = folder

    async def __call__(self) -> bytes:
        """In Prometheus' text format."""
        shown = await asyncio.gather(self._own(), *(_ask(path) for path in self._siblings()))
        return _merged(shown).encode()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Answer siblings inside the block. What a dead process of this name has left is replaced."""
        if self._folder is None:
            yield
            return
        async with answering(self._folder / f"{self._process}.sock", self._own):
            yield

    async def _own(self) -> bytes:
        # In a thread: hundreds of lines are some milliseconds, in which requests would wait.
        return await asyncio.to_thread(generate_latest, _Named(self.registry, self._process))

    def _siblings(self) -> list[Path]:
        if self._folder is None:
            return []
        return sorted(path for path in self._folder.glob("*.sock") if path.stem != self._process)


class _Named(Collector):
    """What a registry collects, with the name of its process."""

    def __init__(self, registry: CollectorRegistry, process: str) -> None:
        self._registry = registry
        self._process = process

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            named = Metric(family.name, family.documentation, family.type, family.unit)
            named.samples = [
                Sample(sample.name, sample.labels | {"process": self._process}, *sample[2:])
                for sample in family.samples
            ]
            yield named


async def _ask(path: Path) -> bytes:
    """What a sibling shows; nothing of one that is dead or does not answer."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_SIBLING_S), connected(path) as (answer, _):
            return await answer.read()
    return b""


def _merged(shown: Iterable[bytes]) -> str:
    """Each family once, with the samples of all."""
    families: dict[str, list[str]] = {}
    for page in shown:
        for family in _FAMILY.split(page.decode()):
            lines = family.splitlines()
            if not lines:
                continue
            families.setdefault("\n".join(lines[:2]), []).extend(lines[2:])
    return "".join("\n".join((head, *samples)) + "\n" for head, samples in families.items())
