"""The unlearner is killed between a webhook's delivery and its record: it is delivered again, with the same id."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from service.failure_points import FailurePoint
from tests.support.clients.command_line import CommandLine
from tests.support.kills.deletions import template_of
from tests.support.kills.doomed_process import DoomedLethe
from tests.support.kills.faults import WEBHOOK_POINTS, Action, Fault
from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import Preloaded
from tests.support.service.homes import private_database
from tests.support.service.repair_world import query

_PATIENCE_S = 120.0


@contextmanager
def receiving() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Yield a receiver that accepts everything: its address, and the ids and bodies received."""
    came: list[tuple[str, bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.headers["webhook-id"], body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", came
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("point", WEBHOOK_POINTS)
def test_killed_around_a_delivery_it_delivers_every_event_again_under_its_id(
    preloaded: Preloaded,
    tmp_path: Path,
    point: FailurePoint,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = template_of(preloaded, Models(tmp_path).trained(SMALL), tmp_path / "home")
    lethe = DoomedLethe(preloaded, home, [Fault(Action.KILL_IT, point)], webhook_networks="127.0.0.1")
    try:
        with receiving() as (url, came):
            lethe.launch_until_ready()
            monkeypatch.setenv("LETHE_HOME", str(home))
            monkeypatch.setenv("LETHE_WEBHOOK_NETWORKS", "127.0.0.1")
            added = CommandLine(capsys)("webhooks", "add", url)
            assert added.status == 0, added.stderr
            lethe.delete(["3", "4"], reference="DSR-1")
            end = time.monotonic() + _PATIENCE_S
            while len({event_id for event_id, _ in came}) < 3 or not lethe.happened or undelivered(lethe):
                lethe.assert_runs()
                assert time.monotonic() < end, lethe.log()
                time.sleep(0.1)
            bodies = dict(came)
            assert len(bodies) == 3
            # Repeated deliveries are identical.
            assert all(bodies[event_id] == body for event_id, body in came)
            assert (len(came) > 3) == (point is FailurePoint.WEBHOOK_ANSWERED)
            types = {re.findall(rb'"type":"deletion\.(\w+)"', body)[0] for body in bodies.values()}
            assert types == {b"accepted", b"applied", b"completed"}
    finally:
        lethe.give_up()


def undelivered(lethe: DoomedLethe) -> bool:
    """Whether any delivery is not recorded as delivered."""
    statement = "SELECT count(*) FROM webhook_deliveries WHERE delivered_at IS NULL"
    [(count,)] = asyncio.run(query(private_database(lethe), statement))
    return bool(count)
