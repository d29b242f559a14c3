"""Where tensors live."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from projector.errors import DeviceError

#: Up to so many values of its largest matrix, a kernel is quicker on one thread than on two.
ONE_THREAD_VALUES = 1 << 19


def torch_device(name: str) -> torch.device:
    """The device called `cpu`, `cuda` or `cuda:N`; raises DeviceError when it is not there, without a fallback."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"There is no device called {name!r}.", "Use cpu or cuda.") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceError(f"Lethe does not run on {name!r}.", "Use cpu or cuda.")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise DeviceError(
            f"The device {name!r} was asked for, but torch sees {torch.cuda.device_count()} CUDA device(s).",
            "Use --device cpu, or install a CUDA build of torch and check the driver.",
        )
    return device


@contextmanager
def enough_memory(device: torch.device | str, nodes: int, num_features: int) -> Iterator[None]:
    """Turns running out of device memory on a graph of that size into DeviceError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"The device {device} has too little memory for {nodes} nodes with {num_features} features.",
            "Use --combine last, a larger device, or --device cpu.",
        ) from error


@contextmanager
def threads_for(matrix: Tensor) -> Iterator[None]:
    """Gives torch one thread in here where a second would cost more than it saves; `matrix` is the largest there is.

    Under OMP_WAIT_POLICY=passive every product has to wake the other threads. The number is the calling thread's own,
    but torch gives a thread that uses it for the first time the number that was set last, by whichever thread.
    """
    number = torch.get_num_threads()
    if number == 1 or matrix.numel() > ONE_THREAD_VALUES:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)
