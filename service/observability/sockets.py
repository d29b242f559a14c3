"""Path-based sockets, over which processes that share a home report to each other, also across containers.

A client that connects may send a question, and receives one response, then the end. A full disk does not affect an
existing socket.
"""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

#: Process id, user and group, in the kernel's format.
_CREDENTIALS = struct.Struct("3i")


@asynccontextmanager
async def answering(path: Path, answer: Callable[[asyncio.StreamReader], Awaitable[bytes]]) -> AsyncIterator[None]:
    """Answer clients that connect to `path`, inside the block. A dead process's socket is replaced.

    `answer` may read the question, which ends with the stream.
    """

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await answer(reader))
            await writer.drain()
        except OSError:
            # The client has gone.
            return
        finally:
            writer.close()

    with bound_at(path) as listening:
        server = await asyncio.start_unix_server(send, sock=listening)
        try:
            yield
        finally:
            server.close()


@asynccontextmanager
async def connected(path: Path, question: bytes = b"") -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """Yield the response of the process at `path`, which the caller reads to its end, and that process's id.

    Sends `question` first, unless it is empty. The id is 0 if the process runs in another container. Raises OSError if
    no process listens there.
    """
    with reachable(path) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        asked = writer.get_extra_info("socket")
        pid, _, _ = _CREDENTIALS.unpack(asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if question:
            writer.write(question)
            writer.write_eof()
        yield reader, pid
    finally:
        writer.close()


@contextmanager
def bound_at(path: Path) -> Iterator[socket.socket]:
    """Yield a socket bound to `path`, private to this user, in place of a dead process's."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as bound:
        with reachable(path) as address:
            bound.bind(address)
        path.chmod(0o600)
        try:
            yield bound
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Yield an address for a socket: its path may have any length, but an address has at most 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
