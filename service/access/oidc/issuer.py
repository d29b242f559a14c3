"""An OpenID Connect issuer: its description and its signing keys, fetched when needed and remembered."""

import asyncio
import math
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx2
import structlog
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey, import_key

from service.domain.addresses import is_private
from service.errors import Unauthenticated, Unavailable

#: Time for one exchange with the issuer (seconds), and most bytes read of its answer.
_EXCHANGE_S, _MOST_READ = 10.0, 1 << 20
#: Shortest time between two fetches (seconds). No token can cause more of them.
REFETCH_S = 10.0
#: Age at which keys and endpoints are fetched again, so that keys that the issuer has withdrawn end (seconds).
FRESH_S = 900.0
#: Age up to which keys are used while the issuer does not answer (seconds).
_USABLE_S = 86_400.0

_log = structlog.stdlib.get_logger(__name__)


class IssuerUnavailable(Unavailable):
    """The OpenID Connect issuer does not answer, or not as one."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"Tokens cannot be checked: {reason}.", "Try again in a moment, or use an API key: those need no issuer."
        )
        self.reason = reason


@dataclass(frozen=True)
class Endpoints:
    """The addresses that the issuer publishes (OpenID Connect Discovery 1.0)."""

    keys: str
    authorization: str
    token: str
    #: None if the issuer cannot end sessions.
    end_session: str | None
    #: Whether it takes a client's secret in the form alone, not in the Authorization header.
    secret_in_form: bool


@dataclass(frozen=True)
class _Keys:
    by_id: Mapping[str | None, Key]
    fetched_at: float


class Issuer:
    """Fetches from one issuer. Concurrent callers share a fetch; a failed one is repeated after `REFETCH_S`."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`url` is the issuer's identifier, exactly as in its tokens."""
        self.url = url
        self._clock = clock
        self._endpoints: Endpoints | None = None
        self._keys = _Keys({}, -math.inf)
        self._tried_at = -math.inf
        #: Why the last fetch failed; empty if it succeeded.
        self._fault = ""
        self._turn = asyncio.Lock()

    async def endpoints(self) -> Endpoints:
        """Return the issuer's endpoints. Raises IssuerUnavailable."""
        if self._endpoints is not None and self._suffices():
            return self._endpoints
        async with self._turn:
            if self._age() >= FRESH_S:
                await self._refetch()
            if self._endpoints is None:
                raise IssuerUnavailable(self._fault)
            return self._endpoints

    async def key(self, key_id: str | None) -> Key:
        """Return the public key that a token names; without a name, the issuer's only key.

        Raises Unauthenticated when the issuer has no such key, and IssuerUnavailable when that cannot be learned.
        """
        known = self._find(key_id)
        if known is not None and self._suffices():
            return known
        async with self._turn:
            if self._age() >= FRESH_S or self._find(key_id) is None:
                await self._refetch()
        if self._age() < _USABLE_S and (known := self._find(key_id)) is not None:
            return known
        if self._fault:
            raise IssuerUnavailable(self._fault)
        raise Unauthenticated(
            "The token is signed with a key that its issuer does not publish.",
            f"Get a new token. A key that is new at the issuer is known here after {REFETCH_S:g} seconds.",
            presented=True,
        )

    async def post(self, url: str, fields: Mapping[str, str], secret: tuple[str, str] | None) -> Any:
        """Post a form, with the client's name and secret as Basic credentials; returns the JSON of its answer.

        Raises IssuerUnavailable, and Unauthenticated when the issuer refuses the form.
        """
        return await self._exchange("POST", url, data=dict(fields), auth=secret)

    def _suffices(self) -> bool:
        """Return whether what is known may be used without a fetch.

        While one caller fetches, the others do not wait for an issuer that may not answer.
        """
        return self._age() < FRESH_S or (self._turn.locked() and self._age() < _USABLE_S)

    def _age(self) -> float:
        return self._clock() - self._keys.fetched_at

    def _find(self, key_id: str | None) -> Key | None:
        keys = self._keys.by_id
        if key_id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        return keys.get(key_id)

    async def _refetch(self) -> None:
        """Fetch endpoints and keys, unless that was tried lately; keeps the known ones if it fails."""
        if self._clock() - self._tried_at < REFETCH_S:
            return
        try:
            said = await self._exchange("GET", self.url.rstrip("/") + "/.well-known/openid-configuration")
            endpoints = self._endpoints_in(said)
            found = await self._exchange("GET", endpoints.keys)
            self._keys, self._endpoints, self._fault = _Keys(_signing_keys(found), self._clock()), endpoints, ""
        except IssuerUnavailable as failure:
            self._fault = failure.reason
            _log.warning("oidc.keys_not_fetched", reason=failure.detail)
        # From the end, so that those who waited for it do not wait again.
        self._tried_at = self._clock()

    def _endpoints_in(self, said: Any) -> Endpoints:
        if not isinstance(said, dict) or said.get("issuer") != self.url:
            raise IssuerUnavailable("the configuration that the issuer publishes names another issuer")

        def endpoint(name: str, *, needed: bool = True) -> str | None:
            url = said.get(name)
            if url is None and not needed:
                return None
            if not isinstance(url, str) or not is_private(url):
                raise IssuerUnavailable(f"the issuer publishes no https address as {name}")
            return url

        methods = said.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if not isinstance(methods, list):
            raise IssuerUnavailable("the issuer publishes no list as token_endpoint_auth_methods_supported")
        return Endpoints(
            keys=endpoint("jwks_uri") or "",
            authorization=endpoint("authorization_endpoint") or "",
            token=endpoint("token_endpoint") or "",
            end_session=endpoint("end_session_endpoint", needed=False),
            secret_in_form="client_secret_basic" not in methods and "client_secret_post" in methods,
        )

    @cached_property
    def _authorities(self) -> ssl.SSLContext:
        """Certificate authorities of SSL_CERT_FILE, else the system's; reading them takes 50 ms, so not at a start."""
        return httpx2.create_ssl_context()

    async def _exchange(self, method: str, url: str, **sent: Any) -> Any:
        try:
            async with (
                asyncio.timeout(_EXCHANGE_S),
                httpx2.AsyncClient(verify=self._authorities, timeout=_EXCHANGE_S, follow_redirects=False) as client,
                client.stream(method, url, headers={"Accept": "application/json"}, **sent) as response,
            ):
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > _MOST_READ:
                        raise IssuerUnavailable(f"the issuer's answer is larger than {_MOST_READ} bytes")
                if method == "POST" and response.status_code in (400, 401):
                    # Its body may repeat what was sent.
                    raise Unauthenticated("The issuer refused the sign-in.", "Sign in again.")
                if response.status_code != 200:
                    raise IssuerUnavailable(f"the issuer answered {response.status_code}")
                return httpx2.Response(200, content=bytes(body)).json()
        except TimeoutError:
            raise IssuerUnavailable("the issuer did not answer in time") from None
        except httpx2.HTTPError as error:
            raise IssuerUnavailable(f"the issuer cannot be reached ({type(error).__name__})") from None
        except (ValueError, RecursionError):
            raise IssuerUnavailable("the issuer's answer is not JSON") from None


def _signing_keys(found: Any) -> Mapping[str | None, Key]:
    """Return the public keys of a JSON Web Key Set that verify signatures, by their id. Others are left out."""
    keys: dict[str | None, Key] = {}
    published = found.get("keys") if isinstance(found, dict) else None
    for one in published if isinstance(published, list) else ():
        try:
            key = import_key(one)
        except (JoseError, KeyError, TypeError, ValueError, AttributeError):
            # Of a kind that this version does not know, for example.
            continue
        if isinstance(key, RSAKey | ECKey | OKPKey) and key.get("use") in (None, "sig"):
            keys[key.kid] = key
    if not keys:
        raise IssuerUnavailable("the issuer publishes no signing key")
    return keys
