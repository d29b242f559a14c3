"""Names and values as people get them wrong, the same for the same seed; and the list of what was taken wrongly."""

import os
import random
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

#: Another seed sweeps other cases; a failing one is printed with it.
SEED = int(os.environ.get("INPUTS_SEED", "1"))
#: A name that nothing has.
UNKNOWN = "frobnicate"
#: What a page or a shell hands over where no value is meant, and values that are of another type than most.
VALUES = (
    "", " ", "x", "-1", "0", "1.5", "1e9", "1e999", "NaN", "0x10", "１２", "true", "null", "[]", "{}", "9" * 40,
    "2026-02-30", "2026-11-20T00:00:00", "a\x00b", "a\nb", "\u202e1", "é" * 300,
)  # fmt: skip

_T = TypeVar("_T")


def misspellings(name: str, taken: Collection[str]) -> list[str]:
    """`name` as people type it, none of it in `taken`: letters left out, doubled, swapped and in another case."""
    letters = range(len(name))
    one_off = {
        *(name[:at] + name[at + 1 :] for at in letters),
        *(name[: at + 1] + name[at:] for at in letters),
        *(name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :] for at in letters),
        *(name.upper(), name.title(), f"{name}s", name.removesuffix("s"), f"_{name}", f"{name} ", f"{name}[]"),
        *(name.replace("_", "-"), name.replace("-", "_"), name.replace("_", "").replace("-", "")),
    }
    return sorted(one for one in one_off - {name, *taken} if one.strip("_-[] "))


class Sweep:
    """Some of the cases of a sweep, and what was found."""

    def __init__(self, what: str) -> None:
        self._random = random.Random(f"{SEED} {what}")
        self._found: list[str] = []
        self.tried = 0

    def some(self, values: Iterable[_T], most: int) -> list[_T]:
        """So many of the values, drawn."""
        drawn = list(values)
        return self._random.sample(drawn, min(most, len(drawn)))

    def cases(self, cases: Iterable[_T], most: int | None = None) -> Iterator[_T]:
        """The cases in a random order, at most so many."""
        ordered = list(cases)
        self._random.shuffle(ordered)
        for case in ordered[:most]:
            self.tried += 1
            yield case

    def find(self, case: object, what: str) -> None:
        """Note that a case went wrong."""
        self._found.append(f"{what}: {case}")

    def judge(self) -> None:
        """AssertionError with every case that went wrong, as it can be repeated."""
        assert self.tried, "nothing was tried"
        shown = "\n".join(sorted(self._found))
        assert not self._found, f"{len(self._found)} of {self.tried} cases (INPUTS_SEED={SEED}):\n{shown}"


def fault_of(refused: bool, told: str, *names: str) -> str | None:
    """What is wrong with an answer that had to refuse something by one of these names; None if it did."""
    if not refused:
        return f"{names[0]!r} was ignored"
    is_named = any(name.strip().lower() in told.lower() for name in names)
    return None if is_named else f"{names[0]!r} was refused, but not by its name"
