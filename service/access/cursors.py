"""Page cursors: the start of the next page, signed so that only cursors issued by this installation are accepted."""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from service.errors import MalformedCursor

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TAG_BYTES = 16
_POSITION_BYTES = 24


@dataclass(frozen=True)
class PageCursor:
    """The last row of a page of requests."""

    #: Requests are sorted by this time.
    at: datetime
    id: UUID


class Cursors:
    """The cursors of one query; those of other queries are refused."""

    def __init__(self, secret: bytes, query: str) -> None:
        """`secret` is the keyring's cursor key; `query` names the query, and its caller if others get other rows."""
        self._key = hmac.digest(secret, query.encode(), hashlib.sha256)

    def read(self, text: str | None) -> PageCursor | None:
        """Return the start of the requested page; None for the first. Raises `MalformedCursor`."""
        return decode(text, self._key) if text else None

    def write(self, cursor: PageCursor | None) -> str | None:
        """Return the text of a cursor; None after the last page."""
        return None if cursor is None else encode(cursor, self._key)


def encode(cursor: PageCursor, key: bytes) -> str:
    """Return `cursor` as url-safe text of 54 characters, signed with `key`."""
    microseconds = (cursor.at - _EPOCH) // _MICROSECOND
    position = microseconds.to_bytes(8, "big", signed=True) + cursor.id.bytes
    return base64.urlsafe_b64encode(position + _tag(position, key)).decode("ascii").rstrip("=")


def decode(text: str, key: bytes) -> PageCursor:
    """Return the cursor that `encode` encoded. Raises `MalformedCursor` for any other text or key."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _malformed() from None
    position, tag = raw[:_POSITION_BYTES], raw[_POSITION_BYTES:]
    canonical = base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=") == text
    if not canonical or not hmac.compare_digest(tag, _tag(position, key)):
        raise _malformed()
    microseconds = int.from_bytes(position[:8], "big", signed=True)
    return PageCursor(_EPOCH + microseconds * _MICROSECOND, UUID(bytes=position[8:]))


def _tag(position: bytes, key: bytes) -> bytes:
    return hmac.digest(key, b"lethe/page-cursor" + position, hashlib.sha256)[:_TAG_BYTES]


def _malformed() -> MalformedCursor:
    return MalformedCursor("This server did not issue the cursor.", "Start again from the first page.")
