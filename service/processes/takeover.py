"""Take over the listening socket of a running Lethe, so that an upgrade refuses no connection.

The running Lethe offers its socket at `run/takeover/<number>.sock`. A successor asks for it, starts its own answering
processes on it, and confirms when they are ready. Then the predecessor accepts nothing more, finishes what it has
accepted, and ends. If the successor ends before it confirms, nothing has changed.

Both hold one socket of the kernel, with one queue. With SO_REUSEPORT there would be two, and closing one socket resets
the connections in its queue.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from service.domain.addresses import url_of
from service.errors import AlreadyRunning, ConfigurationError, Unavailable
from service.observability.sockets import bound_at, reachable
from service.predictions.facts import ModelManifest
from service.predictions.layout import Layout, OtherPublicationFormat, read_manifest
from service.processes.listening import resolved

#: Maximum wait for the predecessor's reply, which it sends within a second (seconds).
_REPLY_S = 10.0
#: Maximum wait for a successor's question, which it sends on connecting (seconds).
_QUESTION_S = 1.0
_CONFIRMED = b"!"
_WHOLE = "whole"


class _Reply(msgspec.Struct, frozen=True):
    """The answer to a successor; the socket travels with it unless it is refused."""

    refused: str = ""


class Offer:
    """The socket of a running Lethe, for a successor that runs the same parts."""

    def __init__(self, offering: socket.socket, bound: socket.socket, role: str | None) -> None:
        """Answer on `offering`."""
        self._offering = offering
        self._bound = bound
        self._role = role or _WHOLE
        self._successor: socket.socket | None = None
        self._is_taken = False

    def is_taken(self) -> bool:
        """Answer successors, and return whether one has confirmed, which ends the offer; never waits for long."""
        self._hear()
        with contextlib.suppress(BlockingIOError):
            while not self._is_taken:
                self._answer(self._offering.accept()[0])
        if self._is_taken:
            # Otherwise a second successor in the queue would get the socket too. It asks the first one instead.
            self._offering.close()
        return self._is_taken

    def close(self) -> None:
        """Forget the successor."""
        if self._successor is not None:
            self._successor.close()
            self._successor = None

    def _hear(self) -> None:
        """Read whether the successor has confirmed or ended."""
        if self._successor is None or self._is_taken:
            return
        try:
            said = self._successor.recv(len(_CONFIRMED))
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""
        self._is_taken = bool(said)
        if not said:
            self.close()

    def _answer(self, asking: socket.socket) -> None:
        # One that has gone, or sends nothing, gets no answer.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(asking.close)
            asking.settimeout(_QUESTION_S)
            asked = asking.recv(64).decode(errors="replace")
            self._hear()
            if self._successor is not None:
                asking.sendall(msgspec.json.encode(_Reply("another Lethe is already taking over from it")))
            elif asked != self._role:
                asking.sendall(msgspec.json.encode(_Reply(f"it runs the part {self._role!r}, and this is {asked!r}")))
            else:
                socket.send_fds(asking, [msgspec.json.encode(_Reply())], [self._bound.fileno()])
                asking.setblocking(False)
                self._successor = asking
                stack.pop_all()


class Predecessor:
    """A running Lethe whose socket this process has too."""

    def __init__(self, number: int, connection: socket.socket, listener: socket.socket) -> None:
        self.number = number
        self.listener = listener
        self._connection: socket.socket | None = connection

    def waits(self) -> bool:
        """Return whether it still runs and has not been replaced."""
        if self._connection is None:
            return False
        try:
            return bool(self._connection.recv(1))
        except BlockingIOError:
            return True
        except ConnectionError:
            return False

    def replace(self) -> None:
        """Let it retire; idempotent, and without effect if it has ended."""
        if self._connection is not None:
            with contextlib.suppress(ConnectionError):
                self._connection.sendall(_CONFIRMED)
            self.close()

    def close(self) -> None:
        """Leave it as it is."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@contextlib.contextmanager
def offered(home: Path, number: int, bound: socket.socket, role: str | None) -> Iterator[Offer]:
    """Offer `bound` to a successor inside the block."""
    with bound_at(_folder(home) / f"{number}.sock") as offering:
        offering.listen()
        offering.setblocking(False)
        offer = Offer(offering, bound, role)
        try:
            yield offer
        finally:
            offer.close()


@contextlib.contextmanager
def predecessor(home: Path, role: str | None, host: str, port: int) -> Iterator[Predecessor | None]:
    """Yield the Lethe that answers at this address for `home`, with its socket; None if none answers there.

    Raises:
        ConfigurationError: the Lethe of this home answers at another address, or runs other parts.
        AlreadyRunning: another process is taking over from it.
        OtherPublicationFormat: this version cannot read its predictions.
        Unavailable: it does not answer.
    """
    found, others = None, list[str]()
    for path in sorted(_folder(home).glob("*.sock")):
        candidate = _ask(path, role)
        if candidate is None:
            continue
        if _answers_at(candidate.listener, host, port):
            found = candidate
            break
        others.append(url_of(candidate.listener))
        candidate.close()
        candidate.listener.close()
    if found is None and others:
        raise ConfigurationError(
            f"The Lethe of {home} answers at {others[0]}, and a successor at the same address.",
            "Set --host and --port to that address, or leave out --replace to answer at another one.",
        )
    try:
        if found is not None:
            _require_readable(home)
        yield found
    finally:
        if found is not None:
            found.close()
            found.listener.close()


def _ask(path: Path, role: str | None) -> Predecessor | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_REPLY_S)
        with reachable(path) as address:
            connection.connect(address)
        connection.sendall((role or _WHOLE).encode())
        answer, descriptors, *_ = socket.recv_fds(connection, 4096, 1)
    except (ConnectionError, FileNotFoundError):
        # A killed Lethe has left its socket.
        connection.close()
        return None
    except TimeoutError:
        connection.close()
        raise Unavailable(
            "The Lethe to take over from does not answer.", "Stop it, and start again without --replace."
        ) from None
    if not answer:
        # It has just ended.
        connection.close()
        return None
    reply = msgspec.json.decode(answer, type=_Reply)
    if reply.refused:
        connection.close()
        raise AlreadyRunning(
            f"The running Lethe cannot be replaced: {reply.refused}.",
            "Wait for a takeover in progress, or replace it with the same --role.",
        )
    listener = socket.socket(fileno=descriptors[0])
    os.set_inheritable(descriptors[0], False)
    connection.setblocking(False)
    return Predecessor(int(path.stem), connection, listener)


def _answers_at(listener: socket.socket, host: str, port: int) -> bool:
    """Return whether a socket listens at this address; port 0 accepts any."""
    family, address = resolved(host, port)
    bound = listener.getsockname()
    return listener.family == family and bound[0] == address[0] and port in (0, bound[1])


def _require_readable(home: Path) -> None:
    """Raise OtherPublicationFormat if this version cannot predict from what the running unlearner publishes."""
    for publication in Layout.all_of(home)[:1]:
        try:
            read_manifest(publication.model, ModelManifest)
        except FileNotFoundError:
            return
        except OtherPublicationFormat as error:
            raise OtherPublicationFormat(
                error.detail,
                "These two versions cannot serve side by side: stop the running Lethe, then start this one. "
                "There are no predictions in between.",
            ) from error


def _folder(home: Path) -> Path:
    return home / "run" / "takeover"
