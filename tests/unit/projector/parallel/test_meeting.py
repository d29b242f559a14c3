"""How workers meet: those ready in time take part, and the first does not wait long for others."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from projector.errors import ProjectorError, WorkersDiffer, WorkersLost
from projector.parallel.meeting import Meeting, Visit

TIMEOUT_S = 1.0


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Yield a list that holds the result or exception of `work` once the block has ended."""
    found: list[Any] = []

    def note() -> None:
        try:
            found.append(work())
        except ProjectorError as error:
            found.append(error)

    thread = threading.Thread(target=note)
    thread.start()
    yield found
    thread.join()


def met(meeting: Meeting) -> Visit:
    return Visit(meeting.address, meeting.port, TIMEOUT_S)


def until_ready(meeting: Meeting, count: int) -> None:
    while len(meeting.ready()) < count:
        time.sleep(0.01)


def test_those_that_are_ready_take_part_in_the_order_in_which_they_came() -> None:
    meeting = Meeting("127.0.0.1", 0, TIMEOUT_S)
    first, second = met(meeting), met(meeting)
    meeting.begin("the task")
    assert (first.task(), second.task()) == ("the task", "the task")
    with beside(lambda: second.take_part("same")) as of_second, beside(lambda: first.take_part("same")) as of_first:
        until_ready(meeting, 2)
        assert meeting.settle("same", 2) == [1, 2]
    assert (of_first, of_second) == ([1], [2])


def test_no_more_take_part_than_were_asked_for() -> None:
    meeting = Meeting("127.0.0.1", 0, TIMEOUT_S)
    first, second = met(meeting), met(meeting)
    meeting.begin("the task")
    with beside(lambda: first.take_part("same")) as of_first, beside(lambda: second.take_part("same")) as of_second:
        until_ready(meeting, 2)
        assert meeting.settle("same", 1) == [1]
    assert (of_first, of_second) == ([1], [None])


def test_one_that_comes_late_waits_for_the_end_of_the_meeting() -> None:
    meeting = Meeting("127.0.0.1", 0, TIMEOUT_S)
    meeting.begin("the task")
    slow = met(meeting)
    assert slow.task() == "the task"
    assert meeting.settle("same", 1) == []
    late = met(meeting)
    assert slow.take_part("same") is None
    assert meeting.came == 2
    with beside(late.task) as found, beside(slow.stay) as stayed:
        del meeting
    assert isinstance(found[0], WorkersLost)
    assert stayed == [None]


def test_one_with_another_model_is_named_and_left_out() -> None:
    meeting = Meeting("127.0.0.1", 0, TIMEOUT_S)
    other, same = met(meeting), met(meeting)
    meeting.begin("the task")
    with beside(lambda: same.take_part("same")) as place, beside(lambda: other.take_part("other")) as refused:
        until_ready(meeting, 2)
        assert meeting.settle("same", 2) == [2]
    assert place == [1]
    assert isinstance(refused[0], WorkersDiffer)
    assert "worker at 127.0.0.1 has loaded another model" in str(refused[0])


def test_one_that_dies_before_the_group_is_formed_is_missed_within_the_time_given() -> None:
    meeting = Meeting("127.0.0.1", 0, TIMEOUT_S)
    visits = [met(meeting)]
    meeting.begin("the task")
    with beside(lambda: visits[0].take_part("same")):
        until_ready(meeting, 1)
        members = meeting.settle("same", 1)
    visits.clear()
    with pytest.raises(WorkersLost, match="group of 2 workers could not be formed"), meeting.group(members, "cpu"):
        pytest.fail("there is nobody")


def test_nobody_is_met_where_nobody_is() -> None:
    meeting = Meeting("127.0.0.2", 0, TIMEOUT_S)
    address, port = meeting.address, meeting.port
    with pytest.raises(ConnectionRefusedError):
        Visit("127.0.0.1", port, TIMEOUT_S)
    assert (address, met(meeting).address) == ("127.0.0.2", "127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        Meeting(address, port, TIMEOUT_S)
    del meeting
    with pytest.raises(ConnectionRefusedError):
        Visit(address, port, TIMEOUT_S)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize("address", ["0", "0.0.0.0", "::0"])
def test_a_meeting_is_never_at_every_address_of_a_host(address: str) -> None:
    with pytest.raises(OSError, match="every address of this host"):
        Meeting(address, 0, TIMEOUT_S)
