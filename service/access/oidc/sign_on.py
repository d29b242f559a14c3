"""Sign-on of a browser at the issuer: the authorization code flow with PKCE (OpenID Connect Core 1.0, RFC 7636)."""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import quote_plus, urlencode

from pydantic import SecretStr

from service.access.oidc.issuer import Issuer, IssuerUnavailable
from service.access.oidc.tokens import Verified, verify_id_token
from service.errors import Unauthenticated


@dataclass(frozen=True)
class Attempt:
    """One sign-in under way. Everything it needs follows from a secret that only this browser has, in a cookie."""

    secret: str

    @property
    def state(self) -> str:
        """Shows that this browser began the sign-in that comes back."""
        return self._derived("state")

    @property
    def nonce(self) -> str:
        """Shows that the ID token was made for this sign-in."""
        return self._derived("nonce")

    @property
    def verifier(self) -> str:
        """Shows to the issuer that the code comes from who began the sign-in."""
        return self._derived("verifier")

    def _derived(self, purpose: str) -> str:
        return _base64url(hmac.digest(self.secret.encode(), purpose.encode(), hashlib.sha256))


@dataclass(frozen=True)
class SignedOn:
    """The outcome of a sign-in."""

    verified: Verified
    #: Names the session to end at the issuer.
    id_token: str


@dataclass(frozen=True)
class SignOn:
    """The dashboard as a client of the issuer."""

    issuer: Issuer
    client_id: str
    client_secret: SecretStr | None
    #: Scopes to request, separated by spaces.
    scope: str
    #: Where the issuer sends browsers back to, with a code or after the end of their session.
    callback_url: str
    signed_out_url: str

    async def begin(self, attempt: Attempt) -> str:
        """Return the issuer's address at which this attempt continues. Raises IssuerUnavailable."""
        endpoints = await self.issuer.endpoints()
        challenge = _base64url(hashlib.sha256(attempt.verifier.encode()).digest())
        return _with_query(
            endpoints.authorization,
            response_type="code",
            client_id=self.client_id,
            redirect_uri=self.callback_url,
            scope=self.scope,
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=challenge,
            code_challenge_method="S256",
        )

    async def finish(self, attempt: Attempt, code: str, state: str) -> SignedOn:
        """Exchange a code for an ID token, and verify that.

        Raises Unauthenticated if the code or the token is not of this attempt, and IssuerUnavailable.
        """
        if not hmac.compare_digest(state.encode(), attempt.state.encode()):
            raise Unauthenticated("This sign-in was begun in another browser, or is too old.", "Sign in again.")
        endpoints = await self.issuer.endpoints()
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.callback_url,
            "client_id": self.client_id,
            "code_verifier": attempt.verifier,
        }
        secret = None
        if self.client_secret is not None and endpoints.secret_in_form:
            fields["client_secret"] = self.client_secret.get_secret_value()
        elif self.client_secret is not None:
            secret = quote_plus(self.client_id), quote_plus(self.client_secret.get_secret_value())
        said = await self.issuer.post(endpoints.token, fields, secret)
        id_token = said.get("id_token") if isinstance(said, dict) else None
        if not isinstance(id_token, str):
            raise IssuerUnavailable("the issuer's answer to the sign-in has no ID token")
        verified = await verify_id_token(id_token, self.issuer, self.client_id, attempt.nonce)
        return SignedOn(verified, id_token)

    async def ending(self, id_token: str) -> str | None:
        """Return the issuer's address that ends its session (RP-Initiated Logout 1.0); None if it has none.

        Without the ID token of the session, the issuer asks the user. Raises IssuerUnavailable.
        """
        endpoints = await self.issuer.endpoints()
        if endpoints.end_session is None:
            return None
        hint = {"id_token_hint": id_token} if id_token else {}
        return _with_query(
            endpoints.end_session, client_id=self.client_id, post_logout_redirect_uri=self.signed_out_url, **hint
        )


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _with_query(url: str, **values: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(values)}"
