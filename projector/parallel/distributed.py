"""Several processes, on one or several hosts, through `torch.distributed`: gloo between CPUs, nccl between GPUs.

The first process, rank 0, runs the program, and the others `follow` it. A collective function (`together`) is announced
by name and arguments, with objects sent by number. Each process then runs it on its own parts of the objects, with
collectives inside. The result gets the next number, the same everywhere. So only the first process decides how the
program continues, by its own clock and the last bits of its own sums. A lost follower takes only derived data with it.

Messages are neither encrypted nor authenticated: use a private network.
"""

import json
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from projector.device import return_freed_memory
from projector.errors import WorkersLost
from projector.parallel.workers import CARRIED_OUT, Division

Result = TypeVar("Result")
#: Name of an announcement without a function.
_BEAT = ""


class Distributed:
    """The processes of one `torch.distributed` group. All of them construct it at the same time.

    An ArithmeticError comes from numbers that all processes summed: every worker raises it, and all continue. After any
    other error the processes are out of step: that call and all later ones raise WorkersLost.
    """

    def __init__(self, timeout_s: float, device: torch.device | str = "cpu") -> None:
        """Call after `torch.distributed.init_process_group`. No collective waits longer than `timeout_s`."""
        timeout = timedelta(seconds=timeout_s)
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._device = torch.device(device)
        #: Announcements go through CPUs, so they need no GPU and wait for none.
        self._message_group = dist.new_group(backend="gloo", timeout=timeout)
        self._tensor_group = (
            dist.new_group(backend="nccl", timeout=timeout) if self._device.type == "cuda" else self._message_group
        )
        self._one_at_a_time = threading.RLock()
        #: Whether a collective function is running.
        self._inside = False
        self._lost = False
        self._names = _Names(first=self.rank == 0)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of all workers' `tensor`, computed in place."""
        dist.all_reduce(tensor, group=self._tensor_group)
        return tensor

    def spread(self, tensor: Tensor, rank: int) -> None:
        """Overwrite the others' `tensor`, of the same shape, with that of the worker `rank`."""
        dist.broadcast(tensor, rank, group=self._tensor_group)

    def to_rows(self, columns: Tensor, rows: Division, width: Division) -> Tensor:
        """Return this worker's rows (rows.counts[rank], width.length) of a matrix divided by columns."""
        sent = columns.contiguous()
        mine = rows.counts[self.rank]
        received = sent.new_empty(mine * width.length)
        dist.all_to_all_single(
            received,
            sent.reshape(-1),
            [mine * count for count in width.counts],
            [count * width.counts[self.rank] for count in rows.counts],
            group=self._tensor_group,
        )
        pieces = torch.split(received, [mine * count for count in width.counts])
        return torch.cat([each.view(mine, count) for each, count in zip(pieces, width.counts, strict=True)], dim=1)

    def to_columns(self, own: Tensor, rows: Division, width: Division) -> Tensor:
        """Return this worker's columns (rows.length, width.counts[rank]) of a matrix divided by rows."""
        sent = torch.cat([own[:, part].reshape(-1) for part in width.parts])
        mine = width.counts[self.rank]
        received = sent.new_empty(rows.length * mine)
        dist.all_to_all_single(
            received,
            sent,
            [count * mine for count in rows.counts],
            [rows.counts[self.rank] * count for count in width.counts],
            group=self._tensor_group,
        )
        return received.view(rows.length, mine)

    def joined(self, own: Tensor, rows: Division) -> Tensor:
        """Return the whole matrix (rows.length, k); parts of different lengths are padded in transit."""
        longest = max(rows.counts)
        filled = own.new_zeros((longest, *own.shape[1:]))
        filled[: own.shape[0]] = own
        parts = [torch.empty_like(filled) for _ in range(self.count)]
        dist.all_gather(parts, filled, group=self._tensor_group)
        return torch.cat([part[:count] for part, count in zip(parts, rows.counts, strict=True)])

    def call(self, name: str, function: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        """Announce `function` and run it. Inside a collective function, only run it: the others run it already."""
        with self._one_at_a_time:
            if self._inside or self.rank:
                return function(*arguments)
            with self._in_step():
                self._announce(name, arguments)
                return self._carried_out(function, arguments)

    def knows(self, root: object) -> None:
        """Number an object that every process has built for itself."""
        self._names.add(root)

    def follow(self) -> None:
        """Run what the first process announces, until it announces the end. Freed memory goes back to the system."""
        return_freed_memory()
        with self._in_step():
            while (received := self._received()) is not None:
                name, arguments = received
                if name == _BEAT:
                    self.sum(torch.zeros(1, device=self._device))
                    continue
                # The first process raised it as well, and decides what follows.
                with suppress(ArithmeticError):
                    self._carried_out(CARRIED_OUT[name], arguments)

    def beat(self) -> None:
        """Signal the others that the first process is alive, and have them release what it has released.

        When it returns, the others no longer hold any of that in memory. Raises WorkersLost if one is missing.
        """
        with self._one_at_a_time, self._in_step():
            self._announce(_BEAT, ())
            self.sum(torch.zeros(1, device=self._device))

    def end(self) -> None:
        """Release the other processes."""
        with self._one_at_a_time, self._in_step():
            self._announce(None, ())

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Guard a collective step: a process that fails in it alone takes part in no further step."""
        remedy = "Start again with the remaining workers."
        if self._lost:
            raise WorkersLost("The workers have lost one another.", remedy)
        self._lost = True
        try:
            yield
        except ArithmeticError:
            self._lost = False
            raise
        except Exception as error:
            raise WorkersLost(
                f"Worker {self.rank} of {self.count} could not continue with the others: {error}.", remedy
            ) from error
        self._lost = False

    def _carried_out(self, function: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        self._inside = True
        try:
            result = function(*arguments)
        finally:
            self._inside = False
        self._names.add(result)
        return result

    def _announce(self, name: str | None, arguments: Sequence[Any]) -> None:
        tensors: list[Tensor] = []
        header = {
            "name": name,
            "arguments": [self._encoded(argument, tensors) for argument in arguments],
            "gone": self._names.take_gone(),
            "numbered": self._names.numbered,
        }
        message = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
        dist.broadcast(torch.tensor([message.shape[0]]), 0, group=self._message_group)
        dist.broadcast(message, 0, group=self._message_group)
        for tensor in tensors:
            dist.broadcast(tensor, 0, group=self._tensor_group)

    def _received(self) -> tuple[str, list[Any]] | None:
        length = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(length, 0, group=self._message_group)
        message = torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(message, 0, group=self._message_group)
        header = json.loads(bytes(message.numpy()))
        if header["numbered"] != self._names.numbered:
            raise RuntimeError("the first worker has other results")
        arguments = [self._decoded(encoded) for encoded in header["arguments"]]
        self._names.forget(header["gone"])
        return None if header["name"] is None else (header["name"], arguments)

    def _encoded(self, argument: Any, tensors: list[Tensor]) -> dict[str, Any]:
        if argument is None or isinstance(argument, bool | int | float | str | list):
            return {"value": argument}
        if isinstance(argument, Tensor | np.ndarray):
            array = isinstance(argument, np.ndarray)
            tensor = torch.from_numpy(argument) if isinstance(argument, np.ndarray) else argument
            tensors.append(tensor.to(self._device).contiguous())
            return {"array": array, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        return {"object": self._names.number(argument)}

    def _decoded(self, encoded: dict[str, Any]) -> Any:
        if "value" in encoded:
            return encoded["value"]
        if "object" in encoded:
            return self._names.object(encoded["object"])
        tensor = torch.empty(encoded["shape"], dtype=getattr(torch, encoded["dtype"]), device=self._device)
        dist.broadcast(tensor, 0, group=self._tensor_group)
        return tensor.cpu().numpy() if encoded["array"] else tensor


class _Names:
    """Numbers of objects, in order of creation.

    The first process keeps no object alive and announces those that are gone. The others hold them until then.
    """

    def __init__(self, *, first: bool) -> None:
        self._first = first
        #: Count of numbered objects.
        self.numbered = 0
        self._objects: dict[int, object] = {}
        self._numbers: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._gone: list[int] = []

    def add(self, made: object) -> None:
        """Number a function's result, unless it is a plain value."""
        if made is None or isinstance(made, Tensor | np.ndarray | bool | int | float | str | tuple | list):
            return
        if self._first:
            self._numbers[made] = self.numbered
            weakref.finalize(made, self._gone.append, self.numbered)
        else:
            self._objects[self.numbered] = made
        self.numbered += 1

    def number(self, known: object) -> int:
        """Return the number of an object known to `add`."""
        return self._numbers[known]

    def object(self, number: int) -> object:
        """Return the object with that number."""
        return self._objects[number]

    def take_gone(self) -> list[int]:
        """Return the numbers of objects that the first process has released, each once."""
        gone = []
        while self._gone:
            gone.append(self._gone.pop())
        return gone

    def forget(self, gone: Sequence[int]) -> None:
        """Release these objects."""
        for number in gone:
            del self._objects[number]
