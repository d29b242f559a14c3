"""Text for people: finds and escapes characters that are invisible or change the text around them."""

import json
import re

#: Unicode's categories Cc, Cf, Zl and Zp, as the inside of a character class for both Python and JSON Schema.
UNSHOWN = (
    r"\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"
)
_UNSHOWN = re.compile(f"[{UNSHOWN}]")
#: The same and lone surrogates, which cannot be written to files, but without line breaks.
_UNPRINTED = re.compile(f"(?!\n)[{UNSHOWN}\ud800-\udfff]")


def fault_of(text: str) -> str | None:
    """The fault of text for people, as "must not contain …"; None if it has no invisible characters."""
    found = _UNSHOWN.search(text)
    return found and f"must not contain U+{ord(found[0]):04X}, an invisible or control character"


def visible(text: str) -> str:
    """`text` with these characters escaped, for terminals and papers; line breaks stay."""
    return _UNPRINTED.sub(lambda found: ascii(found[0])[1:-1], text)


def json_for_terminals(document: bytes) -> str:
    """The same JSON with these characters as JSON escapes; those below U+0020 are always escaped in JSON."""
    return _UNSHOWN.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] > "\x7e" else found[0], document.decode())
