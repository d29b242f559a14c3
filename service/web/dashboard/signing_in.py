"""Dashboard sessions and forms: every page needs a session with a valid key, and forms need its token."""

import hmac
import re
import secrets
from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import Response

from service.access.sessions import LIFETIME, Session, SessionRepository
from service.db.transactions import transaction
from service.domain.scopes import Scope
from service.errors import InvalidRequest, LetheError
from service.web.problems import LONGEST_PART
from service.web.services import services_of

#: Holds the session token; sent only to dashboard paths.
SESSION_COOKIE = "lethe_session"
#: Holds the form token of the sign-in page, before a session exists.
FORM_COOKIE = "lethe_login"
#: Holds the ID token of a session that began at an issuer, to end it there. Lethe itself stores none.
ID_TOKEN_COOKIE = "lethe_id_token"
PATH = "/dashboard"
#: Maximum size of a form in bytes.
_LONGEST_FORM = 65_536
#: Maximum number of its fields.
_MOST_FIELDS = 16


class LoginNeeded(Exception):
    """Nobody is signed in, or the session has ended."""


class ForgedForm(LetheError):
    """A form that no page of this session made."""

    status = 403
    slug = "foreign-form"
    title = "Form refused"


async def signed_in(request: Request) -> Session:
    """Return the visitor's session. Raises LoginNeeded without a current session, and Unavailable."""
    token = request.cookies.get(SESSION_COOKIE, "")
    if not token:
        raise LoginNeeded
    services = services_of(request)
    async with transaction(services.engine) as connection:
        session = await SessionRepository(connection, services.keyring).find(token, services.still_granted)
    if session is None or Scope.AUDIT_READ not in session.key.scopes:
        raise LoginNeeded
    return session


SignedIn = Annotated[Session, Depends(signed_in)]


async def form_of(request: Request, form_token: str, *names: str) -> dict[str, str]:
    """Return the fields of a dashboard form; only `names` are allowed, each at most once.

    Raises ForgedForm unless a page of this origin sent it with its token, and InvalidRequest for repeated or unknown
    fields.
    """
    if not _same_origin(request):
        raise ForgedForm("The form was sent by another site.", "Open the dashboard itself, and try again there.")
    if not form_token:
        raise _too_old()
    too_large = ForgedForm("The form is larger than any of the dashboard's.", "Go back and try again.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_FORM:
            raise too_large
    try:
        sent = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise too_large from None
    fields = dict(sent)
    presented = fields.pop("form_token", "")
    if not hmac.compare_digest(presented.encode(), form_token.encode()):
        raise _too_old()
    if len(sent) > 1 + len(fields):
        names_sent = [name for name, _ in sent]
        twice = next(name for name in names_sent if names_sent.count(name) > 1)[:LONGEST_PART]
        raise InvalidRequest(f"The form repeats the field `{twice}`.", "Reload the page, and send its form.")
    if unknown := fields.keys() - {*names}:
        raise InvalidRequest(
            f"The form has no field `{min(unknown)[:LONGEST_PART]}`.", "Reload the page, and send its form."
        )
    return fields


def _too_old() -> ForgedForm:
    return ForgedForm(
        "The page that this form belongs to is too old.", "Go back, load the page again, and repeat what you did."
    )


def new_form_token() -> str:
    """Return 256 random bits for the sign-in form."""
    return secrets.token_urlsafe(32)


def is_form_token(text: str) -> bool:
    """Return whether a cookie looks like a form token, since a browser may send anything."""
    return re.fullmatch(r"[A-Za-z0-9_-]{43}", text) is not None


def set_cookie(
    request: Request,
    response: Response,
    name: str,
    value: str,
    *,
    lasts: timedelta = LIFETIME,
    samesite: Literal["strict", "lax"] = "strict",
) -> None:
    """Set a cookie that scripts cannot read and other sites' pages do not send; `lax`: but for links to this site."""
    response.set_cookie(
        name,
        value,
        max_age=int(lasts.total_seconds()),
        path=PATH,
        httponly=True,
        samesite=samesite,
        secure=_encrypted(request),
    )


def delete_cookie(request: Request, response: Response, name: str) -> None:
    """Make the browser delete a cookie."""
    response.delete_cookie(name, path=PATH, httponly=True, samesite="strict", secure=_encrypted(request))


def own_page(path: str) -> str:
    """Return `path` if it is a dashboard page, else the overview: redirects never lead elsewhere."""
    try:
        parts = urlsplit(path)
    except ValueError:
        # Half an IPv6 address, for example.
        return PATH
    inside = parts.path == PATH or parts.path.startswith(f"{PATH}/")
    plain = not (parts.scheme or parts.netloc) and "\\" not in path and path.isprintable() and ".." not in parts.path
    return path if inside and plain else PATH


def _same_origin(request: Request) -> bool:
    """Return whether a page of this origin sent the request; browsers declare the origin of every POST."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    try:
        origin = urlsplit(request.headers.get("origin", "")).netloc
    except ValueError:
        return False
    return bool(origin) and origin == request.headers.get("host")


def _encrypted(request: Request) -> bool:
    """Return whether the browser used https, possibly through a proxy; a false claim only loses the cookie."""
    # Not `request.url`: it derives from the Host header, which may hold anything.
    return request.scope["scheme"] == "https" or request.headers.get("x-forwarded-proto", "").lower() == "https"
