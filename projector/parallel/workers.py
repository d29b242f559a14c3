"""The processes that share one model's computation: a single one, or several on `torch.distributed`.

They divide the rows of H, and those of a large P. While H is computed, or products go through its factors, they divide
columns. Each worker's part of a matrix follows the order of the workers.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
#: Collective functions by name.
CARRIED_OUT: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Division:
    """Number of rows or columns of each worker, in the order of the workers."""

    counts: tuple[int, ...]

    @classmethod
    @lru_cache(maxsize=64)
    def evenly(cls, length: int, workers: int) -> "Division":
        """Divide into parts that differ by at most one. Some are empty if there are more workers than items."""
        return cls(tuple((length + rank) // workers for rank in reversed(range(workers))))

    @classmethod
    def at_first(cls, length: int, workers: int) -> "Division":
        """Give everything to the first worker."""
        return cls((length, *(0,) * (workers - 1)))

    @property
    def length(self) -> int:
        """The total length."""
        return sum(self.counts)

    def part(self, rank: int) -> slice:
        """Return one worker's part."""
        start = sum(self.counts[:rank])
        return slice(start, start + self.counts[rank])

    @property
    def parts(self) -> list[slice]:
        """Every worker's part."""
        stops = itertools.accumulate(self.counts)
        return [slice(stop - count, stop) for count, stop in zip(self.counts, stops, strict=True)]

    def rounds(self, width: int) -> "Iterator[tuple[list[int], Division]]":
        """Yield each round's starts and counts per worker, at most `width` items each."""
        for start in range(0, max(self.counts), width):
            taken = Division(tuple(min(max(count - start, 0), width) for count in self.counts))
            yield [part.start + start for part in self.parts], taken


class Workers(Protocol):
    """The group that computes together. All workers call every method that moves tensors, with equal shapes."""

    #: Index of this process, from 0. The first worker decides, the others follow.
    rank: int
    count: int

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of all workers' `tensor`, which it overwrites; the same bits everywhere."""

    def spread(self, tensor: Tensor, rank: int) -> None:
        """Overwrite the others' `tensor` with that of the worker `rank`."""

    def to_rows(self, columns: Tensor, rows: Division, width: Division) -> Tensor:
        """Return this worker's rows of a matrix of which each worker passes its own `columns`."""

    def to_columns(self, own: Tensor, rows: Division, width: Division) -> Tensor:
        """Return this worker's columns of a matrix of which each worker passes its `own` rows."""

    def joined(self, own: Tensor, rows: Division) -> Tensor:
        """Return the whole matrix on every worker, from each worker's `own` rows."""

    def knows(self, root: object) -> None:
        """Register an object that every worker has built for itself."""

    def beat(self) -> None:
        """Have the others release what this process has released, before returning."""

    def call(self, name: str, function: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        """Have all workers run `function`, known as `name`; return this process's result."""


class Alone:
    """A single process that holds everything."""

    rank = 0
    count = 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Return `tensor`."""
        return tensor

    def spread(self, tensor: Tensor, rank: int) -> None:
        """Do nothing: there are no others."""

    def to_rows(self, columns: Tensor, rows: Division, width: Division) -> Tensor:
        """Return `columns`, which are complete."""
        return columns

    def to_columns(self, own: Tensor, rows: Division, width: Division) -> Tensor:
        """Return `own`, which is complete."""
        return own

    def joined(self, own: Tensor, rows: Division) -> Tensor:
        """Return `own`, which is complete."""
        return own

    def knows(self, root: object) -> None:
        """Do nothing: there are no others."""

    def beat(self) -> None:
        """Do nothing: there are no others."""

    def call(self, name: str, function: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        """Run `function`."""
        return function(*arguments)


ALONE = Alone()


def together(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make `function` collective: all workers run it, each with its own parts of the given objects.

    The first argument has `workers`. Arguments are tensors, arrays, results of such functions, and JSON values.
    """
    name = f"{function.__module__}.{function.__qualname__}"
    signature = inspect.signature(function)
    CARRIED_OUT[name] = function

    @wraps(function)
    def announced(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        workers: Workers = arguments[0].workers  # type: ignore[attr-defined]
        return workers.call(name, function, signature.bind(*arguments, **named).args if named else arguments)

    return announced
