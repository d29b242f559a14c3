import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from service.log.canonical import NotCanonical, canonical, parse_canonical
from tests.support.everyday import every_case


def test_the_example_of_the_rfc() -> None:
    """RFC 8785, 3.2.2 and 3.2.3."""
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert canonical(value) == (
        b'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        b'"string":"\xe2\x82\xac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_members_are_sorted_by_utf_16_code_units() -> None:
    """RFC 8785, 3.2.3: a smiley beyond the basic plane comes before U+FB33."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    assert list(parse_canonical(canonical(dict.fromkeys(names, 0)))) == [
        "\r",
        "1",
        "\u0080",
        "\u00f6",
        "\u20ac",
        "\U0001f600",
        "\ufb33",
    ]


@every_case(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_in_the_rfcs_appendix(bits: str, text: str) -> None:
    """RFC 8785, Appendix B."""
    [value] = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(value) == text.encode()


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        2**53 + 1,
        -(2**53) - 1,
        10**21 + 1,
        10**400,
        {"a": "\ud800"},
        {"\ud800": 1},
        {1: 2},
        {"at": datetime(2026, 1, 1, tzinfo=UTC)},
        [UUID(int=1)],
    ],
    ids=repr,
)
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(NotCanonical):
        canonical(value)


@pytest.mark.parametrize(
    "text", [b'{"a": 1}', b'{"b":1,"a":1}', b'{"a":1.0}', b'{"a":1,"a":1}', b"[]", b"{", b"\xff", b"[" * 100_000]
)
def test_only_the_canonical_text_of_an_object_is_taken(text: bytes) -> None:
    with pytest.raises(NotCanonical):
        parse_canonical(text)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # Whole strings, control characters and those beyond the basic plane, but no half of a surrogate pair.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(_VALUES)
@example(2.0**53)
@example(1.754195995151321e17)
@example(-1e20)
def test_what_was_written_is_read_back(value: Any) -> None:
    """Also whole floats, which JSON returns as integers."""
    text = canonical({"": value})
    assert canonical(parse_canonical(text)) == text


@pytest.mark.parametrize("value", [2.0**53, 1.754195995151321e17, -1e20, 1e21, -1.5e25, 1.7976931348623157e308])
def test_a_whole_float_is_the_same_written_with_all_its_digits(value: float) -> None:
    """As returned by a Postgres column."""
    assert canonical(int(Decimal(repr(value)))) == canonical(value) == rfc8785.dumps(value)


@given(_VALUES)
def test_it_is_what_the_reference_implementation_gives(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


def test_every_character_is_written_as_the_reference_implementation_does() -> None:
    text = "".join(chr(code) for code in range(0x11000) if not 0xD800 <= code < 0xE000)
    assert canonical(text) == rfc8785.dumps(text)
