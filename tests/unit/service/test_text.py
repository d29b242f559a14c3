"""Text for people is what it looks like."""

import json
import re
import sys
import unicodedata

from service.text import UNSHOWN, fault_of, json_for_terminals, visible

_CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1)]
_REFUSED = [one for one in _CHARACTERS if unicodedata.category(one) in ("Cc", "Cf", "Zl", "Zp")]


def test_every_control_format_and_separator_character_of_unicode_is_refused() -> None:
    assert len(_REFUSED) > 200
    assert [one for one in _REFUSED if fault_of(f"a{one}b") is None] == []
    assert fault_of("a\u202eb") == "must not contain U+202E, an invisible or control character"


def test_no_character_that_is_shown_is_refused() -> None:
    shown = [one for one in _CHARACTERS if unicodedata.category(one)[0] in "LMNPS" or one in " \xa0\u3000"]
    assert [one for one in shown if fault_of(one) is not None] == []


def test_the_schema_has_the_same_characters() -> None:
    pattern = re.compile(f"[{UNSHOWN}]")
    assert all(map(pattern.match, _REFUSED))


def test_what_is_printed_holds_no_such_character_but_line_breaks() -> None:
    text = "".join(_REFUSED) + "\ud800 Åse 😀\u3000"
    printed = visible(text)
    assert [one for one in printed if one in {*_REFUSED, "\ud800"} - {"\n"}] == []
    assert printed.endswith(r"\ud800 Åse 😀" + "\u3000")
    assert visible("a\u202eb\x9b\x1b[2J\nc") == "a\\u202eb\\x9b\\x1b[2J\nc"


def test_json_for_a_terminal_says_the_same() -> None:
    document = {"node": "".join(_REFUSED) + "ålesund 39"}
    for text in (json.dumps(document, ensure_ascii=False), json.dumps(document, ensure_ascii=False, indent=1)):
        printed = json_for_terminals(text.encode())
        assert json.loads(printed) == document
        assert [one for one in printed if one in _REFUSED and one not in "\n\x7f"] == []
