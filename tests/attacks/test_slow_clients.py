"""Clients that connect, or begin, and then wait: others are served, and what they ask for is done."""

import itertools
import socket
from contextlib import ExitStack

import pytest

from tests.support.processes.lethe_process import KEY
from tests.support.service.attacked import Attacked

pytestmark = pytest.mark.slow

#: Memory that an attack may hold (MiB).
MOST_MIB = 100


@pytest.mark.parametrize("name", ["stalled bodies", "half heads", "idle connections"])
def test_others_are_served_and_their_deletions_completed(attacked: Attacked, name: str) -> None:
    nodes = (str(number) for number in itertools.count(1))
    done = []

    def look() -> None:
        attacked.ready()
        deletion = attacked.lethe.delete([next(nodes)])
        done.append(deletion.status)

    grown = attacked.while_under(name, 20.0, look)

    assert set(done) == {"completed"}
    assert grown < MOST_MIB
    attacked.unharmed()


@pytest.mark.parametrize("part", ["nothing", "half a head", "half a body"])
def test_who_only_waits_is_told_and_cut_off(attacked: Attacked, part: str) -> None:
    body = f"POST /deletions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 100\r\n\r\n{{"
    sent = {"nothing": b"", "half a head": b"GET / HTTP/1.1\r\nHost:", "half a body": body.encode()}[part]
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(socket.create_connection(("127.0.0.1", attacked.port), timeout=30)) for _ in range(50)
        ]
        for one in waiting:
            one.sendall(sent)
        attacked.ready()
        said = {one.makefile("rb").read()[:13] for one in waiting}
    assert said == ({b"HTTP/1.1 408 "} if sent else {b""})
    attacked.unharmed()
