"""Callers with a token of the OpenID Connect issuer, recorded as subjects beside the API keys."""

from collections.abc import Collection
from dataclasses import replace

from service.access.api_keys import ApiKeyRepository
from service.access.key_memory import KeyMemory
from service.access.keyring import Keyring
from service.access.oidc.issuer import Issuer
from service.access.oidc.tokens import Verified, verify
from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.grants import Grant, matching, scopes_of
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import MissingScope, Unauthenticated


class TokenCallers:
    """Authenticates tokens. Every other use of a caller, such as limits and records, is that of an API key."""

    def __init__(
        self,
        issuer: Issuer,
        grants: tuple[Grant, ...],
        audience: str | None,
        *,
        engine: Engine,
        keyring: Keyring,
        keys: KeyMemory,
    ) -> None:
        """`audience` is that of access tokens; None if only the dashboard uses the issuer."""
        self.issuer = issuer
        self._grants = grants
        self._audience = audience
        self._engine = engine
        self._keyring = keyring
        self._keys = keys

    async def caller(self, token: str) -> ApiKey:
        """Return the subject of an access token, with the scopes that this token grants.

        Raises:
            Unauthenticated: the token is not valid, or the subject was revoked here.
            MissingScope: it grants no scope.
            Unavailable: the issuer or Postgres is needed and does not answer.
        """
        if self._audience is None:
            raise Unauthenticated(
                "Access tokens are not accepted here.",
                "Send an API key, or set LETHE_OIDC_AUDIENCE to the audience of the tokens.",
                presented=True,
            )
        verified = await verify(token, self.issuer, self._audience)
        return await self.subject(verified, remembered=True)

    def grant_ids(self, verified: Verified) -> frozenset[str]:
        """Return the ids of the rows of LETHE_OIDC_GRANTS that a verified token matches."""
        return frozenset(grant.id(self.issuer.url) for grant in matching(self._grants, verified.claims))

    def still_granted(self, grant_ids: Collection[str]) -> frozenset[Scope]:
        """Return the scopes that the rows with these ids grant now; removed rows grant none."""
        return scopes_of([grant for grant in self._grants if grant.id(self.issuer.url) in grant_ids])

    async def subject(self, verified: Verified, *, remembered: bool) -> ApiKey:
        """Return the subject of a verified token, until the token expires.

        Unless it may be `remembered`, it is recorded again, and valid for a day in the database.
        """
        scopes = scopes_of(matching(self._grants, verified.claims))
        if not scopes:
            raise MissingScope(
                "The token is valid and grants no scope of Lethe.",
                "Ask the operator: LETHE_OIDC_GRANTS lists which claims grant which scopes.",
                scope="",
            )
        digest = self._keyring.subject_hash(self.issuer.url, verified.subject)
        known = self._keys.recall_subject(digest) if remembered else None
        if known is None or not scopes <= known.scopes:
            async with transaction(self._engine) as connection:
                known = await ApiKeyRepository(connection).record_subject(digest, scopes)
            if known is None:
                raise Unauthenticated(
                    "The subject of this token was revoked here.",
                    "Ask the operator; `./lethe keys list` shows revoked subjects.",
                    presented=True,
                )
            self._keys.remember(digest, known)
        return replace(known, scopes=scopes, expires_at=verified.expires_at)
