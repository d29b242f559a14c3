"""A synchronous client of Lethe's HTTP interface."""

import random
import time
from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

import httpx2

from lethe_client.calls import Calls, Pages
from lethe_client.exchanges import NO_ANSWER, Pause, Request, Steps, connection, problem, unreachable

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _returned(call: Callable[Concatenate[Calls, _P], Steps[_T]]) -> "Callable[Concatenate[LetheClient, _P], _T]":
    """Return a method that runs a call and returns its result."""

    @wraps(call)
    def method(client: "LetheClient", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return client._run(call(client._calls, *args, **kwargs))

    return method


def _listed(
    call: Callable[Concatenate[Calls, _P], Pages[_T]],
) -> "Callable[Concatenate[LetheClient, _P], Iterator[_T]]":
    """Return a method that yields the items of a listing."""

    @wraps(call)
    def method(client: "LetheClient", /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        pages, cursor = call(client._calls, *args, **kwargs), None
        while True:
            found, cursor = client._run(pages.fetch(cursor))
            yield from found
            if cursor is None:
                return

    return method


def _streamed(
    call: Callable[Concatenate[Calls, _P], Request],
) -> "Callable[Concatenate[LetheClient, _P], Iterator[bytes]]":
    """Return a method that yields a response in parts."""

    @wraps(call)
    def method(client: "LetheClient", /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[bytes]:
        request = call(client._calls, *args, **kwargs)
        try:
            with client._http.stream(request.method, request.path, **request.arguments) as response:
                if not response.is_success:
                    response.read()
                    raise problem(response)
                yield from response.iter_bytes()
        except NO_ANSWER as error:
            raise unreachable(str(client._http.base_url), error) from error

    return method


class LetheClient:
    """A client for one Lethe server with one API key. Use it as a context manager, or `close` it.

    A call is retried at most `retries` times, with growing, jittered pauses, after no response or a temporary refusal
    (429, 502, 503, 504). Only calls that are safe to repeat are retried: reads, and requests and drills, which have an
    idempotency key. Every call raises ProblemError if the server refuses, and ServerUnreachable if it does not
    respond.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 10.0,
        retries: int = 3,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """Raises InvalidAccess for a malformed address or API key."""
        self._http = httpx2.Client(transport=transport, **connection(base_url, api_key, timeout_s))
        self._calls = Calls(str(self._http.base_url), retries, clock, rng)
        self._sleep = sleep

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    request_deletion = _returned(Calls.request_deletion)
    add = _returned(Calls.add)
    correct = _returned(Calls.correct)
    deletion = _returned(Calls.deletion)
    cancel = _returned(Calls.cancel)
    retry = _returned(Calls.retry)
    handle = _returned(Calls.handle)
    extend = _returned(Calls.extend)
    hold = _returned(Calls.hold)
    release = _returned(Calls.release)
    deletions = _listed(Calls.deletions)
    search_nodes = _returned(Calls.search_nodes)
    search = _listed(Calls.search)
    run_drill = _returned(Calls.run_drill)
    drills = _returned(Calls.drills)
    audit_summary = _returned(Calls.audit_summary)
    audit_series = _returned(Calls.audit_series)
    audit_export = _streamed(Calls.audit_export)
    predict = _returned(Calls.predict)
    predict_many = _returned(Calls.predict_many)
    predict_new = _returned(Calls.predict_new)
    predictions = _streamed(Calls.predictions)
    model = _returned(Calls.model)
    receipt = _returned(Calls.receipt)
    log_checkpoint = _returned(Calls.log_checkpoint)
    log_consistency = _returned(Calls.log_consistency)
    log_proof = _returned(Calls.log_proof)
    log_checked = _returned(Calls.log_checked)
    wait = _returned(Calls.wait)
    wait_for_drill = _returned(Calls.wait_for_drill)

    def _run(self, steps: Steps[_T]) -> _T:
        """Run the steps of a call and return its result."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    self._sleep(step.seconds)
                    step = next(steps)
                    continue
                try:
                    response = self._http.request(step.method, step.path, **step.arguments)
                except NO_ANSWER as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(response)
        except StopIteration as ended:
            result: _T = ended.value
            return result
