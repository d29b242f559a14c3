"""uvicorn's HTTP/1.1 protocol, with limits on what a connection may send, hold and leave unread.

uvicorn over httptools parses all input and continues reading while responses wait. It has no deadlines for heads or
bodies, and no limits on heads or connections. `docs/adr/0001-uvicorn-with-a-protocol-of-ours.md` explains why we keep
it.
"""

import asyncio
import socket
import struct
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.web.connections import SWEEP_S, Connections, Network, most_connections
from service.web.middleware import SECURITY_HEADERS
from service.web.problems import problem

#: Maximum bytes of a request's head, chunk line or trailers.
MAX_HEAD_BYTES = 32 * 1024
#: Maximum header fields per request; each takes many times its size in memory.
MAX_FIELDS = 100
#: Maximum seconds to wait for a head, from its first byte or from when one could have come.
HEAD_S = 10.0
#: Maximum seconds to wait for a body; each `BODY_RATE` bytes of it add one second.
BODY_S = 10.0
BODY_RATE = 32 * 1024
#: Maximum seconds that a client may read nothing of a full response buffer, or of a last response.
UNREAD_S = 60.0
#: Bytes still read of a body whose response was sent early, so that its sender sees the response.
MAX_IGNORED_BYTES = 2 * 1024 * 1024

#: Extension of a request's scope: a function that cuts the connection without sending what is buffered.
ABORT = "lethe.abort"

#: Bytes parsed at a time; limits how many pipelined requests wait at once.
_PIECE = 1024
#: The same within a body of known length; no request follows before its end.
_PIECE_OF_BODY = 64 * 1024

_REFUSALS: dict[int, tuple[str, str, str, str]] = {
    400: (
        "malformed-request",
        "Malformed request",
        "This is not an HTTP/1.1 request.",
        "Send HTTP/1.1. For https, put a proxy that terminates TLS in front.",
    ),
    408: (
        "too-slow",
        "Request timeout",
        "The request did not arrive in time.",
        f"Send a head within {HEAD_S:.0f} s, and a body at {BODY_RATE // 1024} KiB/s or more.",
    ),
    431: (
        "head-too-large",
        "Head too large",
        f"The head of the request is larger than {MAX_HEAD_BYTES} bytes, or has more than {MAX_FIELDS} fields.",
        "Send fewer or shorter header fields, and ids in a body.",
    ),
    503: (
        "too-many-connections",
        "Too many connections",
        "Too many connections are open, in total or from your address.",
        "Reuse connections, and try again.",
    ),
}


@cache
def _refusal(status: int) -> bytes:
    """Return a complete response, after which the connection is closed."""
    retry = {"Retry-After": "1"} if status == 503 else {}
    answer = problem(status, *_REFUSALS[status], headers=retry | {"Connection": "close"})
    head = b"".join(name + b": " + value + b"\r\n" for name, value in (*answer.raw_headers, *SECURITY_HEADERS))
    return STATUS_LINE[status] + head + b"\r\n" + bytes(answer.body)


class Connection(HttpToolsProtocol):
    """One connection: parses a piece at a time, and nothing while a response waits."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        """`given` are uvicorn's arguments."""
        super().__init__(**given)
        #: Connections with the same origin share a limit; see `Connections`.
        self.origin = ""
        self._connections = connections
        self._unparsed = memoryview(b"")
        #: Set when nothing more is parsed.
        self._over = False
        #: Whether between a request's first byte and its last, and between the end of its head and its last byte.
        self._in_message = self._in_body = False
        #: Remaining bytes of a body of known length.
        self._body_left = 0
        #: Whether the client allows the connection to stay open after the request.
        self._stays = True
        #: Bytes so far of the head, chunk line or trailers, and of a body that nobody will read.
        self._head_bytes = self._ignored_bytes = 0
        self._deadline = float("inf")
        #: Last time that the client was seen reading responses, and the bytes left unread then.
        self._unread_since = float("inf")
        self._unread_bytes = 0
        #: The request being answered.
        self._at_work: RequestResponseCycle | None = None
        #: Whether the next response is the last.
        self._draining = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by asyncio."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self._deadline = self.loop.time() + HEAD_S
        if not self._connections.admit(self, self.client[0] if self.client else ""):
            self._over = True
            transport.write(_refusal(503))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._over = True
        self._unparsed = memoryview(b"")
        self._connections.leave(self)
        if self._at_work is not None:
            # uvicorn informs only the latest request.
            self._at_work.disconnected = True
            self._at_work.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        if not self._over:
            self._unparsed = memoryview(bytes(self._unparsed) + data if self._unparsed else data)
            self.parse()

    def parse(self) -> None:
        """Parse received input, up to the point where a response, or the application, must come first."""
        if self._unparsed:
            self._unset_keepalive_if_required()
        while self._unparsed and not self._must_wait():
            size = max(_PIECE, min(self._body_left, _PIECE_OF_BODY)) if self._in_body else _PIECE
            piece, self._unparsed = self._unparsed[:size], self._unparsed[size:]
            self._head_bytes += len(piece)
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                # We support only HTTP/1.1, so the rest is HTTP/1.1 too.
                rest = bytes(piece[upgrade.args[0] :])
                self._unparsed = memoryview(rest + bytes(self._unparsed))
            except httptools.HttpParserError:
                is_large = self.headers is not None and len(self.headers) > MAX_FIELDS
                self._connections.count("too_large" if is_large else "malformed")
                self._refuse(431 if is_large else 400)
            else:
                if self._head_bytes > MAX_HEAD_BYTES:
                    self._connections.count("too_large")
                    self._refuse(431)
        if self._unparsed:
            self.flow.pause_reading()
        elif not self._over:
            FlowControl.resume_reading(self.flow)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        super().on_message_begin()
        self._in_message, self._in_body = True, False
        self._body_left = 0
        self._deadline = self.loop.time() + HEAD_S

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser. Trailers are not header fields (RFC 9110, 6.5.1)."""
        if self._in_body:
            return
        super().on_header(name, value)
        if len(self.headers) > MAX_FIELDS:
            # Ends parsing with an error.
            raise ValueError("too many fields")
        if name.lower() == b"content-length":
            self._body_left = int(value)

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        super().on_headers_complete()
        self._in_body = True
        self._head_bytes = self._ignored_bytes = 0
        self._deadline = self.loop.time() + BODY_S
        # Closing before the body has arrived would reset the connection and lose the response.
        self._stays, self.cycle.keep_alive = self.cycle.keep_alive, True
        self._connections.mark_busy(self)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        super().on_body(body)
        self._head_bytes = 0
        self._body_left -= len(body)
        if not self.cycle.response_complete:
            self._deadline += len(body) / BODY_RATE
            return
        self._ignored_bytes += len(body)
        if self._ignored_bytes > MAX_IGNORED_BYTES:
            self._end()

    def on_chunk_header(self) -> None:
        """Called by the parser."""
        self._head_bytes = 0

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self._in_message = self._in_body = False
        self._head_bytes = 0
        self._deadline = self.loop.time() + HEAD_S
        self.cycle.keep_alive = self.cycle.keep_alive and self._stays
        if self._draining and not self.cycle.response_started:
            self.cycle.keep_alive = False
        super().on_message_complete()
        if self.cycle.response_complete and not self._stays:
            self._end()

    def on_response_complete(self) -> None:
        """Called when a response has been written."""
        super().on_response_complete()
        self._deadline = self.loop.time() + HEAD_S
        self._count_unread()
        if self.cycle.response_complete:
            self._connections.mark_idle(self)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._at_work = cycle
        cast(dict[str, Any], cycle.scope)["extensions"] = {ABORT: self._cut}
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(cycle, app)
        super()._start_asgi_task(cycle, app)

    def _cut(self) -> None:
        """Reset the connection: a mere close would look like the end of an HTTP/1.0 answer."""
        used = self.transport.get_extra_info("socket")
        if used is not None:
            used.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def drain(self) -> None:
        """Announce in the next response that it is the last. Idempotent.

        An idle connection stays open for its usual time. Closing it now could cross with a request, and lose it.
        """
        self._draining = True
        if self.cycle is not None and not self.cycle.more_body and not self.cycle.response_started:
            self.cycle.keep_alive = False

    def pause_writing(self) -> None:
        """Called by asyncio when the client leaves a buffer of responses unread."""
        self._count_unread()
        super().pause_writing()

    def look(self, now: float) -> None:
        """Close the connection if its client has been too slow."""
        unread = self.transport.get_write_buffer_size()
        if unread < self._unread_bytes:
            self._unread_since = now
        self._unread_bytes = unread
        # Unread data keeps a closing connection open.
        if self.transport.is_closing() or self.flow.write_paused:
            if now - self._unread_since > UNREAD_S:
                self._connections.count("unread")
                self.transport.abort()
        elif self.flow.read_paused or self._answers():
            # The client is the one that waits.
            self._deadline += SWEEP_S
        elif now > self._deadline:
            self._deadline = now + HEAD_S
            if not self._in_message or (self._in_body and self.cycle.response_complete):
                self._end()
            else:
                self._connections.count("too_slow")
                self._refuse(408)

    def _answers(self) -> bool:
        """Return whether the whole request has arrived, but its response is not complete."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _must_wait(self) -> bool:
        if self._over or self.transport.is_closing() or self._answers():
            return True
        return self.cycle is not None and not self.cycle.response_complete and len(self.cycle.body) > HIGH_WATER_LIMIT

    def _refuse(self, status: int) -> None:
        """Close the connection, with a reason unless it could be mistaken for another request's response."""
        if self._answers():
            self._over = True
            self._unparsed = memoryview(b"")
            self.flow.pause_reading()
            self.cycle.keep_alive = False
        elif self._in_body and (self.pipeline or self.cycle.response_started):
            self._over = True
            self.transport.abort()
        else:
            self.transport.write(_refusal(status))
            self._end()

    def _count_unread(self) -> None:
        self._unread_since = self.loop.time()
        self._unread_bytes = self.transport.get_write_buffer_size()

    def _end(self) -> None:
        self._over = True
        self._count_unread()
        self._unparsed = memoryview(b"")
        self.transport.close()


def _without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """Return `app` without chunked encoding: a response without a length ends with the connection."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def send_plain(message: Any) -> None:
            if message["type"] == "http.response.start":
                cycle.chunked_encoding = False
            else:
                # Otherwise uvicorn reports a response longer than declared.
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer


class _Flow(FlowControl):
    """Resumes reading only when all input has been parsed."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        """Control the flow of `connection`."""
        super().__init__(transport)
        self._connection = connection

    def resume_reading(self) -> None:
        """Called by uvicorn when there is room for more; its own state is not final yet, so parse later."""
        if self.read_paused:
            self._connection.loop.call_soon(self._connection.parse)


def protocol(proxies: Sequence[Network] = ()) -> type[asyncio.Protocol]:
    """Return the factory of uvicorn's connections in one process; `proxies` are exempt from the per-address limit."""
    most = most_connections()
    return cast(type[asyncio.Protocol], partial(Connection, Connections(most, most // 4, proxies)))
