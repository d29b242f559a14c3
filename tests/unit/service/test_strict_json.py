"""JSON as people write it: nothing in it is dropped."""

import json
from typing import Any

import pytest

from service.log.canonical import RepeatedMember, parse_json


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"nodes": ["20"], "nodes": ["21"]}', "nodes"),
        (b'{"nodes": ["a:b"], "nodes": ["a:b"]}', "nodes"),
        (b'{"salts": {"nodes": {"7": "x", "7": "y"}}}', "7"),
        (b'[[{"a": 1}, {"b": {"c": [{"d": 1, "e": 2, "d": 3}]}}]]', "d"),
        (b'{"a": 1, "\\u0061": 2}', "a"),
        (b'{"": 1, "": 1}', ""),
    ],
)
def test_a_member_given_twice_is_refused_by_name_at_any_depth(text: bytes, name: str) -> None:
    with pytest.raises(RepeatedMember, match=f"`{name}`"):
        parse_json(text)


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "node", "nodes": ["urn:user:1", "b"], "salts": {"nodes": {"a": "1"}, "reference": None}},
        [{"a": 1}, {"a": 2}],
        {"a": {"a": {"a": 1}}},
        [],
        "a:b",
        0.1,
        None,
    ],
)
def test_all_else_is_read_as_it_is(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=2)):
        assert parse_json(text.encode()) == value
        assert parse_json(b"\xef\xbb\xbf" + text.encode()) == value


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a": NaN}', b"[" * 100_000, b'{"a":' * 100_000, '{"a": 1}'.encode("utf-16"), b'"\xff"']
)
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
