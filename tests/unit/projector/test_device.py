"""How many threads torch gets for a piece of work."""

import threading
from collections.abc import Iterator

import pytest
import torch

from projector.device import ONE_THREAD_VALUES, all_threads, threads_for

SMALL = torch.empty(ONE_THREAD_VALUES, device="meta")
LARGE = torch.empty(ONE_THREAD_VALUES + 1, device="meta")


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_small_matrices_get_one_thread_and_large_ones_all() -> None:
    with threads_for(SMALL):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with threads_for(LARGE):
        assert torch.get_num_threads() == 3


def test_threads_are_given_back_inside_and_taken_again() -> None:
    with threads_for(SMALL):
        with all_threads():
            assert torch.get_num_threads() == 3
            with threads_for(SMALL):
                assert torch.get_num_threads() == 1
            with all_threads():
                assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with all_threads():
        assert torch.get_num_threads() == 3


def test_an_error_leaves_the_number_as_it_was() -> None:
    with pytest.raises(ArithmeticError), threads_for(SMALL), all_threads():
        raise ArithmeticError
    assert torch.get_num_threads() == 3
    with all_threads(), threads_for(SMALL):
        assert torch.get_num_threads() == 1


def test_one_thread_is_not_made_more() -> None:
    torch.set_num_threads(1)
    with threads_for(SMALL), all_threads():
        assert torch.get_num_threads() == 1


def test_a_thread_that_uses_torch_already_keeps_its_number() -> None:
    seen: list[int] = []
    ready, go = threading.Event(), threading.Event()

    def other() -> None:
        seen.append(torch.get_num_threads())
        ready.set()
        go.wait()
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    with threads_for(SMALL):
        go.set()
        thread.join()
    assert seen == [3, 3]
