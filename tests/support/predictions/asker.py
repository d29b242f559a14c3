"""A program that requests predictions without a pause, over kept-alive connections, and records the answers.

Its standard input is a plan, `{"ports": [...], "key": ..., "kept": [...], "doomed": [...], "seed": ...}`, and then one
line for each requested report; at the end of the input it exits. A report is one line of JSON, see `Seen`.

It judges nothing, and keeps only what a judge needs: for each model version, and for each node that may be deleted, the
time of the last question that it answered. Each connection waits only for its own answers, so a stopped process does
not delay questions to another.
"""

import contextlib
import json
import os
import random
import re
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

#: Connections to each port, and answers before one is reopened, so that restarted processes are queried too.
_CONNECTIONS = 4
_ANSWERS = 200
#: Seconds before retrying a port that refused a connection.
_RETRY_S = 0.02
#: One question in this many is about a node that may be deleted.
_DOOMED = 4
#: Largest difference between two answers for one node by one version: a lost version is predicted again.
_TOLERANCE = 1e-6
#: Bins of `Seen.asked` per second.
BINS = 100
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass
class Seen:
    """Results of one asker. Times are those of the questions: wall clock, and boottime."""

    #: Answers by status.
    statuses: dict[str, int] = field(default_factory=dict)
    #: Questions about remaining nodes that were answered with 503.
    refused: int = 0
    #: Connections that ended without an answer.
    broken: int = 0
    #: For each model version, as text, the last question that it answered.
    versions: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: For each node that may be deleted, the last question answered with probabilities.
    doomed: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: Remaining nodes that were answered as deleted or unknown, and answers that contradict others of their version.
    wrong: list[str] = field(default_factory=list)
    #: Number of answers with a version, by the hundredth of a second of their question.
    asked: dict[str, int] = field(default_factory=dict)


class Connection:
    """One connection, with at most one pending question."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket: socket.socket | None = None
        self.received = b""
        self.left = 0
        self.node = ""
        self.asked_at = (0.0, 0.0)
        #: `time.monotonic()` before which it is not opened.
        self.not_before = 0.0


class Asker:
    """Sends the questions of one plan."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.seen = Seen()
        self._plan = plan
        self._rng = random.Random(plan["seed"])
        self._selector = selectors.DefaultSelector()
        self._closed = [Connection(port) for port in plan["ports"] for _ in range(_CONNECTIONS)]
        self._values: dict[tuple[int, str], dict[str, float]] = {}

    def run(self) -> None:
        """Ask until the standard input ends."""
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        while True:
            self._open()
            for key, _ in self._selector.select(_RETRY_S if self._closed else None):
                if key.data is not None:
                    self._receive(key.data)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Write a report for each line of standard input. Returns False at its end."""
        data = os.read(sys.stdin.fileno(), 1 << 16)
        for _ in range(data.count(b"\n")):
            sys.stdout.write(json.dumps(vars(self.seen)) + "\n")
            sys.stdout.flush()
        return bool(data)

    def _open(self) -> None:
        now = time.monotonic()
        for connection in [one for one in self._closed if one.not_before <= now]:
            try:
                connection.socket = socket.create_connection(("127.0.0.1", connection.port))
            except OSError:
                connection.not_before = now + _RETRY_S
                continue
            connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.received, connection.left = b"", _ANSWERS
            self._closed.remove(connection)
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
            self._ask(connection)

    def _close(self, connection: Connection) -> None:
        assert connection.socket is not None
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._closed.append(connection)

    def _ask(self, connection: Connection) -> None:
        plan = self._plan
        nodes = plan["doomed"] if plan["doomed"] and self._rng.randrange(_DOOMED) == 0 else plan["kept"]
        connection.node = node = self._rng.choice(nodes)
        head = (
            f"GET /predict/{node} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {plan['key']}\r\n\r\n".encode()
        )
        # Taken before sending: the earliest possible time of the question.
        connection.asked_at = (time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))
        assert connection.socket is not None
        try:
            connection.socket.sendall(head)
        except OSError:
            self._broke(connection)

    def _broke(self, connection: Connection) -> None:
        self.seen.broken += 1
        self._close(connection)

    def _receive(self, connection: Connection) -> None:
        assert connection.socket is not None
        try:
            data = connection.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._broke(connection)
            return
        connection.received += data
        head, found, body = connection.received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head) if found else None
        if length is None or len(body) < int(length[1]):
            return
        self._note(connection, head[9:12].decode(), body)
        connection.received = b""
        connection.left -= 1
        if connection.left and b"\r\nconnection: close" not in head.lower():
            self._ask(connection)
        else:
            self._close(connection)

    def _note(self, connection: Connection, status: str, body: bytes) -> None:
        seen, node, asked_at = self.seen, connection.node, connection.asked_at
        seen.statuses[status] = seen.statuses.get(status, 0) + 1
        is_doomed = node in self._plan["doomed_set"]
        seen.refused += status == "503" and not is_doomed
        if status == "200":
            answer = json.loads(body)
            version, probabilities = answer["model_version"], answer["probabilities"]
            bin_ = str(int(asked_at[0] * BINS))
            seen.asked[bin_] = seen.asked.get(bin_, 0) + 1
            _later(seen.versions, str(version), asked_at)
            if is_doomed:
                _later(seen.doomed, node, asked_at)
            before = self._values.setdefault((version, node), probabilities)
            if any(abs(probabilities[name] - value) > _TOLERANCE for name, value in before.items()):
                seen.wrong.append(
                    f"version {version} answers {probabilities} for node {node}, and answered {before} before"
                )
        elif status not in ("503", "404", "410") or (status != "503" and not is_doomed):
            seen.wrong.append(f"node {node} is answered {status}: {body.decode()}")


def _later(moments: dict[str, tuple[float, float]], name: str, asked_at: tuple[float, float]) -> None:
    moments[name] = max(moments.get(name, asked_at), asked_at)


def main() -> None:
    """Ask by the plan on the first line of standard input."""
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(sys.stdin.fileno(), 1)
    plan = json.loads(line)
    plan["doomed_set"] = frozenset(plan["doomed"])
    with contextlib.suppress(KeyboardInterrupt):
        Asker(plan).run()


if __name__ == "__main__":
    main()
