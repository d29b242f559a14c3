"""The unlearner's side of several workers: the members of a session, and when one begins for newcomers."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from projector.parallel.meeting import Visit
from projector.parallel.workers import Workers
from service.unlearner.workers import MeetingPlace, Task, Team, use_interface_of
from tests.support.processes.workers import free_port

TASK = Task("0-0", "digest", [])


@pytest.fixture
def place() -> MeetingPlace:
    return MeetingPlace("127.0.0.1", free_port(), 0.3)


def nobody(workers: Workers) -> None:
    pytest.fail("there is nobody to share with")


@contextmanager
def came(place: MeetingPlace, digest: str | None = None) -> Iterator[Visit]:
    """Yield a visit to the meeting, ready if it has a `digest`."""
    visit = Visit(place.address, place.port, place.timeout_s)
    if digest is None:
        yield visit
        return
    thread = threading.Thread(target=visit.take_part, args=(digest,))
    thread.start()
    yield visit
    thread.join()


def until_ready(team: Team) -> None:
    assert team._meeting is not None
    while not team._meeting.ready():
        time.sleep(0.01)


def test_one_that_nobody_was_asked_for_beside_listens_nowhere(place: MeetingPlace) -> None:
    team = Team(place, 1, torch.device("cpu"))
    team.begin(TASK)
    team.gather("same", nobody)
    with pytest.raises(ConnectionRefusedError):
        Visit(place.address, place.port, place.timeout_s)
    assert (team.count, team.late()) == (1, False)
    team.close()


def test_whoever_comes_late_is_a_reason_for_a_session_once_this_one_has_gone_on_for_a_while(
    place: MeetingPlace,
) -> None:
    ahead = [0.0]
    team = Team(place, 2, torch.device("cpu"), lambda: time.monotonic() + ahead[0])
    team.begin(TASK)
    team.gather("same", nobody)
    assert team.count == 1
    with came(place):
        ahead[0] = -1.0
        assert not team.late()
        ahead[0] = 1e6
        assert team.late()
    team.close()
    assert not team.late()


def test_a_port_that_is_taken_is_tried_again_while_the_unlearner_works_alone(
    place: MeetingPlace,
) -> None:
    ahead = [0.0]
    team = Team(place, 2, torch.device("cpu"), lambda: time.monotonic() + ahead[0])
    with socket.create_server((place.address, place.port)):
        team.begin(TASK)
        team.gather("same", nobody)
        assert team.count == 1
    ahead[0] = 1e6
    assert not team.late()
    with came(place):
        assert team.late()
    team.close()


def test_workers_that_were_tried_in_vain_are_tried_once_at_growing_intervals(
    place: MeetingPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    team = Team(place, 2, torch.device("cpu"), lambda: now[0])
    monkeypatch.setattr(Team, "_formed", lambda team, meeting, members: SimpleNamespace(count=1 + len(members)))
    for _ in range(3):
        team.lost()
    rests = []
    for _ in range(3):
        team.begin(TASK)
        with came(place, "same"):
            until_ready(team)
            team.gather("same", nobody)
            began = now[0]
            # Work of an unlearner alone is no evidence about the others.
            team.worked()
            while not team.late():
                now[0] += 0.1
            rests.append(now[0] - began)
        team.close()
        team.begin(TASK)
        with came(place, "same"):
            until_ready(team)
            team.gather("same", nobody)
        team.close()
        team.lost()
    assert rests == pytest.approx([0.3, 0.6, 1.2], abs=0.15)


def test_one_with_another_model_is_left_out(place: MeetingPlace) -> None:
    team = Team(place, 2, torch.device("cpu"))
    team.begin(TASK)
    visit = Visit(place.address, place.port, place.timeout_s)
    refused: list[BaseException] = []

    def take_part() -> None:
        try:
            visit.take_part("other")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
            refused.append(error)

    thread = threading.Thread(target=take_part)
    thread.start()
    team.gather("same", nobody)
    thread.join()
    assert team.count == 1
    assert [type(error).__name__ for error in refused] == ["WorkersDiffer"]
    team.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
def test_gloo_uses_the_interface_of_an_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environment)
    use_interface_of(address)
    assert environment == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
