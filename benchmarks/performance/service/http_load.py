"""A light load generator: HTTP/1.1 over kept-alive connections, in its own process.

It reads a plan from standard input and writes its results to standard output, both JSON. It supports only the HTTP of
uvicorn's answers: a status line and a `content-length`. Benchmarks run it through `Load`.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import uvloop

#: Seconds for pending answers after the end of a plan.
_GRACE_S = 120.0


@dataclass(frozen=True)
class Ask:
    """One request."""

    method: str
    path: str
    #: JSON, or "" for none.
    body: str = ""


@dataclass(frozen=True)
class Plan:
    """The requests to send. Without a rate, each connection sends the next request when one is answered; otherwise when
    due.
    """

    host: str
    port: int
    key: str
    connections: int
    asks: Sequence[Ask]
    #: Duration, with `asks` repeated; None sends each once.
    seconds: float | None = None
    #: Requests per second, even if earlier ones are unanswered; None: as fast as they are answered.
    rate: float | None = None
    #: Whether to keep the bodies of answers.
    keep: bool = False


@dataclass(frozen=True)
class Seen:
    """The results."""

    #: Answers by status.
    statuses: dict[str, int]
    #: Seconds from the first request to the last answer, and this process' processor time meanwhile.
    seconds: float
    processor_seconds: float
    #: Seconds from each request's due time to its answer, in the order of the answers.
    latencies: list[float]
    #: `time.monotonic()` of each due time, and the body if kept, in the same order.
    due: list[float]
    bodies: list[str]

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds

    @property
    def processor_share(self) -> float:
        """Processor seconds of the generator per second; near 1 it measures itself."""
        return self.processor_seconds / self.seconds

    def require(self, status: int) -> "Seen":
        """Return self. Raises SystemExit on any other status."""
        if set(self.statuses) - {str(status)}:
            raise SystemExit(f"Expected {status} alone, but the answers were {self.statuses}.")
        return self


class Load:
    """A running generator."""

    def __init__(self, plan: Plan) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.performance.service.http_load"],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(plan)))
        self._process.stdin.close()

    def seen(self) -> Seen:
        """Wait for its end."""
        assert self._process.stdout is not None
        text = self._process.stdout.read()
        if self._process.wait():
            raise SystemExit("The load generator failed; see above.")
        return Seen(**json.loads(text))


class _Connection(asyncio.Protocol):
    """Sends requests, and passes on each complete answer."""

    def __init__(self, generator: "_Generator") -> None:
        self._generator = generator
        self._transport: asyncio.Transport
        self._received = b""
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio; the server must not hang up before the plan is over."""
        self._generator.hung_up()

    def ask(self, raw: bytes, due: float) -> None:
        """Send a request that was due at `due`."""
        self._due = due
        self._transport.write(raw)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._received = data = self._received + data if self._received else data
        head = data.find(b"\r\n\r\n")
        if head < 0:
            return
        begin = data.lower().find(b"\r\ncontent-length:", 0, head + 2) + 17
        end = head + 4 + int(data[begin : data.find(b"\r\n", begin)])
        if len(data) >= end:
            self._received = b""
            self._generator.answered(self, data[9:12], data[head + 4 : end], self._due)


class _Generator:
    """Runs one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._raw = [_raw(plan, ask) for ask in plan.asks]
        self._next = 0
        self._waiting: deque[tuple[bytes, float]] = deque()
        #: Longest unused first, since uvicorn closes idle connections.
        self._free: deque[_Connection] = deque()
        self._broken = False
        self._open = 0
        self._feeding = True
        self._end = float("inf")
        self._over = asyncio.Event()
        self._statuses: Counter[bytes] = Counter()
        self._latencies: list[float] = []
        self._due: list[float] = []
        self._bodies: list[str] = []

    async def run(self) -> Seen:
        """Connect, send the requests and wait for the answers."""
        loop, plan = asyncio.get_running_loop(), self._plan
        for _ in range(plan.connections):
            _, connection = await loop.create_connection(lambda: _Connection(self), plan.host, plan.port)
            self._free.append(connection)
        started, processor = time.monotonic(), time.process_time()
        if plan.seconds is not None:
            self._end = started + plan.seconds
        if plan.rate is None:
            for connection in self._free:
                self._ask_next(connection)
        else:
            await self._feed(started, plan.rate)
        self._feeding = False
        if self._open:
            await asyncio.wait_for(self._over.wait(), (plan.seconds or 0.0) + _GRACE_S)
        if self._broken:
            raise SystemExit("The server closed a connection.")
        return Seen(
            statuses={status.decode(): count for status, count in self._statuses.items()},
            seconds=time.monotonic() - started,
            processor_seconds=time.process_time() - processor,
            latencies=self._latencies,
            due=self._due,
            bodies=self._bodies,
        )

    async def _feed(self, started: float, rate: float) -> None:
        """Send at a fixed rate. A request without a free connection waits, and the wait counts."""
        while (raw := self._take()) is not None:
            due = started + (self._next - 1) / rate
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            self._open += 1
            if self._free:
                self._free.popleft().ask(raw, due)
            else:
                self._waiting.append((raw, due))

    def _take(self) -> bytes | None:
        """Return the next request; None when the plan is over."""
        if time.monotonic() >= self._end or (self._plan.seconds is None and self._next >= len(self._raw)):
            return None
        raw = self._raw[self._next % len(self._raw)]
        self._next += 1
        return raw

    def _ask_next(self, connection: _Connection) -> None:
        raw = self._take()
        if raw is not None:
            self._open += 1
            connection.ask(raw, time.monotonic())

    def answered(self, connection: _Connection, status: bytes, body: bytes, due: float) -> None:
        """Record a complete answer."""
        self._latencies.append(time.monotonic() - due)
        self._due.append(due)
        self._statuses[status] += 1
        if self._plan.keep:
            self._bodies.append(body.decode())
        self._open -= 1
        if self._plan.rate is None:
            self._ask_next(connection)
        elif self._waiting:
            connection.ask(*self._waiting.popleft())
        else:
            self._free.append(connection)
        if not self._open and (self._plan.rate is None or not self._feeding):
            self._over.set()

    def hung_up(self) -> None:
        """Handle a lost connection."""
        if self._feeding or self._open:
            self._broken = True
            self._over.set()


def _raw(plan: Plan, ask: Ask) -> bytes:
    body = ask.body.encode()
    head = f"{ask.method} {ask.path} HTTP/1.1\r\nhost: {plan.host}:{plan.port}\r\nauthorization: Bearer {plan.key}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def main() -> None:
    """Run the plan on standard input."""
    given = json.load(sys.stdin)
    plan = Plan(**given | {"asks": [Ask(**ask) for ask in given["asks"]]})

    async def run() -> Seen:
        return await _Generator(plan).run()

    seen = asdict(uvloop.run(run()))
    # Always buffered, whatever PYTHONUNBUFFERED says: an unbuffered pipe loses what it does not accept in one write.
    with open(sys.stdout.fileno(), "w", closefd=False) as out:
        json.dump(seen, out)


if __name__ == "__main__":
    main()
