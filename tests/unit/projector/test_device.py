"""The number of torch threads for a piece of work, and the place of large arrays."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from projector.device import ONE_THREAD_VALUES, all_threads, is_out_of_memory, seldom_read, threads_for
from projector.errors import DeviceError

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


def test_what_is_seldom_read_is_in_a_file_when_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projector.device.SELDOM_BYTES", 1 << 16)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    large = seldom_read((8, 1024))
    large[:, 3] = 2.0
    assert float(large[:, 3].sum()) == 16.0
    assert any(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines())
    del large
    assert not any(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert not list(tmp_path.iterdir())
    assert seldom_read((8, 1023)).shape == (8, 1023)


def test_what_is_in_a_file_is_overwritten_when_it_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projector.device.SELDOM_BYTES", 1 << 16)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    large = seldom_read((3, 1 << 20))
    large[:] = 2.0
    descriptor, *_ = _opened_in(tmp_path)
    with descriptor.open("rb") as file:
        part = large[1, 5:]
        del large
        assert _overwriting() == []
        assert float(part.sum()) == 2.0 * part.numel()
        del part
        for thread in _overwriting():
            thread.join()
        written = file.read()
    assert written == bytes(8 * 3 << 20)
    assert not _opened_in(tmp_path)


@pytest.mark.ci
def test_what_is_in_a_file_is_overwritten_when_the_process_ends(tmp_path: Path) -> None:
    script = """if True:
        import os, sys, tempfile
        import projector.device
        projector.device.SELDOM_BYTES, tempfile.tempdir = 1 << 16, sys.argv[1]
        large = projector.device.seldom_read((3, 1 << 20))
        large[:] = 2.0
        print(next(each for each in os.scandir("/proc/self/fd") if sys.argv[1] in os.path.realpath(each.path)).name)
        sys.stdout.flush()
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        descriptor = int(process.stdout.readline())
        with Path(f"/proc/{process.pid}/fd/{descriptor}").open("rb") as file:
            process.communicate()
            assert file.read() == bytes(8 * 3 << 20)
    assert process.returncode == 0


def _opened_in(folder: Path) -> list[Path]:
    return [each for each in Path("/proc/self/fd").iterdir() if str(folder) in os.path.realpath(each)]


def _overwriting() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "overwrite"]


def test_a_folder_that_cannot_hold_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projector.device.SELDOM_BYTES", 1 << 16)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(DeviceError, match="absent"):
        seldom_read((8, 1024))


def test_running_out_of_memory_is_known_by_what_torch_says() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(10**15)
    assert is_out_of_memory(refused.value)
    cublas = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError(cublas)):
        assert is_out_of_memory(error)
    with pytest.raises(RuntimeError) as wrong:
        torch.ones(2) @ torch.ones(3)
    assert not is_out_of_memory(wrong.value)
    assert not is_out_of_memory(ValueError("can't allocate memory"))


#: Frees two blocks of 20 MiB and prints the share of the second that the process still holds.
_KEEPS = """
import re, torch
from projector.device import return_freed_memory
{call}
def held():
    return int(re.search("RssAnon:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1])
torch.ones(20 << 18)  # from now on glibc keeps blocks of this size
before = held()
many = [torch.ones(5 << 18) for _ in range(8)]
last = torch.ones(1 << 10)
del many
print((held() - before) / (40 << 10))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_goes_back_to_the_system() -> None:
    def kept(call: str) -> float:
        program = _KEEPS.format(call=call)
        return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)

    assert kept("return_freed_memory()") < 0.1
    # Without it, this process keeps them.
    assert kept("") > 0.5
