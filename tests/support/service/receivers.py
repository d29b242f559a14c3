"""Webhook receivers on this machine, with the behaviour that a test chooses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

#: Handles a connection after its request was read.
Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Received:
    """One request, as it was sent."""

    head: str
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """Its header fields, by lower-case name."""
        fields = (line.partition(":") for line in self.head.splitlines()[1:])
        return {name.strip().lower(): value.strip() for name, _, value in fields}

    @property
    def id(self) -> str:
        """The id that is the same at every attempt."""
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """A running receiver."""

    port: int
    behave: Behaviour
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        """The ids that it received, in order."""
        return [one.id for one in self.received]


def answering(head: str, body: str = "") -> Behaviour:
    """Answer with a status line, and with header fields if given."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()

    return behave


async def hanging(writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


async def closing(writer: asyncio.StreamWriter) -> None:
    """Close the connection without an answer."""


async def dripping(writer: asyncio.StreamWriter) -> None:
    """Start an answer, and send more of its head forever."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: 1\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def flooding(writer: asyncio.StreamWriter) -> None:
    """Send interim answers without end, as fast as possible."""
    while True:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)
        await writer.drain()


async def endless(writer: asyncio.StreamWriter) -> None:
    """Accept the request, with an endless response body."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"400\r\n" + bytes(1024) + b"\r\n")
        await writer.drain()


@asynccontextmanager
async def receiver(behave: Behaviour | None = None) -> AsyncIterator[Receiver]:
    """Yield a receiver for the block; by default it accepts everything."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = Received(head, b"").headers["content-length"]
            one.received.append(Received(head, await reader.readexactly(int(length))))
            await one.behave(writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    one = Receiver(server.sockets[0].getsockname()[1], behave or answering("204 No Content"))
    try:
        yield one
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
