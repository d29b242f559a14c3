"""Text for people: find and escape invisible characters, and phrase validation messages plainly."""

import json
import re
from collections.abc import Mapping
from typing import Any

#: Unicode's categories Cc, Cf, Zl and Zp, as the inside of a character class for both Python and JSON Schema.
UNSHOWN = (
    r"\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"
)
_UNSHOWN = re.compile(f"[{UNSHOWN}]")
#: The same plus lone surrogates, which cannot be written to files, but without line breaks.
_UNPRINTED = re.compile(f"(?!\n)[{UNSHOWN}\ud800-\udfff]")


def fault_of(text: str) -> str | None:
    """Return the fault of `text` as "must not contain …"; None if it has no invisible characters."""
    found = _UNSHOWN.search(text)
    return found and f"must not contain U+{ord(found[0]):04X}, an invisible or control character"


def visible(text: str) -> str:
    """Return `text` with invisible characters and lone surrogates escaped, for terminals and papers."""
    return _UNPRINTED.sub(lambda found: ascii(found[0])[1:-1], text)


def json_for_terminals(document: bytes) -> str:
    """Return the same JSON with invisible characters as JSON escapes. JSON always escapes those below U+0020."""
    return _UNSHOWN.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] > "\x7e" else found[0], document.decode())


#: Messages by pydantic's fault type; `{error}` and `{msg}` come from our own validators.
_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is unknown here",
    "union_tag_invalid": "must have {discriminator} as one of {expected_tags}",
    "union_tag_not_found": "must have {discriminator}; /docs lists its values",
    **dict.fromkeys(("literal_error", "enum"), "must be {expected}"),
    **dict.fromkeys(("string_type", "string_sub_type", "string_unicode"), "must be text"),
    "string_pattern_mismatch": "must have the form that /docs gives",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dict_type", "dict_attributes_type"), "must be a JSON object"
    ),
    "list_type": "must be a list",
    "too_short": "must name at least {min_length}",
    "too_long": "must name at most {max_length}",
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_parsing_size", "int_from_float", "int_precision_loss"),
        "must be a whole number",
    ),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), "must be a finite number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    **dict.fromkeys(("uuid_type", "uuid_parsing", "uuid_version"), "must be a UUID, as in answers"),
    **dict.fromkeys(("path_type",), "must be a path"),
    **dict.fromkeys(
        ("date_type", "date_parsing", "date_from_datetime_parsing", "date_from_datetime_inexact"),
        "must be a day that exists, such as 2026-11-20",
    ),
    **dict.fromkeys(
        ("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "datetime_object_invalid"),
        "must be a time that exists, such as 2026-11-20T00:00:00Z",
    ),
    "timezone_aware": "must have its offset from UTC, such as 2026-11-20T00:00:00Z",
    "value_error": "{error}",
    **dict.fromkeys(("too_many_members", "empty_window", "empty_range", "empty_request"), "{msg}"),
}


def in_words(fault: Mapping[str, Any]) -> str:
    """Return the message for pydantic's description of a fault; never quotes the value."""
    words = _WORDS.get(fault["type"], "is not valid here; see the documentation")
    shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in fault.get("ctx", {}).items()}
    return words.format(**shown, msg=fault["msg"])
