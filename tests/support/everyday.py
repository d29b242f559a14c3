"""Which tests, and which parameters of them, run without `--slow`."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import combinations, product
from typing import Any

import pytest

#: The `-m` of pyproject.toml, and that of `--ci`.
EVERYDAY, CI = "not slow and not ci", "not slow"
#: For each of them: the marks of the tests that it leaves out.
LEFT_OUT = {EVERYDAY: ("ci", "slow"), CI: ("slow",)}


def everyday(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Mark all parameters of a test except the `kept` as slow; a tuple is one value for each name."""
    values = list(values)
    assert all(value in values for value in kept), "what is kept for every day is none of the parameters"
    return [value if value in kept else _slow(*value if isinstance(value, tuple) else (value,)) for value in values]


def every_pair(**choices: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize by all products of the choices; those beyond a few that cover every pair of values are slow."""
    places = {name: range(len(values)) for name, values in choices.items()}
    kept = [tuple(choice.values()) for choice in covering(places, lambda _: True)]
    cases = [tuple(choice.values()) for choice in products(places)]

    def values(places: tuple[Any, ...]) -> list[Any]:
        return [values[place] for values, place in zip(choices.values(), places, strict=True)]

    marked = [pytest.param(*values(case)) if case in kept else _slow(*values(case)) for case in cases]
    return pytest.mark.parametrize(tuple(choices), marked)


def covering(
    choices: Mapping[str, Sequence[object]], allowed: Callable[[Mapping[str, object]], bool]
) -> list[dict[str, object]]:
    """Return a few allowed products of `choices` that cover every allowed pair, found greedily; deterministic."""
    candidates = [choice for choice in products(choices) if allowed(choice)]
    pairs = [set(combinations(choice.items(), 2)) for choice in candidates]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(candidates)), key=lambda number: len(pairs[number] & missing))
        missing -= pairs[best]
        chosen.append(candidates[best])
    return chosen


def products(choices: Mapping[str, Sequence[object]]) -> Iterator[dict[str, object]]:
    """Yield all combinations of one value of each choice."""
    return (dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


def _slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def every_case(
    names: str | tuple[str, ...], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`pytest.mark.parametrize` as a single item, which takes a fraction of the time; a failure names its case.

    For tests with many quick cases that share their fixtures.
    """
    names = (names,) if isinstance(names, str) else names
    cases = [value if len(names) > 1 else (value,) for value in values]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**given: Any) -> None:
            for case in cases:
                named = dict(zip(names, case, strict=True))
                try:
                    test(**named, **given)
                except Exception as error:
                    error.add_note(f"where {', '.join(f'{name} = {value!r}' for name, value in named.items())}")
                    raise

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # what pytest looks at
        return run

    return decorate
