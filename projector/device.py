"""Where tensors live."""

import math
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor

from projector.errors import DeviceError

#: Up to so many values of its largest matrix, a kernel is quicker on one thread than on two.
ONE_THREAD_VALUES = 1 << 19
#: From so many bytes on an array that is seldom read does not stay in memory.
SELDOM_BYTES = 1 << 30
#: What torch says in a plain RuntimeError where memory ran out: its allocator on the CPU, cuBLAS and cuSOLVER, CUDA.
_NO_CPU_MEMORY = "DefaultCPUAllocator: can't allocate memory"
_NO_MEMORY = (_NO_CPU_MEMORY, "_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
#: The number of threads from before the innermost `threads_for` that took some away.
_TAKEN: ContextVar[int | None] = ContextVar("_TAKEN", default=None)


def torch_device(name: str) -> torch.device:
    """The device called `cpu`, `cuda` or `cuda:N`; raises DeviceError when it is not there, without a fallback."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"There is no device called {name!r}.", "Use cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"Lethe does not run on {name!r}.", "Use cpu or cuda.")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise DeviceError(
            f"The device {name!r} was asked for, but torch sees {torch.cuda.device_count()} CUDA device(s).",
            "Use --device cpu, or install a CUDA build of torch and check the driver.",
        )
    return device


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that the memory, of the device or of the machine, did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)


@contextmanager
def enough_memory(device: torch.device | str, nodes: int, num_features: int) -> Iterator[None]:
    """Turns running out of memory on a graph of that size into DeviceError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        # Work on a GPU needs memory of the machine as well.
        on_cpu = torch.device(device).type == "cpu" or isinstance(error, MemoryError) or _NO_CPU_MEMORY in str(error)
        where = "cpu" if on_cpu else device
        raise DeviceError(
            f"The device {where} has too little memory for {nodes} nodes with {num_features} features.",
            f"Use --combine last, {'or a machine with more memory' if on_cpu else 'a larger device, or --device cpu'}.",
        ) from error


def in_file(size: int, device: torch.device | str) -> bool:
    """Whether `seldom_read` makes a file for so many bytes."""
    return torch.device(device).type == "cpu" and size >= SELDOM_BYTES


def seldom_read(shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """A float64 tensor, not initialised, of which a few rows are read at a time.

    A large one on the CPU is a file without a name, in the system's folder for temporary files, that the system reads
    and writes as it has memory; it is overwritten when it is let go. Raises DeviceError when the folder cannot hold it.
    """
    size = 8 * math.prod(shape)
    if not in_file(size, device):
        return torch.empty(tuple(shape), dtype=torch.float64, device=device)
    try:
        with tempfile.TemporaryFile(buffering=0) as file:
            # Taken now: a mapping would tell of a full disk by a signal.
            os.posix_fallocate(file.fileno(), 0, size)
            values = np.memmap(file, dtype=np.float64, mode="r+", shape=tuple(shape))
            weakref.finalize(values, _let_go, os.dup(file.fileno()), size, os.getpid())
            return torch.from_numpy(values)
    except OSError as error:
        raise DeviceError(
            f"A temporary file of {size:,} bytes in {tempfile.gettempdir()} cannot be made: {error.strerror or error}.",
            "Make room there, or name another folder in TMPDIR, on a disk.",
        ) from error


def _let_go(descriptor: int, size: int, process: int) -> None:
    """Overwrites a file that nobody reads any more, beside whoever let go of it; `process` made it."""
    if os.getpid() != process:  # a fork of the one that reads it still
        os.close(descriptor)
    elif threading.main_thread().is_alive():
        threading.Thread(target=_overwrite, args=(descriptor, size), name="overwrite").start()
    else:  # nobody waits for a thread that starts now
        _overwrite(descriptor, size)


def _overwrite(descriptor: int, size: int) -> None:
    """Zeros in place of the file's bytes, down to the disk, and closes it."""
    zeros = bytes(min(size, 1 << 24))
    with open(descriptor, "wb") as file:
        file.seek(0)
        for start in range(0, size, len(zeros)):
            file.write(zeros[: size - start])
            file.flush()
            # A little at a time, since other files' syncs wait for what is to be written before them.
            os.fdatasync(descriptor)


@contextmanager
def threads_for(matrix: Tensor) -> Iterator[None]:
    """Gives torch one thread in here where more would cost more than they save; `matrix` is the largest worked on.

    Under OMP_WAIT_POLICY=passive every product wakes the other threads. The number is the calling thread's own, but a
    thread that uses torch for the first time meanwhile starts with it, and keeps it.
    """
    number = torch.get_num_threads()
    if number == 1 or matrix.numel() > ONE_THREAD_VALUES:
        yield
        return
    token = _TAKEN.set(number)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)
        _TAKEN.reset(token)


@contextmanager
def all_threads() -> Iterator[None]:
    """Gives back in here the threads that a `threads_for` around it has taken away."""
    number = _TAKEN.get()
    if number is None:
        yield
        return
    token = _TAKEN.set(None)
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(1)
        _TAKEN.reset(token)
