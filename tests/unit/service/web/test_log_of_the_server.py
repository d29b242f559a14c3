"""Request logs of the server and of every library below it: never a path, a query or header content."""

import asyncio
import contextlib
import io
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import structlog
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from service.observability.logging import AccessLog, configure_logging
from service.processes.api_process import server_config
from service.processes.listening import listen
from service.web.api.application import build

SOMEBODY = "PERSON-4711"
PATH = f"/predict/{SOMEBODY}?who={SOMEBODY}".encode()
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: %s\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)
HOST = b"Host: a\r\n"
REQUESTS = {
    "plain": b"GET " + PATH + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "websocket": b"GET " + PATH + b" HTTP/1.1\r\n" + HOST + UPGRADE % b"websocket" + b"\r\n",
    "h2c": b"GET " + PATH + b" HTTP/1.1\r\n" + HOST + UPGRADE % b"h2c" + b"\r\n",
    "no such method": b"BREW " + PATH + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "wrong method": b"DELETE " + PATH + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "tunnel": b"CONNECT " + SOMEBODY.encode() + b":443 HTTP/1.1\r\n" + HOST + b"\r\n",
    "whole URL": b"GET http://" + SOMEBODY.encode() + PATH + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "no HTTP": SOMEBODY.encode() + b" " + PATH + b"\r\n\r\n",
    "old HTTP": b"GET " + PATH + b"\r\n\r\n",
    "bad field": b"GET " + PATH + b" HTTP/1.1\r\n" + HOST + SOMEBODY.encode() + b"\x00: b\r\n\r\n",
    "endless": b"GET " + PATH + b"a" * 100_000,
    "left early": b"POST " + PATH + b" HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n" + SOMEBODY.encode(),
    "bad body": b"POST " + PATH + b" HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + SOMEBODY.encode(),
}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Yield the output of all loggers at the lowest level, including disabled and isolated ones."""
    root = logging.getLogger()
    stream = io.StringIO()
    handlers = root.handlers[:]
    configure_logging("json", "debug", stream, process="api-0")
    loggers = [root, *(one for one in root.manager.loggerDict.values() if isinstance(one, logging.Logger))]
    before = [(one, one.level, one.disabled, one.propagate) for one in loggers]
    every = logging.StreamHandler(stream)
    for one in loggers:
        one.addHandler(every)
        # uvicorn has a level below `debug`.
        one.setLevel(1)
    yield stream
    for one, level, disabled, propagate in before:
        one.removeHandler(every)
        one.level, one.disabled, one.propagate = level, disabled, propagate
        one.manager._clear_cache()  # type: ignore[attr-defined]  # private, and what follows a change of levels
    root.handlers[:] = handlers
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@asynccontextmanager
async def served(lines: io.StringIO) -> AsyncIterator[int]:
    """Yield the port of the whole application without backends, served as in production."""
    bound = listen("127.0.0.1", 0)
    ready = asyncio.Event()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        ready.set()
        yield

    app = build(
        max_body_bytes=10_000,
        registry=CollectorRegistry(),
        access_log=AccessLog("json", "debug", lines, process="api-0"),
        lifespan=lifespan,
    )
    # No request presents a key, so none is looked up.
    app.state.services = SimpleNamespace(keys=None, limits=None, openid=None)
    server = uvicorn.Server(server_config(app))
    serving = asyncio.create_task(server._serve([bound]))
    await ready.wait()
    try:
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def test_no_logger_of_any_library_says_what_was_asked(log: io.StringIO) -> None:
    lines = io.StringIO()
    async with served(lines) as port:
        said = {}
        for name, request in REQUESTS.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                said[name] = await reader.read()
            writer.close()
    assert said["websocket"].startswith(b"HTTP/1.1 401 ")
    # The access log names the route of each answer, and uvicorn reports its start and stop.
    assert '"/predict/{node}"' in lines.getvalue()
    assert "Started server process" in log.getvalue()
    written = log.getvalue() + lines.getvalue()
    assert SOMEBODY not in written
    assert "127.0.0.1" not in written
