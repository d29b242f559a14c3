"""TLS in front of a server that has none, as a managed service ends it."""

import select
import socket
import ssl
import threading
from contextlib import suppress
from typing import Self

from tests.support.service.certificates import Certificate


class TlsFront:
    """A port of 127.0.0.1 that decrypts what it passes on to `behind`: a path of a socket, or a host and port.

    With `postgres`, a client speaks TLS after Postgres' request for it. `clients` signs the certificates that clients
    must have. `endpoint` is an option that Neon's proxy takes from the first message for itself.
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
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._open.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self._postgres:
                _exactly(client, 8)
                client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as plain, self._connected() as ahead:
                if self._postgres:
                    ahead.sendall(self._start_up(plain))
                while True:
                    ready = [plain] if plain.pending() else select.select([plain, ahead], [], [])[0]
                    for source in ready:
                        content = source.recv(1 << 16)
                        if not content:
                            return
                        (ahead if source is plain else plain).sendall(content)

    def _connected(self) -> socket.socket:
        if isinstance(self._behind, tuple):
            return socket.create_connection(self._behind)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._behind)
        return connection

    def _start_up(self, plain: ssl.SSLSocket) -> bytes:
        """Return Postgres' first message, without the option that is for this front."""
        message = _exactly(plain, int.from_bytes(_exactly(plain, 4)) - 4)
        if self._endpoint:
            assert self._endpoint in message
            message = message.replace(b"options\0" + self._endpoint + b"\0", b"")
        return (len(message) + 4).to_bytes(4) + message


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes. Raises OSError at an earlier end."""
    content = b""
    while len(content) < size:
        part = connection.recv(size - len(content))
        if not part:
            raise ConnectionError
        content += part
    return content
