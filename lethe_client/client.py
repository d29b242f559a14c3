"""A synchronous client of Lethe's HTTP interface."""

import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import cache
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
import msgspec

from lethe_client.errors import DeletionStopped, InvalidAccess, ProblemError, ServerUnreachable, WaitTimeout
from lethe_client.results import (
    Accepted,
    AcceptedDrill,
    AuditSummary,
    ConsistencyProof,
    Deletion,
    DeletionPage,
    Drill,
    Drills,
    InclusionProof,
    ModelInfo,
    Prediction,
    Predictions,
    Salts,
    SearchResult,
    Series,
)

#: Answers that say "not now" and nothing about the request itself.
_TRANSIENT = frozenset({429, 502, 503, 504})
_LONGEST_PAUSE_S = 10.0
#: Among so many newest drills one is looked for that was just asked for.
_DRILLS = 20

_T = TypeVar("_T")


class LetheClient:
    """Talks to one Lethe server with one API key; use it as a context manager, or `close` it.

    A call is repeated, at most `retries` times with growing, jittered pauses, when no answer came or the answer
    was "not now" (429, 502, 503, 504), and only where repeating cannot do anything twice: reads, and deletion
    requests and drills, which carry an idempotency key. Every call raises ProblemError when the server refuses, and
    ServerUnreachable when it does not answer.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 10.0,
        retries: int = 3,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """Raises InvalidAccess."""
        headers = {"Accept": "application/json", "User-Agent": "lethe-client"}
        if api_key is not None:
            if not (api_key.isascii() and api_key.isprintable()):
                raise InvalidAccess("The API key contains invalid characters.", "Copy it again: --key or LETHE_KEY.")
            headers["Authorization"] = f"Bearer {api_key}"
        try:
            self._http = httpx.Client(
                base_url=base_url, headers=headers, timeout=timeout_s, transport=transport, verify=_authorities()
            )
        except httpx.InvalidURL as error:
            raise InvalidAccess(
                f"The address of Lethe cannot be read: {error}.",
                "Give one such as http://127.0.0.1:8000 with --url or LETHE_URL.",
            ) from error
        self._retries = retries
        self._sleep = sleep
        self._clock = clock
        self._rng = rng or random.Random()

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def request_deletion(
        self,
        nodes: Sequence[str] = (),
        *,
        kind: Literal["node", "edge", "features"] = "node",
        edges: Sequence[tuple[str, str]] = (),
        reference: str | None = None,
        idempotency_key: str | None = None,
        salts: Salts | None = None,
    ) -> Accepted:
        """Ask Lethe to forget `nodes` (or their features), or `edges`.

        `salts` are your own: 24 random bytes in hex for each node, end of an edge and the reference, never used
        before. Keep them first, and no lost answer takes them along; without them Lethe draws some.
        Without an `idempotency_key` one is generated, so that a repetition after a lost answer is the same request.
        """
        body: dict[str, Any] = {"kind": kind}
        if edges:
            body["edges"] = [list(edge) for edge in edges]
        if nodes or not edges:
            body["nodes"] = list(nodes)
        if reference is not None:
            body["reference"] = reference
        if salts is not None:
            body["salts"] = msgspec.to_builtins(salts)
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        return self._call(Accepted, "POST", "/deletions", json=body, headers=headers)

    def deletion(self, request_id: str) -> Deletion:
        """The request as it stands; from `applied` on with its audit."""
        return self._call(Deletion, "GET", f"/deletions/{_segment(request_id)}")

    def cancel(self, request_id: str) -> Deletion:
        """Cancel a request that is still queued. Never repeated by itself: a second try would be refused."""
        return self._call(Deletion, "DELETE", f"/deletions/{_segment(request_id)}", repeat=False)

    def retry(self, request_id: str) -> Deletion:
        """Queue a request that failed again; repeated by hand alone, as a second try would be refused."""
        return self._call(Deletion, "POST", f"/deletions/{_segment(request_id)}/retry", repeat=False)

    def handle(self, request_id: str, reason: str) -> Deletion:
        """Say how a request that failed was handled; the log keeps the reason for ever."""
        path = f"/deletions/{_segment(request_id)}/handle"
        return self._call(Deletion, "POST", path, json={"reason": reason}, repeat=False)

    def extend(self, request_id: str, due_at: datetime, reason: str) -> Deletion:
        """Give an open request until `due_at`, which has a time zone; the log keeps the reason for ever."""
        path = f"/deletions/{_segment(request_id)}/extend"
        return self._call(Deletion, "POST", path, json={"due_at": _time(due_at), "reason": reason}, repeat=False)

    def deletions(
        self,
        *,
        status: str | None = None,
        kind: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        **filters: str | float,
    ) -> Iterator[Deletion]:
        """All requests that match, newest first, fetched page by page.

        `filters` are the further parameters of the listing: `guarantee`, `repair`, `injected_norm_after_min`, ….
        """
        given = {"status": status, "kind": kind, "since": _time(since), "until": _time(until), **filters}
        parameters = {name: value for name, value in given.items() if value is not None}
        while True:
            page = self._call(DeletionPage, "GET", "/deletions", params=parameters)
            yield from page.deletions
            if page.next_cursor is None:
                return
            parameters["cursor"] = page.next_cursor

    def search_nodes(self, nodes: Sequence[str]) -> SearchResult:
        """Which requests deleted these nodes, or their features."""
        return self._call(SearchResult, "POST", "/deletions/search", json={"nodes": list(nodes)})

    def search(
        self, *, since: datetime | None = None, until: datetime | None = None, **filters: str | float
    ) -> Iterator[Deletion]:
        """All requests that match with their audits, newest first, page by page; `filters` may name a `reference`."""
        given = {"since": _time(since), "until": _time(until), **filters}
        body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        while True:
            page = self._call(SearchResult, "POST", "/deletions/search", json=body)
            yield from page.deletions or ()
            if page.next_cursor is None:
                return
            body["cursor"] = page.next_cursor

    def run_drill(self, *, idempotency_key: str | None = None) -> AcceptedDrill:
        """Ask Lethe to delete the next cohort of canaries.

        Without an `idempotency_key` one is generated, so that a repetition after a lost answer is the same drill.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        return self._call(AcceptedDrill, "POST", "/drills", headers=headers)

    def drills(self, *, limit: int | None = None) -> Drills:
        """What the drills of the served model showed, newest first, and how many cohorts are left."""
        return self._call(Drills, "GET", "/drills", params={} if limit is None else {"limit": limit})

    def audit_summary(self, *, since: date | None = None, until: date | None = None) -> AuditSummary:
        """The audit in figures, of the days from `since` on and before `until` (UTC)."""
        given = {"since": since, "until": until}
        parameters = {name: str(value) for name, value in given.items() if value is not None}
        return self._call(AuditSummary, "GET", "/audit/summary", params=parameters)

    def audit_series(
        self,
        *,
        step: Literal["hour", "day"] = "day",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Series:
        """The audit over time; the last 30 hours or days by default."""
        given = {"step": step, "since": _time(since), "until": _time(until)}
        parameters = {name: value for name, value in given.items() if value is not None}
        return self._call(Series, "GET", "/audit/series", params=parameters)

    def audit_export(
        self,
        form: Literal["csv", "ndjson"] = "ndjson",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        **filters: str | float,
    ) -> Iterator[bytes]:
        """Every request that matches with its audit, as a file in parts; a part is a page of lines.

        Not repeated when the connection breaks on the way, which raises ServerUnreachable: what came is not whole.
        """
        given = {"format": form, "since": _time(since), "until": _time(until), **filters}
        parameters = {name: value for name, value in given.items() if value is not None}
        try:
            with self._http.stream("GET", "/audit/export", params=parameters) as response:
                if not response.is_success:
                    response.read()
                    raise _problem(response)
                yield from response.iter_bytes()
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ServerUnreachable(str(self._http.base_url), str(error) or type(error).__name__) from error

    def predict(self, node: str) -> Prediction:
        """The prediction of one node."""
        return self._call(Prediction, "GET", f"/predict/{_segment(node)}")

    def predict_many(self, nodes: Sequence[str]) -> Predictions:
        """The predictions of several nodes, all by one model version."""
        return self._call(Predictions, "POST", "/predict", json={"nodes": list(nodes)})

    def model(self) -> ModelInfo:
        """The model that serves predictions."""
        return self._call(ModelInfo, "GET", "/model")

    def receipt(self, request_id: str) -> bytes:
        """The receipt of an applied request, as JSON to be kept; `lethe audit verify` checks it."""
        return self._send("GET", f"/deletions/{_segment(request_id)}/receipt", repeat=True).content

    def log_checkpoint(self) -> str:
        """The newest checkpoint of the transparency log, a signed note."""
        return self._send("GET", "/log/checkpoint", repeat=True).text

    def log_consistency(self, old: int, new: int) -> ConsistencyProof:
        """The proof that the log of `old` leaves is what the log of `new` leaves began as."""
        return self._call(ConsistencyProof, "GET", "/log/consistency", params={"from": old, "to": new})

    def log_proof(self, index: int, size: int) -> InclusionProof:
        """The proof that a leaf is in the log of `size` leaves."""
        return self._call(InclusionProof, "GET", f"/log/proof/{index}", params={"size": size})

    def log_checked(self, size: int, root: str, *, against_size: int, against_root: str) -> None:
        """Report that the log only grew from a kept checkpoint of `against_size` leaves to `size`; roots in hex."""
        against = {"size": against_size, "root": against_root}
        self._send("POST", "/log/checks", json={"size": size, "root": root, "against": against}, repeat=True)

    def wait(
        self, request_id: str, until: Literal["applied", "completed"] = "completed", *, timeout_s: float = 60.0
    ) -> Deletion:
        """Wait until the request is `until` (or further), through outages of the server, at most `timeout_s` seconds.

        Raises:
            DeletionStopped: it failed or was cancelled.
            WaitTimeout: it has not come so far in time.
        """
        reached = {"completed"} if until == "completed" else {"applied", "completed"}

        def look() -> tuple[Deletion | None, str]:
            deletion = self.deletion(request_id)
            if deletion.status in {"failed", "cancelled"}:
                raise DeletionStopped(deletion)
            return (deletion if deletion.status in reached else None), deletion.status

        return self._wait(look, request_id, until, timeout_s)

    def wait_for_drill(self, request_id: str, *, timeout_s: float = 60.0) -> Drill:
        """Wait until a drill has ended, however it did, through outages of the server, at most `timeout_s` seconds.

        Raises:
            WaitTimeout: it has not ended in time.
        """

        def look() -> tuple[Drill | None, str]:
            drills = self.drills(limit=_DRILLS).drills
            drill = next((drill for drill in drills if drill.request_id == request_id), None)
            if drill is None:
                return None, "not among the newest drills"
            return (None if drill.status in {"queued", "applied"} else drill), drill.status

        return self._wait(look, request_id, "completed", timeout_s)

    def _wait(self, look: Callable[[], tuple[_T | None, str]], request_id: str, until: str, timeout_s: float) -> _T:
        """What `look` finds, as soon as it does; meanwhile it says how far the request is."""
        deadline = self._clock() + timeout_s
        pause = 0.05
        while True:
            try:
                found, status = look()
            except ServerUnreachable as error:
                last = error.detail.rstrip(".")
            except ProblemError as error:
                if error.status not in _TRANSIENT:
                    raise
                last = error.detail.rstrip(".")
            else:
                if found is not None:
                    return found
                last = f"it is {status}"
            left = deadline - self._clock()
            if left <= 0:
                raise WaitTimeout(request_id, until, timeout_s, last)
            self._sleep(min(pause, left))
            pause = min(pause * 1.5, 1.0)

    def _call(self, result: type[_T], method: str, path: str, *, repeat: bool = True, **arguments: Any) -> _T:
        response = self._send(method, path, repeat=repeat, **arguments)
        try:
            return msgspec.json.decode(response.content, type=result)
        except msgspec.DecodeError as error:
            raise ServerUnreachable(str(self._http.base_url), f"what answers is not Lethe ({error})") from error

    def _send(self, method: str, path: str, *, repeat: bool, **arguments: Any) -> httpx.Response:
        attempts = self._retries if repeat else 0
        for attempt in range(attempts + 1):
            last = attempt == attempts
            try:
                response = self._http.request(method, path, **arguments)
            except (httpx.TransportError, httpx.InvalidURL) as error:
                if last or isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
                    raise ServerUnreachable(str(self._http.base_url), str(error) or type(error).__name__) from error
                self._sleep(self._pause(attempt))
                continue
            if response.is_success:
                return response
            if last or response.status_code not in _TRANSIENT:
                raise _problem(response)
            self._sleep(max(self._pause(attempt), _retry_after(response)))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _pause(self, attempt: int) -> float:
        return self._rng.uniform(0.0, min(_LONGEST_PAUSE_S, 0.2 * 2.0**attempt))


@cache
def _authorities() -> ssl.SSLContext:
    """The certificate authorities that servers are verified by; reading them takes longer than most calls."""
    return httpx.create_ssl_context()


def _problem(response: httpx.Response) -> ProblemError:
    """The problem document of a refusal, or one made of whatever answered instead (a proxy, say)."""
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


def _retry_after(response: httpx.Response) -> float:
    """Seconds the server asks to wait, at most the longest pause; 0 when it does not say, or says a date."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_PAUSE_S) if text.isascii() and text.isdigit() else 0.0


def _segment(text: str) -> str:
    return quote(text, safe="")


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
