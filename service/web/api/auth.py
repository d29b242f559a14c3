"""Authentication for routes: API keys, their scopes, and whether a request comes from this machine."""

import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from fastapi import Security
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import Request
from starlette.responses import Response

from service.access.key_memory import READING, bearer, presented_key, require
from service.access.limits import GUESSES, RateLimits, network_of
from service.access.oidc.token_callers import TokenCallers
from service.access.oidc.tokens import looks_like_token
from service.domain.addresses import address_of
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import Unauthenticated
from service.log.canonical import parse_json
from service.web.routes import StrictRoute
from service.web.services import services_of

#: Header fields that proxies add, or that clients add to look like a proxy.
_FORWARDING = re.compile(
    r"forwarded|via|x-host|x-forwarded\b.*|x-original-.*|cdn-loop|cf-.*|x-envoy-.*|x-appengine-.*"
    r"|.*(client|connecting|originating|real|remote|user)-?(ip|addr)\b.*"
)


def is_from_elsewhere(request: Request) -> bool:
    """Return whether a request comes from another machine.

    A request forwarded by a proxy counts as remote, wherever the proxy runs. So does a request for another host name,
    as sent by a page whose name was made to resolve to this machine.
    """
    client = request.client
    local = client is not None and _is_loopback(client.host) and _is_loopback(_host_of(request))
    return not local or any(_FORWARDING.fullmatch(name.replace("_", "-")) for name in request.headers)


def _host_of(request: Request) -> str:
    """Return the request's host without port and brackets; empty if it names none, or several."""
    named = request.headers.getlist("host")
    host = re.fullmatch(r"(\[[^]]*\]|[^:]*)(:\d*)?", named[0]) if len(named) == 1 else None
    return host[1].strip("[]") if host else ""


def _is_loopback(host: str) -> bool:
    address = address_of(host)
    return host.lower() == "localhost" or (address is not None and address.is_loopback)


#: Separates scopes of which one is enough; /openapi.json lists a requirement for each.
ANY_OF = " or "
#: Key in a request's scope that stores the authenticated caller.
_CALLER = "lethe.caller"


class BearerKey(SecurityBase):
    """A dependency that returns the caller's ApiKey, or refuses one without the scopes."""

    def __init__(self, scopes: Sequence[Scope], enough: Callable[[Iterable[bool]], bool]) -> None:
        """`enough` is `all` when every one of `scopes` is needed, `any` when one will do."""
        self.model = HTTPBearer(
            description="An API key, `lethe_…`, from `./lethe keys create`, or an access token of the issuer."
        )
        self.scheme_name = "ApiKey"
        self._scopes = tuple(scopes)
        self._enough = enough

    @property
    def alternatives(self) -> tuple[frozenset[Scope], ...]:
        """The sets of scopes of which one is enough."""
        if self._enough is any:
            return tuple(frozenset({scope}) for scope in self._scopes)
        return (frozenset(self._scopes),)

    async def __call__(self, request: Request) -> ApiKey:
        """Raise Unauthenticated without a valid key, and MissingScope with the names of missing scopes."""
        key = await caller_of(request)
        require(key, self._scopes, self._enough)
        return key


_READING = BearerKey(READING, any)


def requires(*scopes: Scope) -> Any:
    """Return `Annotated` metadata for a caller with all of `scopes`."""
    return Security(BearerKey(scopes, all), scopes=[scope.value for scope in scopes])


def requires_any(*scopes: Scope) -> Any:
    """Return `Annotated` metadata for a caller with at least one of `scopes`."""
    # A single string, because separate entries mean in /openapi.json that all are needed.
    return Security(BearerKey(scopes, any), scopes=[ANY_OF.join(scope.value for scope in scopes)])


class StrictJsonRequest(Request):
    """Parses JSON with `parse_json`."""

    async def json(self) -> Any:
        """Return the parsed body. Raises RepeatedMember and ValueError."""
        return parse_json(await self.body())


class KeyedRoute(StrictRoute):
    """A route that checks the key before it reads the body.

    By default, the framework reads and parses the body first, for any sender.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that the framework calls."""
        handle = super().get_route_handler()
        needed = [one.call for one in self.dependant.dependencies if isinstance(one.call, BearerKey)]

        async def handle_keyed(request: Request) -> Response:
            for authorize in needed:
                await authorize(request)
            return await handle(StrictJsonRequest(request.scope, request.receive))

        return handle_keyed


async def caller_of(request: Request) -> ApiKey:
    """Return the key in a request's Authorization header, authenticated once per request.

    Raises Unauthenticated, TooManyAttempts and Unavailable.
    """
    known: ApiKey | None = request.scope.get(_CALLER)
    if known is None:
        services = services_of(request)
        token = bearer(request)
        if services.openid is not None and looks_like_token(token) and services.keys.recall(token) is None:
            known = await _token_caller(services.openid.callers, token, request, services.limits)
        else:
            known = await presented_key(request, services.keys, services.limits)
        request.scope[_CALLER] = known
    return known


async def _token_caller(callers: TokenCallers, token: str, request: Request, limits: RateLimits) -> ApiKey:
    """Return the caller of an access token. Only failures are limited: a valid token always works."""
    try:
        return await callers.caller(token)
    except Unauthenticated as refusal:
        async with limits.attempt(GUESSES, network_of(request), Unauthenticated):
            raise refusal from None


async def local_or_keyed(request: Request) -> None:
    """Allow requests from this machine, or with any valid key."""
    if is_from_elsewhere(request):
        await caller_of(request)


async def local_or_reading(request: Request) -> None:
    """Allow requests from this machine, or with a key that may do more than delete."""
    if is_from_elsewhere(request):
        await _READING(request)
