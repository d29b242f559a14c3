"""One encoding for one value: RFC 8785, the JSON Canonicalization Scheme, over which leaves are hashed."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import orjson
import rfc8785

from service.errors import LetheError

#: A JSON object.
Document = dict[str, Any]

#: The largest whole number that every reader of JSON takes as it is written.
_MOST = 2**53 - 1


class NotCanonical(LetheError):
    """A value has no canonical form, or a text is not the canonical form of what it says."""

    slug: ClassVar[str] = "not-canonical"
    title: ClassVar[str] = "Not canonical JSON"


def canonical(value: object) -> bytes:
    """`value` as canonical JSON (RFC 8785), UTF-8.

    Raises NotCanonical for what has no such form: NaN, infinities, integers beyond 2^53, unpaired surrogates.
    """
    try:
        return _encoded(value)
    except (rfc8785.CanonicalizationError, orjson.JSONEncodeError, UnicodeEncodeError, RecursionError) as error:
        raise NotCanonical(f"It cannot be written as canonical JSON: {error}.", "Correct the value.") from None


def parse_canonical(text: bytes) -> Document:
    """The object that `text` is the canonical form of; raises NotCanonical for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise NotCanonical("It is not JSON.", "It was changed after it was written.") from None
    if not isinstance(value, dict) or canonical(value) != text:
        raise NotCanonical("It is not an object in canonical JSON.", "It was changed after it was written.")
    return value


def _encoded(value: object) -> bytes:
    """What `rfc8785.dumps` gives, faster: a leaf has fifty members, and most of them are those of its neighbours."""
    encode = _ENCODERS.get(type(value))
    return rfc8785.dumps(value) if encode is None else encode(value)  # type: ignore[arg-type]


def _object(members: dict[Any, Any]) -> bytes:
    if not all(map(_is_plain, members)):
        # Names are sorted by UTF-16 code units, which for these is not the order of code points.
        return rfc8785.dumps(members)
    return b"{%b}" % b",".join([_name(name) + _encoded(members[name]) for name in sorted(members)])


def _array(values: Sequence[Any]) -> bytes:
    return b"[%b]" % b",".join([_encoded(each) for each in values])


def _integer(value: int) -> bytes:
    return b"%d" % value if -_MOST <= value <= _MOST else rfc8785.dumps(value)


@lru_cache(maxsize=4096)
def _number(value: float) -> bytes:
    """As ECMAScript writes it. The figures of a batch are in the leaves of all its requests."""
    return rfc8785.dumps(value)


@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    return orjson.dumps(name) + b":"


@lru_cache(maxsize=1024)
def _is_plain(name: object) -> bool:
    return isinstance(name, str) and name.isascii()


#: By the very type of a value. Both ways escape quotation marks, backslashes and control characters of texts, alike.
_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    str: orjson.dumps,
    float: _number,
    int: _integer,
    bool: lambda value: b"true" if value else b"false",
    type(None): lambda value: b"null",
    dict: _object,
    list: _array,
    tuple: _array,
}
