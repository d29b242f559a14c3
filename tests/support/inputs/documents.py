"""JSON documents with members unknown, misspelled, missing, duplicated and of other types, at every depth."""

import json
from collections.abc import Iterator
from typing import Any

from tests.support.inputs.variations import UNKNOWN, Sweep, misspellings

#: Values of every type of JSON.
STRANGE: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**70, "", "x", "1", [], [[]], [None], ["x"], [1], {}, {"a": 1}, "\x00", "\u202e",
)  # fmt: skip


class Twice(dict[str, Any]):
    """An object whose member `name` appears twice, with the value `first` before all others."""

    def __init__(self, members: dict[str, Any], name: str, first: Any) -> None:
        super().__init__(members)
        self.written = [(name, first), *members.items()]


def text(value: Any) -> str:
    """Format as JSON, with duplicate members."""
    if isinstance(value, Twice):
        return "{" + ", ".join(f"{json.dumps(name)}: {text(each)}" for name, each in value.written) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {text(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(text, value)) + "]"
    return json.dumps(value)


def changed(value: Any, sweep: Sweep, most: int) -> Iterator[tuple[Any, str]]:
    """Yield the document with each member of each object changed in some ways, and the name of the change."""
    if isinstance(value, list):
        for at, each in enumerate(value):
            for other, name in changed(each, sweep, most):
                yield [*value[:at], other, *value[at + 1 :]], name
    if not isinstance(value, dict):
        return
    yield {**value, UNKNOWN: 1}, UNKNOWN
    for name, each in value.items():
        others = {one: inner for one, inner in value.items() if one != name}
        yield others, name
        yield Twice(value, name, each), name
        yield Twice(value, name, "x"), name
        for misspelled in sweep.some(misspellings(name, value), most):
            yield {**others, misspelled: each}, name
        for strange in sweep.some(STRANGE, most):
            if strange != each or type(strange) is not type(each):
                yield {**value, name: strange}, name
        for other, inner in changed(each, sweep, most):
            yield {**value, name: other}, inner
