"""An in-memory cache of API keys, so that the hot path never waits for Postgres, and authentication of requests."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from starlette.requests import Request

from service.access.api_keys import ApiKeyRepository
from service.access.keyring import Keyring
from service.access.limits import GUESSES, RateLimits, network_of
from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import KindNotAllowed, MissingScope, TooManyAttempts, Unauthenticated, Unavailable

#: Seconds between two reads of the key table, and so how long a revoked key may still be accepted.
REFRESH_INTERVAL_S = 1.0
#: Seconds for which a remembered key is accepted without confirmation from Postgres, as during an outage.
TRUSTED_FOR_S = 3600.0
#: Seconds between two records of which keys were used.
_USES_EVERY_S = 60.0

#: Longer texts are not looked up. (The operator chooses the first key, so keys have no fixed form.)
_LONGEST_KEY = 256
_HEADER = "`Authorization: Bearer lethe_…`"
#: Counts of live nodes and versions are open to keys that see them in other responses too.
READING = (Scope.AUDIT_READ, Scope.DELETIONS_READ, Scope.PREDICTIONS_READ)


@dataclass(frozen=True, slots=True)
class _Remembered:
    key: ApiKey
    #: Monotonic time until which it is accepted without Postgres.
    until: float


class KeyMemory:
    """Authenticates presented keys, from memory where possible.

    It holds the HMAC of every valid key, never the key. `refresh` reads all of them. While Postgres answers, a revoked
    key is still accepted for at most `REFRESH_INTERVAL_S`.
    """

    def __init__(
        self,
        digest: Callable[[str], bytes],
        find: Callable[[bytes], Awaitable[ApiKey | None]],
        list_valid: Callable[[], Awaitable[Mapping[bytes, ApiKey]]],
        record_uses: Callable[[Collection[UUID]], Awaitable[None]],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`digest` is the keyed hash by which `find` looks keys up; `list_valid` returns all valid keys by hash.

        `record_uses` records that keys were used.
        """
        self._digest = digest
        self._find = find
        self._list_valid = list_valid
        self._record_uses = record_uses
        self._clock = clock
        self._now = now
        self._remembered: dict[bytes, _Remembered] = {}
        self._refreshing = asyncio.Lock()
        #: Monotonic time of the last refresh attempt.
        self._refreshed_at = -math.inf
        #: Keys used since the last record of uses.
        self._used: set[UUID] = set()

    def recall(self, presented: str) -> ApiKey | None:
        """Return the key if Postgres confirmed it recently enough and it has not expired; never waits."""
        if len(presented) > _LONGEST_KEY:
            return None
        return self._recall(self._digest(presented), is_subject=False)

    def recall_subject(self, digest: bytes) -> ApiKey | None:
        """Return the subject of an issuer with this hash, as `recall` returns a key."""
        return self._recall(digest, is_subject=True)

    def _recall(self, digest: bytes, *, is_subject: bool) -> ApiKey | None:
        known = self._remembered.get(digest)
        if known is None or self._clock() > known.until or known.key.is_subject is not is_subject:
            return None
        self._used.add(known.key.id)
        return known.key

    async def recall_lately(self, presented: str) -> ApiKey | None:
        """`recall`, refreshing first unless the last refresh was within `REFRESH_INTERVAL_S`; calls share the query.

        Raises Unavailable.
        """
        async with self._refreshing:
            if self._clock() - self._refreshed_at >= REFRESH_INTERVAL_S:
                await self.refresh()
        return self.recall(presented)

    async def authenticate(self, presented: str) -> ApiKey:
        """Return the valid key behind `presented`.

        Raises:
            Unauthenticated: it is malformed, unknown, revoked or expired.
            Unavailable: it is not in memory and Postgres does not answer.
        """
        known = self.recall(presented)
        if known is not None:
            return known
        key = None
        if len(presented) <= _LONGEST_KEY:
            key = await self._find(self._digest(presented))
        if key is None or key.revoked_at is not None:
            raise Unauthenticated(
                "The API key is unknown or revoked.",
                f"Send a valid key as {_HEADER}; an operator creates one with `./lethe keys create`.",
                presented=True,
            )
        if key.has_expired(self._now()):
            raise Unauthenticated(
                f"The API key expired on {key.expires_at:%Y-%m-%d}.",
                "An operator gives it another text with `./lethe keys rotate`.",
                presented=True,
            )
        self.remember(self._digest(presented), key)
        return key

    def remember(self, digest: bytes, key: ApiKey) -> None:
        """Remember a key that Postgres has just confirmed, and that it was used."""
        self._remembered[digest] = self._remember(key, self._clock())
        self._used.add(key.id)

    def _remember(self, key: ApiKey, seen_at: float) -> _Remembered:
        """Return the memory of a key that Postgres confirmed at `seen_at` (monotonic)."""
        lasts = TRUSTED_FOR_S
        if key.expires_at is not None:
            lasts = min(lasts, (key.expires_at - self._now()).total_seconds())
        return _Remembered(key, seen_at + lasts)

    async def refresh(self) -> None:
        """Read all valid keys and drop the others. Raises Unavailable if Postgres does not answer."""
        seen_at = self._refreshed_at = self._clock()
        valid = await self._list_valid()
        self._remembered = {digest: self._remember(key, seen_at) for digest, key in valid.items()}

    async def record_uses(self) -> None:
        """Record which keys were used since the last call. Raises Unavailable, and keeps them for the next call."""
        used, self._used = self._used, set()
        try:
            if used:
                await self._record_uses(used)
        except Unavailable:
            self._used |= used
            raise

    async def run(self, stop: asyncio.Event) -> None:
        """Refresh every `REFRESH_INTERVAL_S` until `stop` is set. During an outage, remembered keys age.

        Uses are recorded beside it, so that nothing that delays them delays a revocation.
        """

        async def repeat(work: Callable[[], Awaitable[None]], every_s: float) -> None:
            while not stop.is_set():
                with contextlib.suppress(Unavailable):
                    await work()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), every_s)

        recording = asyncio.create_task(repeat(self.record_uses, _USES_EVERY_S))
        try:
            await repeat(self.refresh, REFRESH_INTERVAL_S)
            await recording
        finally:
            recording.cancel()


def key_memory(engine: Engine, keyring: Keyring) -> KeyMemory:
    """Return a key memory backed by the database's key table."""

    async def find(key_hash: bytes) -> ApiKey | None:
        async with transaction(engine) as connection:
            return await ApiKeyRepository(connection).find_by_hash(key_hash)

    async def list_valid() -> Mapping[bytes, ApiKey]:
        async with transaction(engine) as connection:
            return await ApiKeyRepository(connection).valid()

    async def record_uses(key_ids: Collection[UUID]) -> None:
        async with transaction(engine) as connection:
            await ApiKeyRepository(connection).record_uses(key_ids)

    return KeyMemory(keyring.api_key_hash, find, list_valid, record_uses)


async def valid_key(presented: str, request: Request, keys: KeyMemory, limits: RateLimits) -> ApiKey:
    """Return the valid key presented with a request, in its header or a form. Only this function refuses keys.

    Only failures are limited, and only after the key is checked: a valid key works even from a guesser's address. Past
    the limit, checking a key costs a hash but no query of its own.

    Raises Unauthenticated, TooManyAttempts and Unavailable.
    """
    known = keys.recall(presented)
    if known is not None:
        return known
    try:
        async with limits.attempt(GUESSES, network_of(request), Unauthenticated):
            return await keys.authenticate(presented)
    except TooManyAttempts:
        known = await keys.recall_lately(presented)
        if known is None:
            raise
        return known


def bearer(request: Request) -> str:
    """Return the key or token in a request's Authorization header; empty without one."""
    kind, _, presented = request.headers.get("authorization", "").partition(" ")
    return presented if kind.lower() == "bearer" else ""


async def presented_key(request: Request, keys: KeyMemory, limits: RateLimits) -> ApiKey:
    """Return the valid key in a request's Authorization header.

    Raises Unauthenticated, TooManyAttempts and Unavailable.
    """
    presented = bearer(request)
    if not presented:
        raise Unauthenticated(
            "This route requires an API key.",
            f"Send {_HEADER}; an operator creates one with `./lethe keys create`.",
        )
    return await valid_key(presented, request, keys, limits)


def require_kind(key: ApiKey, kind: RequestKind) -> None:
    """Raise KindNotAllowed if the key may not make requests of this kind."""
    if key.kinds is not None and kind not in key.kinds:
        named = " or ".join(sorted(key.kinds))
        raise KindNotAllowed(
            f"This API key may not make requests of the kind {kind.value}, only {named}.",
            f"Use a key that may; an operator creates one with `./lethe keys create --kind {kind.value}`.",
        )


def require(key: ApiKey, scopes: Sequence[Scope], enough: Callable[[Iterable[bool]], bool]) -> None:
    """Raise MissingScope naming what the key lacks; `enough` is `all` or `any` of the scopes."""
    if not enough(scope in key.scopes for scope in scopes):
        named = " or ".join(scope.value for scope in scopes if scope not in key.scopes)
        holder = "token" if key.is_subject else "API key"
        raise MissingScope(
            f"This route requires the scope {named}, which the {holder} lacks.",
            f"Use a token that LETHE_OIDC_GRANTS gives {named}."
            if key.is_subject
            else f"Use a key with {named}; an operator creates one with `./lethe keys create`.",
            scope=named,
        )
