"""An unlearner that is stopped past the end of its lease and goes on beside its successor changes nothing any more."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from deletions import Outcome, People, Runs, assert_each_happened_once, assert_same, outcome_of
from doomed_process import DoomedLethe
from faults import FILE_CHANGE, STEP_POINTS, Action, Fault
from lethe_process import authorization, copied
from test_end_to_end_restarts import digests

from model_store import gram_checkpoint
from service.failure_points import FailurePoint
from tests.preloaded import Preloaded

#: Longest wait for anything (seconds): more than the 60 s after which Postgres ends the transaction of one that was
#: stopped with a statement half sent.
_PATIENCE_S = 120.0
#: Those that the unlearner passes with a batch in its hands.
_POINTS = STEP_POINTS[STEP_POINTS.index(FailurePoint.BATCHED) :]


@dataclass(frozen=True)
class Pair:
    """Two Lethes on one model and one database: `first` is stopped in its first batch, `second` is there to follow."""

    people: People
    first: DoomedLethe
    second: DoomedLethe
    database_url: str

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            self.first.assert_runs()
            assert time.monotonic() < deadline, self.first.log()

    def ask(self, lethe: DoomedLethe, numbers: range) -> list[str]:
        """Ask for the deletions of these numbers."""
        with lethe.client() as client:
            return [self.people.wanted[number].send(client, number).id for number in numbers]

    def stop_first(self) -> list[str]:
        """Ask the first for a deletion, in which it is stopped."""
        asked = self.ask(self.first.launch_until_ready(), range(1))
        self.until(lambda: psutil.Process(self.first.pid_of("unlearner")).status() == psutil.STATUS_STOPPED)
        return asked

    def take_over(self) -> None:
        """Start the second, as on another machine: with a copy of the keys."""
        subprocess.run(["cp", "-a", self.first.home / "keys", self.second.home / "keys"], check=True)
        self.second.launch_until_ready()

    def go_on(self) -> None:
        """Continue the first, until it has understood; it predicts nothing, before that and after."""
        before = self.first.log().count("lease.lost")
        # Sent while it is stopped, and so there when it goes on, before it can know of anything.
        waiting = [self._predicting() for _ in range(8)]
        os.kill(self.first.pid_of("unlearner"), signal.SIGCONT)
        assert {_status(one) for one in waiting} == {503}
        self.until(lambda: self.first.log().count("lease.lost") > before)
        assert _status(self._predicting()) == 503
        self.first.assert_runs()

    def _predicting(self) -> socket.socket:
        """A connection on which the first was asked to predict a node that is live."""
        url = urlsplit(self.first.url)
        live = next(node for node in self.people.graph.node_ids if node not in self.people.deleted)
        lines = [f"GET /predict/{live} HTTP/1.1", f"Host: {url.netloc}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in authorization().items()]
        connection = socket.create_connection((url.hostname, url.port), timeout=_PATIENCE_S)
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection

    def complete(self, lethe: DoomedLethe, requests: list[str]) -> None:
        """Wait until the requests are completed."""
        with lethe.client() as client:
            for request in requests:
                client.wait(request, timeout_s=_PATIENCE_S)

    def outcome(self, lethe: DoomedLethe) -> Outcome:
        """What the model has come to."""
        with lethe.client() as client:
            return outcome_of(self.people, lethe.model, client)


@pytest.fixture
def pair(
    people: People, preloaded: Preloaded, tmp_path: Path, database_url: str, redis_url: str
) -> Iterator[Callable[[Fault], Pair]]:
    """Two Lethes, not started, the first of which meets a fault."""
    made: list[DoomedLethe] = []

    def make(fault: Fault) -> Pair:
        model = copied(people.template / "model", tmp_path / "model")
        for faults in ([fault], []):
            home = tmp_path / f"home-{len(made)}"
            home.mkdir(mode=0o700)
            servers = {"database_url": database_url, "redis_url": redis_url, "model": model}
            made.append(DoomedLethe(preloaded, home, faults, lease_ttl_s=2, max_wait_ms=5, **servers))
        return Pair(people, *made, database_url=database_url)

    yield make
    for lethe in made:
        lethe.give_up()
    shutil.rmtree(tmp_path)


def stored(model: Path) -> dict[str, str] | None:
    """The digests of a model's files but for checkpoints, which the second writes when it has nothing else to do.

    None where files go meanwhile.
    """
    try:
        return {name: digest for name, digest in digests(model).items() if gram_checkpoint.FILE not in name}
    except FileNotFoundError:
        return None


def check(pair: Pair, runs: Runs) -> None:
    """The first is stopped, the second completes what it began, the first goes on, and it is as if it had not."""
    count = len(pair.people.wanted)
    begun = pair.stop_first()
    pair.take_over()
    pair.complete(pair.second, begun + pair.ask(pair.second, range(1, 6)))
    before = stored(pair.second.model)
    assert before is not None

    pair.go_on()
    # What the first still wrote into files of its own, the second removes: it may hold what was deleted meanwhile.
    pair.until(lambda: stored(pair.second.model) == before)
    pair.complete(pair.second, pair.ask(pair.second, range(6, count)))
    asyncio.run(assert_each_happened_once(pair.people, pair.database_url))
    reference = runs.uninterrupted("never")
    assert_same(pair.outcome(pair.second), reference, pair.people, repaired=False)

    # It comes to its turn again, and serves what the other has left.
    assert pair.second.stop().status == 0
    with pair.first.http() as http:
        pair.until(lambda: ready(http))
    assert_same(pair.outcome(pair.first), reference, pair.people, repaired=False)


def _status(connection: socket.socket) -> int:
    """The status of the answer, to its end."""
    with connection, connection.makefile("rb") as answer:
        return int(answer.read().split(b" ", 2)[1])


def ready(http: httpx.Client) -> bool:
    """Whether it says so; False as well when it does not answer."""
    with contextlib.suppress(httpx.TransportError):
        return http.get("/readyz").status_code == 200
    return False


def test_an_unlearner_that_lost_its_lease_while_it_was_stopped_changes_nothing(
    pair: Callable[[Fault], Pair], runs: Runs
) -> None:
    check(pair(Fault(Action.STOP_IT, FailurePoint.ERASED)), runs)


@pytest.mark.slow
@pytest.mark.parametrize("point", _POINTS)
def test_one_that_is_stopped_at_any_failure_point_changes_nothing(
    pair: Callable[[Fault], Pair], runs: Runs, point: FailurePoint
) -> None:
    check(pair(Fault(Action.STOP_IT, point)), runs)


@pytest.mark.slow
@pytest.mark.parametrize("occurrence", range(1, 21))
def test_one_that_is_stopped_at_a_change_of_a_file_changes_nothing(
    pair: Callable[[Fault], Pair], runs: Runs, occurrence: int
) -> None:
    check(pair(Fault(Action.STOP_IT, FILE_CHANGE, occurrence)), runs)
