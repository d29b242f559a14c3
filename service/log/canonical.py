"""JSON: canonical output (RFC 8785), as hashed into leaves, and strict input without repeated members."""

import json
import math
from decimal import Decimal
from functools import lru_cache
from typing import Any, NoReturn

import orjson

from service.errors import InvalidRequest, LetheError

#: Largest integer that orjson accepts as canonical.
_LARGEST = 2**53 - 1
#: A JSON object.
Document = dict[str, Any]


class NotCanonical(LetheError):
    """A value has no canonical form, or a text is not canonical."""


def canonical(value: object) -> bytes:
    """Return `value` as canonical JSON (RFC 8785), UTF-8.

    Raises NotCanonical for values without such a form: NaN, infinities, unpaired surrogates, and integers beyond 2^53
    that do not equal a float's shortest digits.
    """
    try:
        return orjson.dumps(_ordered(value), option=orjson.OPT_STRICT_INTEGER)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotCanonical(f"It cannot be written as canonical JSON: {error}.", "Correct the value.") from None


def parse_canonical(text: bytes) -> Document:
    """Return the object whose canonical form is `text`. Raises NotCanonical for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise NotCanonical("The text is not JSON.", "It was changed after Lethe wrote it.") from None
    if not isinstance(value, dict) or canonical(value) != text:
        raise NotCanonical("The text is not a canonical JSON object.", "It was changed after Lethe wrote it.")
    return value


def _ordered(value: Any) -> Any:
    """Sort members and write numbers canonically, which is all that orjson does differently."""
    if isinstance(value, dict):
        # RFC 8785 sorts by UTF-16 code units. For ASCII names this is the character order.
        order = None if "".join(value).isascii() else _utf_16
        return {name: _ordered(value[name]) for name in sorted(value, key=order)}
    if isinstance(value, list | tuple):
        return [_ordered(each) for each in value]
    if isinstance(value, float):
        return orjson.Fragment(_number(value))
    # Postgres returns whole floats of any size as integers.
    if isinstance(value, int) and abs(value) > _LARGEST and Decimal(float.__repr__(float(value))) == value:
        return orjson.Fragment(_number(float(value)))
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _utf_16(name: str) -> bytes:
    return name.encode("utf-16-be")


@lru_cache(maxsize=4096)
def _number(value: float) -> bytes:
    """Format like ECMAScript's `Number::toString`. Cached, because all leaves of a batch repeat its figures."""
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    if value == 0:
        return b"0"
    # Python's shortest round-trip digits are those of ECMAScript.
    negative, figures, exponent = Decimal(float.__repr__(value)).normalize().as_tuple()
    digits, point = "".join(map(str, figures)), len(figures) + int(exponent)
    if 0 < point <= 21:
        text = digits.ljust(point, "0") if point >= len(digits) else f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        text = f"{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{point - 1:+d}"
    return f"{'-' * negative}{text}".encode()


#: Most characters of a member's name that an error quotes.
_SHOWN = 200


class RepeatedMember(InvalidRequest):
    """A JSON object has two members with the same name, one of which would be ignored."""

    slug = "repeated-member"
    title = "Repeated member"


def parse_json(text: bytes) -> Any:
    """Parse UTF-8 encoded JSON.

    Raises:
        RepeatedMember: an object repeats a member.
        ValueError: the text is not JSON.
    """
    try:
        # Reads lone surrogates too; the schema then refuses them and reports where they are.
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


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
