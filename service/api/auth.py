"""Who is asking: API keys, their scopes, and a memory of keys so that the hot path never waits for Postgres."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import Security
from fastapi.openapi.models import HTTPBearer
from fastapi.routing import APIRoute
from fastapi.security.base import SecurityBase
from starlette.requests import Request
from starlette.responses import Response

from service.api.addresses import address_of
from service.api.limits import GUESSES, network_of
from service.db.api_keys import ApiKeyRepository
from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.records import ApiKey
from service.domain.states import Scope
from service.errors import MissingScope, Unauthenticated, Unavailable
from service.vault.keyring import Keyring

#: Seconds between two looks at the table of keys: how long a revoked key may still be taken.
REFRESH_INTERVAL_S = 1.0
#: Seconds a remembered key is good without having been seen in Postgres, as during an outage.
TRUSTED_FOR_S = 60.0
#: How many keys are remembered at once.
MAX_REMEMBERED = 10_000

#: Nothing longer is a key; not even looked up. (The first key is the operator's choice, so it has no fixed form.)
_LONGEST_KEY = 256
#: Between scopes of which one will do; /openapi.json has a requirement for each.
ANY_OF = " or "
_HEADER = "`Authorization: Bearer lethe_…`"
#: Where a request's scope keeps who was found to ask.
_CALLER = "lethe.caller"
#: Header fields that proxies add, or clients to look like a proxy.
_FORWARDING = re.compile(
    r"forwarded|via|x-host|x-forwarded\b.*|x-original-.*|cdn-loop|cf-.*|x-envoy-.*|x-appengine-.*"
    r"|.*(client|connecting|originating|real|remote|user)-?(ip|addr)\b.*"
)


@dataclass(frozen=True, slots=True)
class _Remembered:
    key: ApiKey
    #: Monotonic time of the last look at Postgres.
    verified_at: float


class KeyMemory:
    """Authenticates presented keys, from memory where possible.

    Memory is keyed by the HMAC of the presented key, never by the key. `refresh` compares it with the table of
    keys; between two refreshes a revoked key is still taken, for `REFRESH_INTERVAL_S` at most while Postgres answers.
    """

    def __init__(
        self,
        digest: Callable[[str], bytes],
        find: Callable[[bytes], Awaitable[ApiKey | None]],
        list_keys: Callable[[], Awaitable[Sequence[ApiKey]]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`digest` is the keyed hash under which `find` knows a key; `list_keys` gives all of them."""
        self._digest = digest
        self._find = find
        self._list_keys = list_keys
        self._clock = clock
        self._remembered: dict[bytes, _Remembered] = {}

    def recall(self, presented: str) -> ApiKey | None:
        """The key if it is remembered and was seen in Postgres lately; never waits."""
        known = self._remembered.get(self._digest(presented))
        if known is None or self._clock() - known.verified_at > TRUSTED_FOR_S:
            return None
        return known.key

    async def authenticate(self, presented: str) -> ApiKey:
        """The valid key that was presented.

        Raises:
            Unauthenticated: it is malformed, unknown or revoked.
            Unavailable: it is not remembered and Postgres does not answer.
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
                f"Send a valid key as {_HEADER}; an operator makes one with `./lethe keys create`.",
                presented=True,
            )
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.pop(next(iter(self._remembered)))
        self._remembered[self._digest(presented)] = _Remembered(key, self._clock())
        return key

    async def refresh(self) -> None:
        """Forget revoked keys and take over changed scopes. Raises Unavailable when Postgres does not answer."""
        if not self._remembered:
            return
        seen_at = self._clock()
        valid = {key.id: key for key in await self._list_keys() if key.revoked_at is None}
        self._remembered = {
            digest: _Remembered(valid[known.key.id], max(seen_at, known.verified_at))
            for digest, known in self._remembered.items()
            if known.key.id in valid
        }

    async def run(self, stop: asyncio.Event) -> None:
        """Refresh every `REFRESH_INTERVAL_S` until `stop` is set; an outage leaves what is remembered to age."""
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), REFRESH_INTERVAL_S)
            except TimeoutError:
                try:
                    await self.refresh()
                except Unavailable:
                    continue


def key_memory(engine: Engine, keyring: Keyring) -> KeyMemory:
    """The memory of API keys over the table of keys in the database."""

    async def find(key_hash: bytes) -> ApiKey | None:
        async with transaction(engine) as connection:
            return await ApiKeyRepository(connection).find_by_hash(key_hash)

    async def list_keys() -> list[ApiKey]:
        async with transaction(engine) as connection:
            return await ApiKeyRepository(connection).list()

    return KeyMemory(keyring.api_key_hash, find, list_keys)


class BearerKey(SecurityBase):
    """A dependency that gives the caller's ApiKey, or refuses it for want of a scope."""

    def __init__(self, scopes: Sequence[Scope], enough: Callable[[Iterable[bool]], bool]) -> None:
        """`enough` is `all` when every one of `scopes` is needed, `any` when one will do."""
        self.model = HTTPBearer(description="An API key, `lethe_…`, made with `./lethe keys create`.")
        self.scheme_name = "ApiKey"
        self._scopes = tuple(scopes)
        self._enough = enough

    async def __call__(self, request: Request) -> ApiKey:
        """Raise Unauthenticated without a valid key, MissingScope naming what it lacks."""
        key = await caller_of(request)
        if not self._enough(scope in key.scopes for scope in self._scopes):
            named = " or ".join(scope.value for scope in self._scopes if scope not in key.scopes)
            raise MissingScope(
                f"This needs the scope {named}, which the API key does not have.",
                f"Use a key with {named}; an operator makes one with `./lethe keys create`.",
                scope=named,
            )
        return key


#: Live nodes and versions are counted for keys that see them in other answers, too.
_READING = BearerKey((Scope.AUDIT_READ, Scope.DELETIONS_READ, Scope.PREDICTIONS_READ), any)


def requires(*scopes: Scope) -> Any:
    """The `Annotated` metadata of a parameter that holds a caller with all of `scopes`."""
    return Security(BearerKey(scopes, all), scopes=[scope.value for scope in scopes])


def requires_any(*scopes: Scope) -> Any:
    """The `Annotated` metadata of a parameter that holds a caller with at least one of `scopes`."""
    # One string of them all: what is listed apart reads in /openapi.json as if all were needed.
    return Security(BearerKey(scopes, any), scopes=[ANY_OF.join(scope.value for scope in scopes)])


class QuickJsonRequest(Request):
    """Parses JSON six times as fast: nobody else is answered meanwhile. [1 MiB of numbers: 2.4 ms.]"""

    async def json(self) -> Any:
        """What the body holds; raises JSONDecodeError."""
        try:
            return orjson.loads(await self.body())
        except orjson.JSONDecodeError:
            # Half characters, which orjson does not read, are for the schema to refuse, which names where they are.
            return await super().json()


class KeyedRoute(APIRoute):
    """A route that looks at the key before it reads anything of the body.

    By itself the framework reads and parses the body first, whoever sent it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler that the framework calls."""
        handle = super().get_route_handler()
        needed = [one.call for one in self.dependant.dependencies if isinstance(one.call, BearerKey)]

        async def handle_keyed(request: Request) -> Response:
            for authorize in needed:
                await authorize(request)
            return await handle(QuickJsonRequest(request.scope, request.receive))

        return handle_keyed


async def caller_of(request: Request) -> ApiKey:
    """The key a request presents in its Authorization header, found once for each request.

    Raises Unauthenticated, TooManyAttempts and Unavailable.
    """
    known: ApiKey | None = request.scope.get(_CALLER)
    if known is None:
        known = request.scope[_CALLER] = await _found(request)
    return known


async def _found(request: Request) -> ApiKey:
    """The one place where a request is refused for want of a valid key. Raises as `caller_of`."""
    kind, _, presented = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not presented:
        raise Unauthenticated(
            "This needs an API key.",
            f"Send {_HEADER}; an operator makes a key with `./lethe keys create`.",
        )
    services = request.app.state.services
    memory: KeyMemory = services.keys
    known = memory.recall(presented)
    if known is not None:
        return known
    # What is not remembered costs a query, and may be a guess.
    async with services.limits.attempt(GUESSES, network_of(request), Unauthenticated):
        return await memory.authenticate(presented)


async def local_or_keyed(request: Request) -> None:
    """Let a request pass that comes from this very machine, or presents any valid key."""
    if _is_from_elsewhere(request):
        await caller_of(request)


async def local_or_reading(request: Request) -> None:
    """Let a request pass that comes from this very machine, or presents a key that may do more than delete."""
    if _is_from_elsewhere(request):
        await _READING(request)


def _is_from_elsewhere(request: Request) -> bool:
    """Whether a request does not come from this very machine.

    One that a proxy forwarded counts as one from elsewhere, wherever the proxy runs; so does one that names another
    host, as a page does whose name was made to lead here.
    """
    client = request.client
    local = client is not None and _is_loopback(client.host) and _is_loopback(_host_of(request))
    return not local or any(_FORWARDING.fullmatch(name.replace("_", "-")) for name in request.headers)


def _host_of(request: Request) -> str:
    """The host that the request names, without port and brackets; empty when it names none, or several."""
    named = request.headers.getlist("host")
    host = re.fullmatch(r"(\[[^]]*\]|[^:]*)(:\d*)?", named[0]) if len(named) == 1 else None
    return host[1].strip("[]") if host else ""


def _is_loopback(host: str) -> bool:
    address = address_of(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)
