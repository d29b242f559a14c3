"""Limits on one client's use of a connection, and on many clients' use of all."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from service.processes.api_process import server_config
from service.web import protocol
from service.web.connections import Connections
from service.web.protocol import Connection

GET = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST /0 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.1 (\d+)")

Application = Callable[["Site", Scope, Receive, Send], Awaitable[None]]


async def answered(send: Send, status: int, body: bytes = b"") -> None:
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


async def read_and_answer(site: "Site", scope: Scope, receive: Receive, send: Send) -> None:
    """Read the whole body, and answer with the path once the gate is open."""
    while True:
        message: Message = await receive()
        site.received.append(message)
        if message["type"] != "http.request" or not message["more_body"]:
            break
    await site.gate.wait()
    await answered(send, 200, scope["path"].encode())


async def refuse_unread(site: "Site", scope: Scope, receive: Receive, send: Send) -> None:
    await answered(send, 401, b"no")


async def answer_at_length(site: "Site", scope: Scope, receive: Receive, send: Send) -> None:
    await answered(send, 200, b"x" * (16 << 20))


async def answer_in_parts(site: "Site", scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without a length."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for part in (b"one ", b"", b"two"):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def wait_for_the_end(site: "Site", scope: Scope, receive: Receive, send: Send) -> None:
    while True:
        site.received.append(await receive())
        if site.received[-1]["type"] == "http.disconnect":
            return


@dataclass
class Site:
    """A server on a port of this machine, in this event loop."""

    connections: Connections
    port: int = 0
    made: list[Connection] = field(default_factory=list)
    clients: list["Client"] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def client(self, address: str = "127.0.0.1") -> "Client":
        before = len(self.made)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        await until(lambda: len(self.made) > before and self.made[-1].transport is not None)
        self.clients.append(Client(reader, writer, self.made[-1]))
        return self.clients[-1]

    def later(self, seconds: float) -> None:
        """Check the deadlines as if this time had passed."""
        now = asyncio.get_running_loop().time() + seconds
        for connection in self.made:
            if not connection.transport.is_closing():
                connection.look(now)


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    #: The server's side.
    server: Connection

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answers(self, count: int) -> list[tuple[int, bytes]]:
        """Return the next answers, with their bodies."""
        found = []
        for _ in range(count):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            status = STATUS.match(head)
            assert length is not None
            assert status is not None
            found.append((int(status[1]), await self.reader.readexactly(int(length[1]))))
        return found

    async def rest(self) -> bytes:
        """Return everything up to the end, which the server makes."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    application: Application = read_and_answer,
    *,
    most: int = 100,
    most_of_one: int = 100,
    proxies: tuple[str, ...] = (),
) -> AsyncIterator[Site]:
    site = Site(Connections(most, most_of_one, [ip_network(one) for one in proxies]))
    site.gate.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        site.scopes.append(scope)
        await application(site, scope, receive, send)

    config = uvicorn.Config(app, ws="none", log_config=None, access_log=False, lifespan="off")
    config.load()
    state = ServerState()

    def made() -> Connection:
        site.made.append(Connection(site.connections, config=config, server_state=state, app_state={}))
        return site.made[-1]

    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        server.close()
        for client in site.clients:
            client.writer.transport.abort()
        for connection in site.made:
            if connection.parser is not None:
                connection.transport.abort()
        await until(lambda: all(connection.parser is None for connection in site.made))
        for task in tuple(state.tasks):
            task.cancel()
        await asyncio.gather(*state.tasks, return_exceptions=True)


@pytest.mark.parametrize("application", [answer_in_parts, refuse_unread])
@pytest.mark.parametrize("field", [b"", b"Connection: keep-alive\r\n", b"Host: a\r\n"])
async def test_an_answer_to_http_1_0_has_no_chunks_and_ends_with_the_connection(
    application: Application, field: bytes
) -> None:
    async with serving(application) as site:
        client = await site.client()
        await client.send(b"GET / HTTP/1.0\r\n" + field + b"\r\n")
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert body == (b"one two" if application is answer_in_parts else b"no")


async def test_an_answer_to_head_has_no_body_and_the_next_request_is_answered() -> None:
    for application in (answer_in_parts, refuse_unread):
        async with serving(application) as site:
            client = await site.client()
            await client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
            for _ in range(2):
                head = await client.reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 ")
                assert b"chunked" not in head


async def test_what_is_pipelined_waits_unread_and_is_answered_in_order() -> None:
    async with serving() as site:
        site.gate.clear()
        client = await site.client()
        count = 1_000
        sending = asyncio.create_task(client.send(b"".join(GET % number for number in range(count))))
        await until(lambda: client.server.flow.read_paused and bool(site.scopes))
        # As many as fit into one piece have arrived, and one is in progress; the others wait at the sender.
        assert len(site.scopes) == 1
        assert len(client.server.pipeline) <= protocol._PIECE // len(GET)
        site.gate.set()
        found = await client.answers(count)
        await sending
    assert found == [(200, f"/{number}".encode()) for number in range(count)]


async def test_the_request_at_work_learns_that_its_client_has_gone_whatever_was_pipelined_behind_it() -> None:
    async with serving(wait_for_the_end) as site:
        client = await site.client()
        await client.send(GET % 0 + GET % 1)
        await until(lambda: len(site.received) == 1 and len(client.server.pipeline) == 1)
        client.writer.transport.abort()
        await until(lambda: site.received[-1]["type"] == "http.disconnect")
        assert len(site.scopes) == 1


async def test_bodies_that_are_pipelined_reach_their_requests() -> None:
    bodies = [bytes([65 + number % 26]) * (number * 997 % 200_000) for number in range(40)]
    async with serving() as site:
        client = await site.client()
        sending = asyncio.create_task(
            client.send(b"".join(POST % (number, len(body)) + body for number, body in enumerate(bodies)))
        )
        assert [body for _, body in await client.answers(len(bodies))] == [f"/{n}".encode() for n in range(len(bodies))]
        await sending
        assert b"".join(message["body"] for message in site.received) == b"".join(bodies)


async def test_a_head_that_does_not_come_in_time_is_408() -> None:
    async with serving() as site:
        client = await site.client()
        await client.send(b"GET / HTTP/1.1\r\nHost:")
        await until(lambda: client.server._in_message)
        site.later(protocol.HEAD_S - 1)
        assert not client.server.transport.is_closing()
        site.later(protocol.HEAD_S + 1)
        said = await client.rest()
    assert said.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in said
    assert b'"remedy"' in said


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    async with serving() as site:
        new, used = await site.client(), await site.client()
        await used.send(GET % 0)
        await used.answers(1)
        site.later(protocol.HEAD_S + 1)
        assert (await new.rest(), await used.rest()) == (b"", b"")


async def test_a_connection_that_drains_answers_once_more_and_says_that_this_was_the_last() -> None:
    async with serving() as site:
        idle, used, busy, sending = [await site.client() for _ in range(4)]
        await used.send(GET % 0)
        await used.answers(1)
        site.gate.clear()
        await busy.send(GET % 2)
        await sending.send(POST % (3, 4) + b"ha")
        await until(lambda: len(site.received) == 3)
        for connection in site.made:
            connection.drain()
        site.gate.set()
        await sending.send(b"lf")
        for number, client in enumerate((idle, used)):
            assert not client.server.transport.is_closing()
            await client.send(GET % number)
        for number, client in enumerate((idle, used, busy, sending)):
            head, _, body = (await client.rest()).partition(b"\r\n\r\n")
            assert (STATUS.match(head) is not None, body) == (True, b"/%d" % number)
            assert b"connection: close" in head


async def test_a_body_that_stalls_is_408_and_its_request_is_given_up() -> None:
    async with serving() as site:
        client = await site.client()
        await client.send(POST % (0, 100) + b"x" * 10)
        await until(lambda: bool(site.received))
        site.later(protocol.BODY_S + 1)
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        await until(lambda: site.received[-1]["type"] == "http.disconnect")


async def test_a_body_that_goes_on_coming_gets_the_time_that_its_length_needs() -> None:
    async with serving() as site:
        client = await site.client()
        await client.send(POST % (0, 1 << 20) + b"x" * (1 << 19))
        await until(lambda: sum(len(message["body"]) for message in site.received) == 1 << 19)
        site.later(protocol.BODY_S + (1 << 19) / protocol.BODY_RATE - 1)
        await client.send(b"x" * (1 << 19))
        assert await client.answers(1) == [(200, b"/0")]


async def test_no_time_is_counted_while_it_is_the_client_that_waits() -> None:
    async with serving() as site:
        site.gate.clear()
        client = await site.client()
        await client.send(GET % 0 + b"GET /1 HT")
        await until(lambda: bool(site.received))
        site.later(protocol.HEAD_S + protocol.BODY_S + 100)
        site.gate.set()
        assert await client.answers(1) == [(200, b"/0")]
        await client.send(b"TP/1.1\r\nHost: a\r\n\r\n")
        assert await client.answers(1) == [(200, b"/1")]


async def test_answers_that_nobody_reads_end_the_connection() -> None:
    async with serving(answer_at_length) as site:
        client = await site.client()
        await client.send(GET % 0)
        await until(lambda: client.server.flow.write_paused)
        site.later(protocol.UNREAD_S - 1)
        assert not client.server.transport.is_closing()
        site.later(protocol.UNREAD_S + 1)
        await until(lambda: client.server.parser is None)


@pytest.mark.parametrize("field", [b"", b"Connection: close\r\n"], ids=["stays", "is closed"])
async def test_a_long_answer_arrives_whole_however_slowly_it_is_read(field: bytes) -> None:
    async with serving(answer_at_length) as site:
        client = await site.client()
        await client.send((GET % 0).replace(b"\r\n\r\n", b"\r\n" + field + b"\r\n"))
        await until(lambda: client.server.flow.write_paused)
        now, read, transport = asyncio.get_running_loop().time(), 0, client.server.transport
        while before := transport.get_write_buffer_size():
            while transport.get_write_buffer_size() == before:
                read += len(await client.reader.read(1 << 16))
            now += protocol.UNREAD_S - 1
            client.server.look(now)
        while read < 16 << 20:
            more = await client.reader.read(1 << 16)
            assert more
            read += len(more)


@pytest.mark.parametrize(("fields", "status"), [(protocol.MAX_FIELDS, 200), (protocol.MAX_FIELDS + 1, 431)])
async def test_the_fields_of_a_head_are_counted(fields: int, status: int) -> None:
    async with serving() as site:
        client = await site.client()
        await client.send(b"GET /0 HTTP/1.1\r\n" + b"a: b\r\n" * fields + b"\r\n")
        assert [found for found, _ in await client.answers(1)] == [status]
        assert len(site.scopes) == (status == 200)


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nCookie: " + b"a" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
        b"\r\n" * 50_000,
    ],
    ids=["target", "field", "fields", "empty lines"],
)
async def test_an_endless_head_is_431(endless: bytes) -> None:
    async with serving() as site:
        client = await site.client()
        await client.send(endless)
        said = await client.rest()
        assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
        assert not site.scopes
        assert client.server._over


@pytest.mark.parametrize("endless", [b"1;" + b"a" * 100_000, b"0\r\nT: " + b"a" * 100_000], ids=["chunk", "trailers"])
async def test_what_frames_a_body_has_an_end_too(endless: bytes) -> None:
    async with serving() as site:
        client = await site.client()
        await client.send(CHUNKED + endless)
        await client.rest()
        await until(lambda: client.server.parser is None)


@pytest.mark.parametrize("field", [b"", b"Connection: close\r\n"])
async def test_who_is_refused_before_its_body_was_read_sees_the_refusal(field: bytes) -> None:
    async with serving(refuse_unread) as site:
        client = await site.client()
        await client.send((POST % (0, 1_000_000)).replace(b"\r\n\r\n", b"\r\n" + field + b"\r\n") + b"x" * 500_000)
        assert await client.answers(1) == [(401, b"no")]
        await client.send(b"x" * 500_000)
        if field:
            assert await client.rest() == b""
        else:
            await client.send(GET % 1)
            assert await client.answers(1) == [(401, b"no")]


async def test_of_too_many_the_one_that_waits_longest_makes_room() -> None:
    async with serving(most=3) as site:
        site.gate.clear()
        busy = await site.client()
        await busy.send(GET % 0)
        await until(lambda: bool(site.scopes))
        oldest, newer = await site.client(), await site.client()
        last = await site.client()
        assert await oldest.rest() == b""
        await last.send(GET % 1)
        await newer.send(GET % 2)
        await until(lambda: len(site.scopes) == 3)
        refused = await site.client()
        said = await refused.rest()
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in said.lower()
        site.gate.set()
        assert [await one.answers(1) for one in (busy, last, newer)] == [[(200, b"/%d" % n)] for n in range(3)]
        # Once answered, each waits again, and makes room again.
        again = await site.client()
        await again.send(GET % 4)
        assert await again.answers(1) == [(200, b"/4")]


@pytest.mark.parametrize(("proxies", "served"), [((), False), (("127.0.0.0/8",), True)])
async def test_one_address_has_a_share_that_a_trusted_proxy_may_exceed(proxies: tuple[str, ...], served: bool) -> None:
    async with serving(most=10, most_of_one=2, proxies=proxies) as site:
        site.gate.clear()
        for _ in range(2):
            await (await site.client()).send(GET % 0)
        await until(lambda: len(site.scopes) == 2)
        third = await site.client()
        if served:
            await third.send(GET % 0)
            await until(lambda: len(site.scopes) == 3)
        else:
            assert (await third.rest()).startswith(b"HTTP/1.1 503 ")


def test_an_address_of_ipv6_is_counted_with_its_network() -> None:
    connections = Connections(1, 1, [ip_network("10.0.0.0/8"), ip_network("fd00::/8")])
    assert connections._origin("2001:db8::1") == connections._origin("2001:db8::ffff:2") == "2001:db8::/64"
    assert connections._origin("::ffff:192.0.2.1") == connections._origin("192.0.2.1") == "192.0.2.1"
    assert {connections._origin(proxy) for proxy in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::7")} == {""}


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
async def test_an_upgrade_is_a_request_like_any_other(upgrade: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as site:
        client = await site.client()
        fields = b"Host: a\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n"
        await client.send(b"GET /0 HTTP/1.1\r\n" + fields + b"\r\n" + GET % 1)
        assert await client.answers(2) == [(200, b"/0"), (200, b"/1")]
    assert caplog.text == ""


async def test_what_is_no_http_is_400_and_not_taken_for_an_answer() -> None:
    async with serving() as site:
        client = await site.client()
        await client.send(b"\x16\x03\x01\x02\x00\x01\x00")
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
        site.gate.clear()
        client = await site.client()
        await client.send(GET % 0 + b"\x16\x03\x01")
        await until(lambda: bool(site.scopes))
        site.gate.set()
        assert await client.answers(1) == [(200, b"/0")]
        assert await client.rest() == b""


@pytest.mark.parametrize(
    ("proxies", "seen"),
    [((), "192.0.2.1"), (("10.0.0.0/8",), "192.0.2.1"), (("192.0.2.0/24",), "203.0.113.9")],
    ids=["none trusted", "another trusted", "trusted"],
)
@pytest.mark.parametrize("socket", ["", "::ffff:"], ids=["IPv4", "both"])
async def test_only_a_trusted_proxy_says_who_asks(proxies: tuple[str, ...], seen: str, socket: str) -> None:
    asked: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope)

    config = server_config(app, [ip_network(one) for one in proxies])
    config.load()
    headers = [(b"x-forwarded-for", b"127.0.0.1, 203.0.113.9"), (b"x-forwarded-proto", b"https")]
    scope: Scope = {"type": "http", "client": (f"{socket}192.0.2.1", 4711), "scheme": "http", "headers": headers}
    await config.loaded_app(scope, None, None)
    [scope] = asked
    assert scope["client"][0].removeprefix(socket) == seen
    assert scope["scheme"] == ("https" if seen == "203.0.113.9" else "http")
