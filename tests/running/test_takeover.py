"""An upgrade without a gap: `serve --replace` takes over the socket, and every request meanwhile is answered."""

import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from service.cli.server import read_facts
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, authorization
from tests.support.service.bodies import node_body

pytestmark = pytest.mark.ci


class Caller(threading.Thread):
    """Predicts and deletes over one connection until stopped; each answer that is not a success is kept."""

    def __init__(self, url: str, nodes: range, *, keep_alive: bool) -> None:
        super().__init__(daemon=True)
        self.failures: list[str] = []
        self.answered = 0
        self.accepted: list[str] = []
        self._url = url
        self._nodes = iter(nodes)
        self._keep_alive = keep_alive
        self._over = threading.Event()

    def run(self) -> None:
        limits = httpx2.Limits(max_keepalive_connections=1 if self._keep_alive else 0)
        with httpx2.Client(base_url=self._url, headers=authorization(), timeout=30.0, limits=limits) as http:
            while not self._over.is_set():
                try:
                    self._one(http)
                except httpx2.HTTPError as error:
                    self.failures.append(repr(error))

    def finish(self) -> None:
        self._over.set()
        self.join()

    def _one(self, http: httpx2.Client) -> None:
        node = next(self._nodes, None) if self.answered % 50 == 0 else None
        if node is None:
            got = http.get("/predict/99")
        else:
            got = http.post("/deletions", json=node_body(str(node)))
            if got.status_code == 202:
                self.accepted.append(got.json()["id"])
        self.answered += 1
        if got.status_code not in (200, 202):
            self.failures.append(f"{got.status_code}: {got.text}")


def test_a_successor_takes_over_the_socket_and_no_request_fails(
    home: Path, servers: dict[str, str], lethe_start: Start
) -> None:
    def serve(part: str, **more: Any) -> LetheProcess:
        return LetheProcess(lethe_start, home, part=part, **servers, **{"api_workers": 1, "lease_ttl_s": 2} | more)

    with (
        serve("old").start() as old,
        serve("new", arguments="--replace") as new,
        serve("third", arguments="--replace") as third,
    ):
        callers = [Caller(old.url, range(20), keep_alive=True), Caller(old.url, range(20, 40), keep_alive=False)]
        for caller in callers:
            caller.start()
        new.start()
        assert new.url == old.url
        assert old.ended().status == 0
        found = read_facts(home)
        assert found is not None
        assert found.pid == new.pid
        assert sorted(found.pids) == ["api2-0", "unlearner2"]
        third.start()
        assert new.ended().status == 0
        for caller in callers:
            caller.finish()
        assert [failure for caller in callers for failure in caller.failures] == []
        assert min(caller.answered for caller in callers) > 100
        accepted = [each for caller in callers for each in caller.accepted]
        assert len(accepted) > 2
        with third.client() as client:
            assert {client.wait(each, timeout_s=60.0).status for each in accepted} == {"completed"}
        assert third.stop().status == 0
