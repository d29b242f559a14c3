"""Strict JSON: an object with a repeated member is refused, at any depth."""

import json
from contextlib import suppress
from typing import Any, NoReturn

import orjson

from service.errors import InvalidRequest

#: Most characters of a member's name that an error quotes.
_SHOWN = 200


class RepeatedMember(InvalidRequest):
    """A JSON object has two members with the same name, one of which would be ignored."""

    slug = "repeated-member"
    title = "Repeated member"


def parse_json(text: bytes) -> Any:
    """The value of UTF-8 encoded JSON.

    Raises:
        RepeatedMember: an object repeats a member.
        ValueError: it is not JSON.
    """
    with suppress(orjson.JSONDecodeError):
        # Six times as fast as `json`, and parsing blocks all other answers. [1 MiB of numbers: 2.4 ms.]
        value = orjson.loads(text)
        if text.count(b":") == _members(value):
            # As many members as colons, so none was dropped.
            return value
    try:
        # Also reads lone surrogates, which orjson does not: the schema refuses them and says where they are.
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def _members(value: Any) -> int:
    """The number of members of a value, without those inside lists; such values take the slow path."""
    count, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            count += len(one)
            left.extend(inner for inner in one.values() if isinstance(inner, dict))
    return count


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)[:_SHOWN]
        raise RepeatedMember(
            f"The member `{twice}` is given more than once in one object.", "Give it once, with its complete value."
        )
    return value


def _no_number(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not a JSON number", "", 0)
