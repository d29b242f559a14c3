"""TLS in front of a server that has none, as a managed service ends it."""

import asyncio
import ssl
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.service.certificates import Certificate


class TlsFront:
    """A port of 127.0.0.1 that decrypts what it passes on to `behind`: a path of a socket, or a host and port.

    A client speaks TLS at once, or after Postgres' request for it. `clients` signs the certificates that clients must
    have. `endpoint` is an option that Neon's proxy takes from the first message for itself.
    """

    def __init__(
        self,
        behind: str | tuple[str, int],
        certificate: Certificate,
        *,
        postgres: bool = False,
        clients: Certificate | None = None,
        endpoint: bytes = b"",
    ) -> None:
        self._behind, self._postgres, self._endpoint = behind, postgres, endpoint
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.certificate, certificate.key)
        if clients is not None:
            self._context.load_verify_locations(clients.certificate)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.sni_callback = lambda _connection, name, _context: self.names.append(name)
        #: The name that each client asked for (SNI), or None.
        self.names: list[str | None] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        tls = None if self._postgres else self._context
        started = asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self._server = asyncio.run_coroutine_threadsafe(started, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            start = b""
            if self._postgres:
                await reader.readexactly(8)
                writer.write(b"S")
                await writer.start_tls(self._context)
                start = await self._start_up(reader)
            if isinstance(self._behind, str):
                answers, ahead = await asyncio.open_unix_connection(self._behind)
            else:
                answers, ahead = await asyncio.open_connection(*self._behind)
            ahead.write(start)
            ways = [asyncio.ensure_future(_pass_on(reader, ahead)), asyncio.ensure_future(_pass_on(answers, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            ahead.close()
        writer.close()

    async def _start_up(self, reader: asyncio.StreamReader) -> bytes:
        """Return Postgres' first message, without the option that is for this front."""
        length = await reader.readexactly(4)
        message = await reader.readexactly(int.from_bytes(length) - 4)
        if self._endpoint:
            assert self._endpoint in message
            message = message.replace(b"options\0" + self._endpoint + b"\0", b"")
        return (len(message) + 4).to_bytes(4) + message


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while said := await reader.read(1 << 16):
            writer.write(said)
            await writer.drain()
