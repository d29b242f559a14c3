"""Torch devices, memory and threads."""

import ctypes
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

#: A kernel whose largest matrix has at most this many values runs faster on one thread than on two.
ONE_THREAD_VALUES = 1 << 19
#: A rarely read array of at least this many bytes moves from memory to a file.
SELDOM_BYTES = 1 << 30
#: Size of the buffer through which large tensors leave a GPU.
_PINNED_VALUES = 1 << 21
#: Torch's messages in a plain RuntimeError when memory runs out: its CPU allocator, cuBLAS and cuSOLVER, CUDA.
_NO_CPU_MEMORY = "DefaultCPUAllocator: can't allocate memory"
_NO_MEMORY = (_NO_CPU_MEMORY, "_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
#: glibc's M_MMAP_THRESHOLD.
_MMAP_THRESHOLD = -3
#: The thread count before the innermost `threads_for` that reduced it.
_TAKEN: ContextVar[int | None] = ContextVar("_TAKEN", default=None)


def torch_device(name: str) -> torch.device:
    """Return the device named `cpu`, `cuda` or `cuda:N`. Raises DeviceError if it is missing; there is no fallback."""
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


def return_freed_memory() -> None:
    """Make this process return blocks of 1 MiB and more to the system when it frees them, where the C library is glibc.

    This holds for blocks that it allocates from now on. By default, once it has freed a block of up to 32 MiB, it keeps
    later ones up to that size.
    """
    if hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, 1 << 20)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` reports that device or host memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _NO_MEMORY)


@contextmanager
def enough_memory(device: torch.device | str, nodes: int, num_features: int) -> Iterator[None]:
    """Raise DeviceError when a graph of this size runs out of memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        # Work on a GPU needs host memory too.
        on_cpu = torch.device(device).type == "cpu" or isinstance(error, MemoryError) or _NO_CPU_MEMORY in str(error)
        where = "cpu" if on_cpu else device
        raise DeviceError(
            f"The device {where} has too little memory for {nodes} nodes with {num_features} features.",
            f"Use --combine last, {'or a machine with more memory' if on_cpu else 'a larger device, or --device cpu'}.",
        ) from error


def in_file(size: int, device: torch.device | str) -> bool:
    """Return whether `seldom_read` uses a file for this many bytes."""
    return torch.device(device).type == "cpu" and size >= SELDOM_BYTES


def seldom_read(shape: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Return an uninitialised float64 tensor of which a few rows are read at a time.

    A large tensor on the CPU is an unnamed file in the system's temporary folder, cached by the system as memory
    allows. The file is overwritten when the tensor is released. Raises DeviceError if the folder cannot hold it.
    """
    size = 8 * math.prod(shape)
    if not in_file(size, device):
        return torch.empty(tuple(shape), dtype=torch.float64, device=device)
    try:
        with tempfile.TemporaryFile(buffering=0) as file:
            # Allocate now: with a sparse file, a full disk would raise a signal on access.
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
    """Overwrite a released file, in a thread beside the caller; `process` created it."""
    if os.getpid() != process:  # a fork of the process that still reads it
        os.close(descriptor)
    elif threading.main_thread().is_alive():
        threading.Thread(target=_overwrite, args=(descriptor, size), name="overwrite").start()
    else:  # at exit, nothing waits for new threads
        _overwrite(descriptor, size)


def _overwrite(descriptor: int, size: int) -> None:
    """Overwrite the file with zeros on the disk itself, and close it."""
    zeros = bytes(min(size, 1 << 24))
    with open(descriptor, "wb") as file:
        file.seek(0)
        for start in range(0, size, len(zeros)):
            file.write(zeros[: size - start])
            file.flush()
            # Sync in small pieces: other files' syncs wait for pending writes.
            os.fdatasync(descriptor)


def on_host(tensor: Tensor) -> Tensor:
    """Return `tensor` on the CPU.

    Large tensors leave a GPU through a small pinned buffer: copied directly into new memory, an H100's numbers arrive
    at 1 GB/s.
    """
    if tensor.device.type != "cuda" or tensor.numel() <= _PINNED_VALUES:
        return tensor.cpu()
    given, buffer = tensor.contiguous().view(-1), torch.empty(_PINNED_VALUES, dtype=tensor.dtype, pin_memory=True)
    result = torch.empty(tensor.shape, dtype=tensor.dtype)
    for part, target in zip(
        torch.split(given, _PINNED_VALUES), torch.split(result.view(-1), _PINNED_VALUES), strict=True
    ):
        with all_threads():
            target.copy_(buffer[: part.shape[0]].copy_(part))
    return result


@contextmanager
def threads_for(matrix: Tensor) -> Iterator[None]:
    """Limit torch to one thread in this context when more would cost more than they save.

    `matrix` is the largest one used. Under OMP_WAIT_POLICY=passive every product wakes the other threads. The limit
    applies to the calling thread, but a thread that first uses torch meanwhile starts with it and keeps it.
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
    """Restore in this context the threads that an enclosing `threads_for` removed."""
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
