"""Sign-in at the issuer of OpenID Connect, and the way back."""

from datetime import timedelta
from typing import Annotated
from urllib.parse import quote, unquote

import structlog
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.access.limits import GUESSES, network_of
from service.access.oidc.sign_on import Attempt, SignOn
from service.access.sessions import SessionRepository
from service.db.transactions import transaction
from service.domain.scopes import Scope
from service.errors import MissingScope, NotFound, Unauthenticated
from service.web.dashboard.pages import Page, public_page
from service.web.dashboard.signing_in import (
    ID_TOKEN_COOKIE,
    PATH,
    SESSION_COOKIE,
    delete_cookie,
    is_form_token,
    new_form_token,
    own_page,
    set_cookie,
)
from service.web.services import OpenIdConnect, services_of

#: Holds the secret of a sign-in under way and the page to return to.
ATTEMPT_COOKIE = "lethe_sign_on"
#: Time to sign in at the issuer.
_ATTEMPT_LASTS = timedelta(minutes=15)
#: An ID token longer than this is not kept: browsers refuse cookies above 4,096 bytes.
_LONGEST_COOKIE = 3_800

router = APIRouter(prefix=f"{PATH}/sign-on", route_class=Page, include_in_schema=False)

_log = structlog.stdlib.get_logger(__name__)


@router.get("")
async def begin(request: Request, after: Annotated[str, Query(alias="next")] = PATH) -> Response:
    """Send the browser to the issuer."""
    attempt = Attempt(new_form_token())
    response = RedirectResponse(await _sign_on(request)[1].begin(attempt), 303)
    # Browsers send strict cookies only from pages of this site, and the issuer's is none.
    value = f"{attempt.secret}.{quote(own_page(after), safe='')}"
    set_cookie(request, response, ATTEMPT_COOKIE, value, lasts=_ATTEMPT_LASTS, samesite="lax")
    return response


class Return(Page):
    """A page that accepts unknown query parameters, because issuers add their own."""

    def require_known(self, request: Request) -> None:
        """Accept everything."""


return_router = APIRouter(prefix=f"{PATH}/sign-on", route_class=Return, include_in_schema=False)


@return_router.get("/callback")
async def finish(request: Request, code: str = "", state: str = "", iss: str = "") -> Response:
    """Begin a session with the code that the issuer sent."""
    openid, sign_on = _sign_on(request)
    services = services_of(request)
    secret, _, after = request.cookies.get(ATTEMPT_COOKIE, "").partition(".")
    if not is_form_token(secret):
        raise Unauthenticated("This sign-in was begun in another browser, or is too old.", "Sign in again.")
    if not code:
        raise Unauthenticated("The issuer did not sign you in.", "Sign in again, or ask who operates the issuer.")
    if iss not in ("", sign_on.issuer.url):
        raise Unauthenticated("Another issuer answered this sign-in.", "Sign in again.")
    try:
        async with services.limits.attempt(GUESSES, network_of(request), Unauthenticated):
            signed_on = await sign_on.finish(Attempt(secret), code, state)
    except Unauthenticated:
        _log.warning("dashboard.sign_in_failed")
        raise
    subject = await openid.callers.subject(signed_on.verified, remembered=False)
    if Scope.AUDIT_READ not in subject.scopes:
        raise MissingScope(
            "You are signed in at the issuer, but its token does not grant the scope audit:read.",
            "Ask the operator for the group or role that does.",
            scope=Scope.AUDIT_READ.value,
        )
    async with transaction(services.engine) as connection:
        grant_ids = openid.callers.grant_ids(signed_on.verified)
        token = await SessionRepository(connection, services.keyring).start(subject.id, subject.scopes, grant_ids)
    # A page of this site, because a redirect from the issuer's would not send the session's strict cookie.
    response = public_page("continue.html", title="Signed in", url=own_page(unquote(after)))
    set_cookie(request, response, SESSION_COOKIE, token)
    if len(signed_on.id_token) <= _LONGEST_COOKIE:
        set_cookie(request, response, ID_TOKEN_COOKIE, signed_on.id_token)
    else:
        # One of an earlier sign-in would end the wrong session.
        delete_cookie(request, response, ID_TOKEN_COOKIE)
    delete_cookie(request, response, ATTEMPT_COOKIE)
    return response


def _sign_on(request: Request) -> tuple[OpenIdConnect, SignOn]:
    openid = services_of(request).openid
    if openid is None or openid.sign_on is None:
        raise NotFound("Sign-in at an issuer is not configured here.", "Sign in with an API key.")
    return openid, openid.sign_on
