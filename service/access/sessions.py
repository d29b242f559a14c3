"""Dashboard sessions, shared by all processes, each identified by an unguessable token in a cookie.

Only an HMAC of a token is stored, under a key of the home: write access to the database is not enough to create a
session. A token names its API key and scopes, so its row cannot be reassigned to another key or widened. A session ends
for good when its owner signs out, or its key is revoked or expires. A session that began at an issuer also names the
rows of LETHE_OIDC_GRANTS that grant its scopes, and loses the scopes that they lose.
"""

import hmac
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from sqlalchemy import delete, func, insert, literal, not_, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.access.api_keys import api_key, is_valid
from service.access.keyring import Keyring
from service.db import locks
from service.db.access_tables import ApiKeyRow, SessionRow
from service.db.locks import Lock
from service.db.transactions import Repository
from service.domain.records import ApiKey
from service.domain.scopes import Scope

#: A session ends after LIFETIME in any case, and after IDLE without a request.
LIFETIME = timedelta(hours=12)
IDLE = timedelta(hours=2)
#: Most sessions at a time; a further one ends the oldest.
MAX_SESSIONS = 1_000

#: Minimum time between two updates of `seen_at`, because self-refreshing pages would otherwise write constantly.
_SEEN_EVERY = timedelta(minutes=1)


@dataclass(frozen=True)
class Session:
    """One sign-in with an API key."""

    key: ApiKey
    #: Carried by every form of this session; other sites cannot know it.
    form_token: str


def no_issuer(_: Collection[str]) -> frozenset[Scope]:
    """Grant nothing to sessions that began at an issuer, since none is configured."""
    return frozenset()


class SessionRepository(Repository):
    """The table `sessions` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection, keyring: Keyring) -> None:
        super().__init__(conn)
        self._hash = keyring.session_hash

    async def start(self, key_id: UUID, scopes: Collection[Scope] = (), grant_ids: Collection[str] = ()) -> str:
        """Begin a session with a key; return its token: the key's id, scopes and grants, and 256 random bits.

        Subjects of an issuer need the `scopes` of their token, and the ids of the rows that grant them.
        """
        await locks.take(self._conn, Lock.SESSIONS)
        invalid = select(ApiKeyRow.id).where(not_(is_valid()))
        too_many = select(SessionRow.token_hash).order_by(SessionRow.started_at.desc(), SessionRow.token_hash)
        await self._conn.execute(
            delete(SessionRow).where(
                or_(
                    SessionRow.started_at <= func.now() - literal(LIFETIME),
                    SessionRow.seen_at <= func.now() - literal(IDLE),
                    SessionRow.key_id.in_(invalid),
                )
            )
        )
        await self._conn.execute(delete(SessionRow).where(SessionRow.token_hash.in_(too_many.offset(MAX_SESSIONS - 1))))
        named = ".".join("+".join(sorted(names)) for names in (scopes, grant_ids))
        token = f"{key_id.hex}.{named}.{secrets.token_urlsafe(32)}"
        await self._conn.execute(insert(SessionRow).values(token_hash=self._hash(token), key_id=key_id))
        return token

    async def find(
        self, token: str, still_granted: Callable[[Collection[str]], frozenset[Scope]] = no_issuer
    ) -> Session | None:
        """Return the session behind a token and renew its idle time.

        `still_granted` returns the scopes that the rows with given ids grant now.

        Returns None when it is unknown or has ended, or its key was revoked or has expired.
        """
        query = (
            select(ApiKeyRow.__table__, (SessionRow.seen_at <= func.now() - literal(_SEEN_EVERY)).label("long_ago"))
            .join(SessionRow, SessionRow.key_id == ApiKeyRow.id)
            .where(SessionRow.token_hash == self._hash(token), is_valid())
            .where(SessionRow.started_at > func.now() - literal(LIFETIME))
            .where(SessionRow.seen_at > func.now() - literal(IDLE))
        )
        row = (await self._conn.execute(query)).one_or_none()
        key_id, *named = token.split(".")
        if row is None or row.id.hex != key_id:
            return None
        if row.long_ago:
            seen = update(SessionRow).where(SessionRow.token_hash == self._hash(token)).values(seen_at=func.now())
            await self._conn.execute(seen)
        key = api_key(row)
        if key.is_subject:
            # Tokens of earlier versions name no grants.
            limit, grant_ids = (part.split("+") for part in (named[:2] if len(named) == 3 else ("", "")))
            scopes = key.scopes & still_granted(grant_ids)
            key = replace(key, scopes=frozenset(scope for scope in scopes if scope in limit))
        return Session(key, _form_token(token))

    async def end(self, token: str) -> None:
        """End a session; does nothing if it does not exist."""
        await self._conn.execute(delete(SessionRow).where(SessionRow.token_hash == self._hash(token)))


def _form_token(token: str) -> str:
    """Derive the form token from the session token, so that reading the database does not reveal it."""
    return hmac.digest(token.encode(), b"form", "sha256").hex()
