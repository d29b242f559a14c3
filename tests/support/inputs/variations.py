"""Typical mistakes in names and values, the same for the same seed; and the list of wrongly accepted cases."""

import os
import random
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

#: Another seed sweeps other cases. A failing case is printed with its seed.
SEED = int(os.environ.get("INPUTS_SEED", "1"))
#: A name that does not exist.
UNKNOWN = "frobnicate"
#: Values that a page or a shell sends by accident, and values of unusual types.
VALUES = (
    "", " ", "x", "-1", "0", "1.5", "1e9", "1e999", "NaN", "0x10", "１２", "true", "null", "[]", "{}", "9" * 40,
    "2026-02-30", "2026-11-20T00:00:00", "a\x00b", "a\nb", "\u202e1", "é" * 300,
)  # fmt: skip

_T = TypeVar("_T")


def misspellings(name: str, taken: Collection[str]) -> list[str]:
    """Return typical typos of `name`, none of them in `taken`: letters missing, doubled, swapped or in another case."""
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
    """A sample of a sweep's cases, and the failures."""

    def __init__(self, what: str) -> None:
        self._random = random.Random(f"{SEED} {what}")
        self._found: list[str] = []
        self.tried = 0

    def some(self, values: Iterable[_T], most: int) -> list[_T]:
        """Draw at most `most` of the values."""
        drawn = list(values)
        return self._random.sample(drawn, min(most, len(drawn)))

    def cases(self, cases: Iterable[_T], most: int | None = None) -> Iterator[_T]:
        """Yield the cases in a random order, at most `most`."""
        ordered = list(cases)
        self._random.shuffle(ordered)
        for case in ordered[:most]:
            self.tried += 1
            yield case

    def find(self, case: object, what: str) -> None:
        """Record a failed case."""
        self._found.append(f"{what}: {case}")

    def judge(self) -> None:
        """Raise AssertionError with every failed case, in a form that repeats it."""
        assert self.tried, "nothing was tried"
        shown = "\n".join(sorted(self._found))
        assert not self._found, f"{len(self._found)} of {self.tried} cases (INPUTS_SEED={SEED}):\n{shown}"


def fault_of(refused: bool, text: str, *names: str) -> str | None:
    """Return what is wrong with an answer that had to refuse one of these names; None if it did."""
    if not refused:
        return f"{names[0]!r} was ignored"
    is_named = any(name.strip().lower() in text.lower() for name in names)
    return None if is_named else f"{names[0]!r} was refused, but not by its name"
