"""The steps of a call, separate from their execution, so that the sync and asyncio clients run the same ones."""

import random
import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias, TypeVar

import httpx2
import msgspec

from lethe_client.errors import InvalidAccess, ProblemError, ServerUnreachable

#: Status codes of temporary refusals, independent of the request itself.
TRANSIENT = frozenset({429, 502, 503, 504})
#: Errors of a connection without a response.
NO_ANSWER = (httpx2.RequestError, httpx2.InvalidURL)
_LONGEST_PAUSE_S = 10.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class Request:
    """A step: a request to send. The steps then receive the response, or an error of `NO_ANSWER`."""

    method: str
    path: str
    #: Arguments of `httpx2.Client.request`: `json`, `params`, `headers`.
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """A step: a pause to sleep."""

    seconds: float


#: The steps of a call, which return its result.
Steps: TypeAlias = Generator[Request | Pause, httpx2.Response | None, _T]


@dataclass(frozen=True)
class Retries:
    """The retry policy for requests that got no response or a temporary refusal."""

    most: int
    rng: random.Random

    def send(self, request: Request, url: str, *, repeat: bool) -> Steps[httpx2.Response]:
        """Send the request until it succeeds.

        Raises ProblemError if it is refused, ServerUnreachable of `url` without a response.
        """
        attempts = self.most if repeat else 0
        for attempt in range(attempts + 1):
            last = attempt == attempts
            try:
                response = yield request
            except NO_ANSWER as error:
                if last or isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
                    raise unreachable(url, error) from error
                yield Pause(self._pause(attempt))
                continue
            assert response is not None
            if response.is_success:
                return response
            if last or response.status_code not in TRANSIENT:
                raise problem(response)
            yield Pause(max(self._pause(attempt), _retry_after(response)))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _pause(self, attempt: int) -> float:
        return self.rng.uniform(0.0, min(_LONGEST_PAUSE_S, 0.2 * 2.0**attempt))


def connection(base_url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the arguments for `httpx2.Client` and `httpx2.AsyncClient`. Raises InvalidAccess."""
    headers = {"Accept": "application/json", "User-Agent": "lethe-client"}
    if api_key is not None:
        if not (api_key.isascii() and api_key.isprintable()):
            raise InvalidAccess("The API key contains invalid characters.", "Copy it again: --key or LETHE_KEY.")
        headers["Authorization"] = f"Bearer {api_key}"
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise InvalidAccess(
            f"The address of Lethe cannot be read: {error}.",
            "Give an address such as http://127.0.0.1:8000 with --url or LETHE_URL.",
        ) from error
    return {"base_url": url, "headers": headers, "timeout": timeout_s, "verify": _authorities()}


@cache
def _authorities() -> ssl.SSLContext:
    """Return the certificate authorities that verify servers. Cached: reading them takes longer than most calls."""
    return httpx2.create_ssl_context()


def unreachable(url: str, error: Exception) -> ServerUnreachable:
    """Return the error to raise for an error of `NO_ANSWER`."""
    return ServerUnreachable(url, str(error) or type(error).__name__)


def problem(response: httpx2.Response) -> ProblemError:
    """Return the problem document of a refusal, or one built from another response (of a proxy, say)."""
    try:
        document: Mapping[str, Any] = msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        document = {}
    known = {"type", "title", "status", "detail", "remedy"}
    return ProblemError(
        status=response.status_code,
        type=str(document.get("type", "about:blank")),
        title=str(document.get("title", response.reason_phrase)),
        detail=str(document.get("detail") or f"The server answered {response.status_code} {response.reason_phrase}."),
        remedy=str(document.get("remedy", "")),
        extra={name: value for name, value in document.items() if name not in known},
    )


def _retry_after(response: httpx2.Response) -> float:
    """Return the seconds the server asks to wait, at most the longest pause; 0 if it names none, or a date."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_PAUSE_S) if text.isascii() and text.isdigit() else 0.0
