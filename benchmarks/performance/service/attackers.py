"""Malicious clients, bounded in number and time, with a process for each attack.

They connect from 127.0.0.2, an address of this machine that no honest client uses here.

    python -m benchmarks.performance.service.attackers NAME PORT KEY SECONDS
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop

#: Their address.
ADDRESS = "127.0.0.2"
#: Seconds before reopening an ended connection. The server limits the harm; this limits floods.
_PAUSE_S = 1.0
_NUMBERS = 520_000

Attack = Callable[["Target"], Awaitable[None]]


@dataclass(frozen=True)
class Target:
    """The target of an attack."""

    port: int
    #: A valid key, for attacks that need one.
    key: str

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a new connection."""
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ADDRESS, 0))

    def post(self, path: str, length: int, key: str = "") -> bytes:
        """Return the head of a request with a body."""
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
        return f"{head}{authorization}\r\n".encode()


async def pipelining(target: Target) -> None:
    """Send requests continually and read no answer."""
    asks = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 2000
    _, writer = await target.open()
    try:
        for _ in range((10 << 20) // len(asks)):
            writer.write(asks)
            await writer.drain()
        await asyncio.Event().wait()
    finally:
        writer.transport.abort()


async def stalled_bodies(target: Target) -> None:
    """Send most of a body, without a key, and wait."""
    await _sent_and_waited(target, target.post("/deletions", 1 << 20) + b"x" * 1_000_000)


async def half_heads(target: Target) -> None:
    """Send half a head and wait."""
    await _sent_and_waited(target, b"GET / HTTP/1.1\r\nCookie: " + b"a" * 20_000)


async def idle(target: Target) -> None:
    """Send nothing."""
    await _sent_and_waited(target, b"")


async def _sent_and_waited(target: Target, data: bytes) -> None:
    reader, writer = await target.open()
    try:
        writer.write(data)
        await reader.read()
    finally:
        writer.transport.abort()


async def numbers(target: Target) -> None:
    """Send a list of numbers where ids are strings."""
    body = json.dumps({"nodes": [1] * _NUMBERS}, separators=(",", ":")).encode()
    reader, writer = await target.open()
    try:
        writer.write(target.post("/predict", len(body), target.key) + body)
        # The head of the answer marks the end of the work.
        await reader.read(1)
    finally:
        writer.transport.abort()


async def wrong_keys(target: Target) -> None:
    """Guess keys one by one."""
    reader, writer = await target.open()
    try:
        for number in range(1_000_000):
            head = f"GET /model HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer lethe_{number:043d}\r\n\r\n"
            writer.write(head.encode())
            await reader.readuntil(b"}")
    finally:
        writer.transport.abort()


#: Each attack, and its number of parallel connections.
ATTACKS: dict[str, tuple[Attack, int]] = {
    "pipelining without reading": (pipelining, 8),
    "stalled bodies": (stalled_bodies, 200),
    "half heads": (half_heads, 600),
    "idle connections": (idle, 600),
    "wrong keys": (wrong_keys, 8),
    "520,000 numbers": (numbers, 2),
}


def start(name: str, port: int, key: str, seconds: float) -> subprocess.Popen[bytes]:
    """Start an attack, which ends by itself."""
    command = [sys.executable, "-m", "benchmarks.performance.service.attackers", name, str(port), key, str(seconds)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[3])


async def _attacked(name: str, target: Target, seconds: float) -> None:
    once, connections = ATTACKS[name]

    async def again() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await once(target)
            await asyncio.sleep(_PAUSE_S)

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(again() for _ in range(connections)))


def main() -> None:
    """Run an attack."""
    name, port, key, seconds = sys.argv[1:]
    uvloop.run(_attacked(name, Target(int(port), key), float(seconds)))


if __name__ == "__main__":
    main()
