"""Receivers of webhooks on this machine, which do what a test has them do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

#: What is done with a connection once its request was read.
Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Received:
    """One request, as it was sent."""

    head: str
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """Its fields, by names in small letters."""
        fields = (line.partition(":") for line in self.head.splitlines()[1:])
        return {name.strip().lower(): value.strip() for name, _, value in fields}

    @property
    def id(self) -> str:
        """The one that is the same at every attempt."""
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """A server of its own."""

    port: int
    behave: Behaviour
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        """What it was sent, in that order."""
        return [one.id for one in self.received]


def answering(head: str, body: str = "") -> Behaviour:
    """Answers a status line, with fields if it has any."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()

    return behave


async def hanging(writer: asyncio.StreamWriter) -> None:
    """Never answers."""
    await asyncio.Event().wait()


async def closing(writer: asyncio.StreamWriter) -> None:
    """Ends the connection without an answer."""


async def dripping(writer: asyncio.StreamWriter) -> None:
    """Begins an answer, and sends more of its head again and again without ever ending it."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: 1\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def flooding(writer: asyncio.StreamWriter) -> None:
    """Sends answers that are none, without end, as fast as it can."""
    while True:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 1000)
        await writer.drain()


async def endless(writer: asyncio.StreamWriter) -> None:
    """Takes what it was sent, with an answer whose body does not end."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"400\r\n" + bytes(1024) + b"\r\n")
        await writer.drain()


@asynccontextmanager
async def receiver(behave: Behaviour | None = None) -> AsyncIterator[Receiver]:
    """A receiver for the time of the block; by default it takes whatever it is sent."""
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
