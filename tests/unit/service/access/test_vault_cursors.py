from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.access.cursors import PageCursor, decode, encode
from service.errors import MalformedCursor

KEY = bytes(range(32))


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(9999, 1, 1)), st.uuids())
def test_a_cursor_keeps_its_time_to_the_microsecond(moment: datetime, request_id: UUID) -> None:
    cursor = PageCursor(moment.replace(tzinfo=UTC), request_id)
    assert decode(encode(cursor, KEY), KEY) == cursor


def test_every_altered_character_is_noticed() -> None:
    text = encode(PageCursor(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=1), uuid4()), KEY)
    for position in range(len(text)):
        for replacement in "Ab0-_":
            altered = text[:position] + replacement + text[position + 1 :]
            if altered != text:
                with pytest.raises(MalformedCursor):
                    decode(altered, KEY)


@pytest.mark.parametrize("text", ["", "A", "====", "ä", "A" * 54, "A" * 5000, "!!!", "\n", "null"])
def test_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(MalformedCursor):
        decode(text, KEY)


def test_a_cursor_of_another_installation_is_refused() -> None:
    text = encode(PageCursor(datetime(2026, 1, 1, tzinfo=UTC), uuid4()), KEY)
    with pytest.raises(MalformedCursor):
        decode(text, bytes(32))
