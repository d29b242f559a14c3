"""Sign-in with an API key, and every sign-out."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.access.key_memory import valid_key
from service.access.oidc.issuer import IssuerUnavailable
from service.access.sessions import SessionRepository
from service.db.transactions import transaction
from service.domain.formats import duration
from service.domain.scopes import Scope
from service.errors import TooManyAttempts, Unauthenticated
from service.web.dashboard.pages import Page, public_page, url_with
from service.web.dashboard.signing_in import (
    FORM_COOKIE,
    ID_TOKEN_COOKIE,
    PATH,
    SESSION_COOKIE,
    delete_cookie,
    form_of,
    is_form_token,
    new_form_token,
    own_page,
    set_cookie,
)
from service.web.services import services_of

router = APIRouter(prefix=PATH, route_class=Page, include_in_schema=False)

_log = structlog.stdlib.get_logger(__name__)


@router.get("/login")
async def login_page(request: Request, after: Annotated[str, Query(alias="next")] = PATH) -> Response:
    """The form for an API key."""
    return _form(request, after)


@router.post("/login")
async def login(request: Request) -> Response:
    """Begin a session with a valid key that has audit:read; failed attempts are limited per address."""
    fields = await form_of(request, request.cookies.get(FORM_COOKIE, ""), "user", "key", "next")
    after = own_page(fields.get("next", PATH))
    services = services_of(request)
    try:
        key = await valid_key(fields.get("key", "").strip(), request, services.keys, services.limits)
    except TooManyAttempts as refusal:
        _log.warning("dashboard.sign_in_throttled")
        wait_s = int(refusal.extra["retry_after"])
        fault = f"Your address has sent too many unknown keys. Try again in {duration(wait_s)}."
        response = _form(request, after, status=429, fault=fault)
        response.headers["Retry-After"] = str(wait_s)
        return response
    except Unauthenticated:
        _log.warning("dashboard.sign_in_failed")
        return _form(request, after, status=401, fault="This key is unknown or revoked.")
    if Scope.AUDIT_READ not in key.scopes:
        fault = "This key is valid but lacks the scope audit:read. Ask for one that has it."
        return _form(request, after, status=403, fault=fault)
    async with transaction(services.engine) as connection:
        token = await SessionRepository(connection, services.keyring).start(key.id)
    response = RedirectResponse(after, 303)
    set_cookie(request, response, SESSION_COOKIE, token)
    delete_cookie(request, response, FORM_COOKIE)
    return response


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the session, and the one at the issuer where it began."""
    token = request.cookies.get(SESSION_COOKIE, "")
    services = services_of(request)
    async with transaction(services.engine) as connection:
        session = await SessionRepository(connection, services.keyring).find(token, services.still_granted)
    if session is not None:
        await form_of(request, session.form_token)
        async with transaction(services.engine) as connection:
            await SessionRepository(connection, services.keyring).end(token)
    response: Response = RedirectResponse(f"{PATH}/login", 303)
    if session is not None and session.key.is_subject and (elsewhere := await _end_at_issuer(request)):
        # A page instead of a redirect, because a form of this site may lead only to this site.
        response = public_page("continue.html", title="Signed out of Lethe", url=elsewhere)
    # A form of another site comes without these cookies, and must not sign the user out.
    for name in {SESSION_COOKIE, ID_TOKEN_COOKIE} & request.cookies.keys():
        delete_cookie(request, response, name)
    return response


async def _end_at_issuer(request: Request) -> str | None:
    """Return the issuer's address that ends the session there; None if it has none or does not answer."""
    openid = services_of(request).openid
    if openid is None or openid.sign_on is None:
        return None
    try:
        return await openid.sign_on.ending(request.cookies.get(ID_TOKEN_COOKIE, ""))
    except IssuerUnavailable as failure:
        _log.warning("dashboard.session_not_ended_at_issuer", reason=failure.detail)
        return None


def _form(request: Request, after: str, *, status: int = 200, fault: str = "") -> Response:
    form_token = request.cookies.get(FORM_COOKIE, "")
    if not is_form_token(form_token):
        form_token = new_form_token()
    openid, page = services_of(request).openid, own_page(after)
    sign_on = None if openid is None or openid.sign_on is None else url_with(f"{PATH}/sign-on", {"next": page})
    response = public_page("login.html", status=status, form_token=form_token, next=page, fault=fault, sign_on=sign_on)
    set_cookie(request, response, FORM_COOKIE, form_token)
    return response
