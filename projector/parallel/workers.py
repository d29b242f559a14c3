"""The processes that share one model's computation: alone, or several on `torch.distributed`.

Rows of H are divided among them, and while H is made, or where products go through its factors, columns are. What each
holds of a matrix is in the order of the workers.
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
#: What workers carry out together, by name.
CARRIED_OUT: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class Division:
    """How many rows, or columns, each worker has: those of the first, then those of the second, and so on."""

    counts: tuple[int, ...]

    @classmethod
    @lru_cache(maxsize=64)
    def evenly(cls, length: int, workers: int) -> "Division":
        """In parts that differ by one at most; some are empty where there are more workers."""
        return cls(tuple((length + rank) // workers for rank in reversed(range(workers))))

    @classmethod
    def at_first(cls, length: int, workers: int) -> "Division":
        """All at the first of them."""
        return cls((length, *(0,) * (workers - 1)))

    @property
    def length(self) -> int:
        """All together."""
        return sum(self.counts)

    def part(self, rank: int) -> slice:
        """Those of one worker."""
        start = sum(self.counts[:rank])
        return slice(start, start + self.counts[rank])

    @property
    def parts(self) -> list[slice]:
        """Those of each worker."""
        stops = itertools.accumulate(self.counts)
        return [slice(stop - count, stop) for count, stop in zip(self.counts, stops, strict=True)]

    def rounds(self, width: int) -> "Iterator[tuple[list[int], Division]]":
        """What everybody takes of their part next, at most `width` at a time: where each begins, and how many."""
        for start in range(0, max(self.counts), width):
            taken = Division(tuple(min(max(count - start, 0), width) for count in self.counts))
            yield [part.start + start for part in self.parts], taken


class Workers(Protocol):
    """Who computes together. Every method that passes tensors on is called by all at once, with equal shapes."""

    #: Which of them this process is, from 0; the first decides, the others follow it.
    rank: int
    count: int

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of everybody's `tensor`, which is overwritten by it; the same bits everywhere."""

    def to_rows(self, columns: Tensor, rows: Division, width: Division) -> Tensor:
        """One's own rows, all columns, of a matrix of which each has its own `columns`, all rows."""

    def to_columns(self, own: Tensor, rows: Division, width: Division) -> Tensor:
        """One's own columns, all rows, of a matrix of which each has its `own` rows, all columns."""

    def joined(self, own: Tensor, rows: Division) -> Tensor:
        """The whole matrix, everywhere, of which each has its `own` rows, all columns."""

    def knows(self, root: object) -> None:
        """What all begin with: an object that each has made by itself."""

    def beat(self) -> None:
        """Has the others let go of what this process holds no longer; once it returns, they have."""

    def call(self, name: str, function: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        """Has everybody carry out `function`, known as `name`; returns what this process got."""


class Alone:
    """One process has all of it."""

    rank = 0
    count = 1

    def sum(self, tensor: Tensor) -> Tensor:
        """`tensor`."""
        return tensor

    def to_rows(self, columns: Tensor, rows: Division, width: Division) -> Tensor:
        """`columns`, which are all."""
        return columns

    def to_columns(self, own: Tensor, rows: Division, width: Division) -> Tensor:
        """`own`, which are all."""
        return own

    def joined(self, own: Tensor, rows: Division) -> Tensor:
        """`own`, which is all."""
        return own

    def knows(self, root: object) -> None:
        """Nobody else has to."""

    def beat(self) -> None:
        """Nobody else holds anything."""

    def call(self, name: str, function: Callable[..., Result], arguments: Sequence[Any]) -> Result:
        """Carries it out."""
        return function(*arguments)


ALONE = Alone()


def together(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Makes `function` one that all workers carry out, each with their own parts of the objects it is given.

    The first argument has `workers`. Arguments are tensors, arrays, what such a function has returned, and what JSON
    knows.
    """
    name = f"{function.__module__}.{function.__qualname__}"
    signature = inspect.signature(function)
    CARRIED_OUT[name] = function

    @wraps(function)
    def announced(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        workers: Workers = arguments[0].workers  # type: ignore[attr-defined]
        return workers.call(name, function, signature.bind(*arguments, **named).args if named else arguments)

    return announced
