"""Which parameters of a test every run takes; the others are for the sweeps."""

from collections.abc import Iterable
from typing import Any

import pytest


def everyday(values: Iterable[Any], *kept: Any) -> list[Any]:
    """The parameters of a test, of which all but the `kept` are marked slow; a tuple is one value for each name."""
    values = list(values)
    assert all(value in values for value in kept), "what is kept for every day is none of the parameters"
    return [value if value in kept else _slow(*value if isinstance(value, tuple) else (value,)) for value in values]


def _slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)
