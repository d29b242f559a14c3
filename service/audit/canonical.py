"""One encoding for one value: RFC 8785, the JSON Canonicalization Scheme, over which leaves are hashed."""

import json
from typing import Any, ClassVar

import rfc8785

from service.errors import LetheError

#: A JSON object.
Document = dict[str, Any]


class NotCanonical(LetheError):
    """A value has no canonical form, or a text is not the canonical form of what it says."""

    slug: ClassVar[str] = "not-canonical"
    title: ClassVar[str] = "Not canonical JSON"


def canonical(value: object) -> bytes:
    """`value` as canonical JSON (RFC 8785), UTF-8.

    Raises NotCanonical for what has no such form: NaN, infinities, integers beyond 2^53, unpaired surrogates.
    """
    try:
        return rfc8785.dumps(value)  # type: ignore[arg-type]
    except rfc8785.CanonicalizationError as error:
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
