"""Checks of a request's head, made before the body is read: nothing ambiguous, nothing that would be ignored."""

import re
from collections import Counter

from starlette.types import Scope

from service.errors import LetheError

#: Fields with a single value. Lists, which may be sent in several fields, are not among them.
_SINGLE = frozenset(
    name.encode()
    for name in (
        *("authorization", "content-encoding", "content-length", "content-type", "host", "idempotency-key"),
        *("if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-event-id"),
        *("origin", "range", "sec-fetch-site", "transfer-encoding"),
        *("hx-current-url", "hx-request", "hx-target", "hx-trigger", "lethe-shown"),
    )
)

_CHARSET = re.compile(rb';\s*charset\s*=\s*"?([^";\s]*)')
#: Names of UTF-8, and of ASCII, its subset.
_UTF_8 = (b"utf-8", b"utf8", b"us-ascii", b"ascii")


class MalformedRequest(LetheError):
    """The head of a request is ambiguous."""

    status = 400
    slug = "malformed-request"
    title = "Malformed request"


class UnsupportedCoding(LetheError):
    """The body is compressed, or its text is not UTF-8."""

    status = 415
    slug = "unsupported-coding"
    title = "Unsupported content coding"


def require_plain_head(scope: Scope) -> None:
    """Raise MalformedRequest for an ambiguous head, UnsupportedCoding for a body that is compressed or not UTF-8."""
    times = Counter(name for name, _ in scope["headers"])
    repeated = sorted(name.decode() for name in times.keys() & _SINGLE if times[name] > 1)
    if repeated:
        raise MalformedRequest(
            f"The header field {repeated[0]} occurs {times[repeated[0].encode()]} times.", "Send it once."
        )
    if scope["http_version"] == "1.1" and not times[b"host"]:
        raise MalformedRequest("The request has no Host field, which HTTP/1.1 requires.", "Send one.")
    fields = dict(scope["headers"])
    for name, plain in (("Content-Encoding", b"identity"), ("Transfer-Encoding", b"chunked")):
        if fields.get(name.lower().encode(), plain).strip().lower() != plain:
            raise UnsupportedCoding(f"{name} declares a compressed or encoded body.", "Send the body unencoded.")
    charset = _CHARSET.search(fields.get(b"content-type", b"").lower())
    if charset is not None and charset[1] not in _UTF_8:
        raise UnsupportedCoding("The charset in Content-Type is not UTF-8.", "Send UTF-8, and omit the charset.")
