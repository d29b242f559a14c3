"""Every call of Lethe's HTTP interface, defined once for both clients."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx2
import msgspec

from lethe_client.errors import DeletionStopped, ProblemError, ServerUnreachable, WaitTimeout
from lethe_client.exchanges import TRANSIENT, Pause, Request, Retries, Steps
from lethe_client.nodes import Correction, NewNode, OutsideNode, as_json
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
    OutsidePredictions,
    Prediction,
    Predictions,
    Salts,
    SearchResult,
    Series,
)

#: Number of newest drills among which a requested one is searched.
_DRILLS = 20

_T = TypeVar("_T")


@dataclass(frozen=True)
class Pages(Generic[_T]):
    """A listing fetched page by page."""

    #: The steps that fetch a page from its cursor, None for the first; they return its items and the next cursor.
    fetch: Callable[[str | None], Steps[tuple[Sequence[_T], str | None]]]


class Calls:
    """The calls to the server at `url`, as steps for a client to run."""

    def __init__(self, url: str, retries: int, clock: Callable[[], float], rng: random.Random | None) -> None:
        self._url = url
        self._retries = Retries(retries, rng or random.Random())
        self._clock = clock

    def request_deletion(
        self,
        nodes: Sequence[str] = (),
        *,
        kind: Literal["node", "edge", "features", "label"] = "node",
        edges: Sequence[tuple[str, str]] = (),
        reference: str | None = None,
        idempotency_key: str | None = None,
        salts: Salts | None = None,
    ) -> Steps[Accepted]:
        """Ask Lethe to forget `nodes` (or only their features or labels), or `edges`.

        `salts` are your own: 24 random bytes in hex for each node, edge end and the reference, never used before. Store
        them first, so that a lost response cannot lose them. Without them Lethe draws some. An `idempotency_key` is
        generated if not given, so that a retry after a lost response is the same request.
        """
        body: dict[str, Any] = {"kind": kind}
        if edges:
            body["edges"] = [list(edge) for edge in edges]
        if nodes or not edges:
            body["nodes"] = list(nodes)
        return self._request("/deletions", body, reference, idempotency_key, salts)

    def add(
        self,
        nodes: Sequence[NewNode] = (),
        *,
        edges: Sequence[tuple[str, str] | tuple[str, str, float]] = (),
        reference: str | None = None,
        idempotency_key: str | None = None,
        salts: Salts | None = None,
    ) -> Steps[Accepted]:
        """Ask Lethe to add `nodes`, and `edges` between nodes of the graph or of this request.

        An edge's weight follows its ids; it is 1 by default, and always 1 in a graph without weights. `salts` and
        `idempotency_key` are as for `request_deletion`. `wait` follows the request.
        """
        body: dict[str, Any] = {"nodes": list(map(as_json, nodes)), "edges": [list(edge) for edge in edges]}
        return self._request("/additions", body, reference, idempotency_key, salts)

    def correct(
        self,
        nodes: Sequence[Correction],
        *,
        reference: str | None = None,
        idempotency_key: str | None = None,
        salts: Salts | None = None,
    ) -> Steps[Accepted]:
        """Ask Lethe to replace features or labels of `nodes`, and to erase the old ones.

        `salts` and `idempotency_key` are as for `request_deletion`. `wait` follows the request.
        """
        return self._request("/corrections", {"nodes": list(map(as_json, nodes))}, reference, idempotency_key, salts)

    def _request(
        self,
        path: str,
        body: dict[str, Any],
        reference: str | None,
        idempotency_key: str | None,
        salts: Salts | None,
    ) -> Steps[Accepted]:
        if reference is not None:
            body["reference"] = reference
        if salts is not None:
            body["salts"] = msgspec.to_builtins(salts)
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        return self._call(Accepted, "POST", path, json=body, headers=headers)

    def deletion(self, request_id: str) -> Steps[Deletion]:
        """Return the current state of a request of any kind, with its audit from `applied` on."""
        return self._call(Deletion, "GET", f"/deletions/{_segment(request_id)}")

    def cancel(
        self, request_id: str, kind: Literal["deletion", "addition", "correction"] = "deletion"
    ) -> Steps[Deletion]:
        """Withdraw a request that is still queued. Not retried automatically: a second attempt would be refused."""
        return self._call(Deletion, "DELETE", f"/{kind}s/{_segment(request_id)}", repeat=False)

    def retry(self, request_id: str) -> Steps[Deletion]:
        """Queue a failed request again. Not retried automatically: a second attempt would be refused."""
        return self._call(Deletion, "POST", f"/deletions/{_segment(request_id)}/retry", repeat=False)

    def handle(self, request_id: str, reason: str) -> Steps[Deletion]:
        """Record how a failed request was handled. The log keeps the reason forever."""
        path = f"/deletions/{_segment(request_id)}/handle"
        return self._call(Deletion, "POST", path, json={"reason": reason}, repeat=False)

    def extend(self, request_id: str, due_at: datetime, reason: str) -> Steps[Deletion]:
        """Extend an open request to `due_at`, which has a time zone. The log keeps the reason forever."""
        path = f"/deletions/{_segment(request_id)}/extend"
        return self._call(Deletion, "POST", path, json={"due_at": _time(due_at), "reason": reason}, repeat=False)

    def hold(self, request_id: str, reason: str) -> Steps[Deletion]:
        """Put a queued request on hold, with what is queued for the same nodes. The log keeps the reason forever."""
        path = f"/deletions/{_segment(request_id)}/hold"
        return self._call(Deletion, "POST", path, json={"reason": reason}, repeat=False)

    def release(self, request_id: str) -> Steps[Deletion]:
        """Release a request from its hold; its deadline moves by the time for which it was held."""
        return self._call(Deletion, "POST", f"/deletions/{_segment(request_id)}/release", repeat=False)

    def deletions(
        self,
        /,
        *,
        status: str | None = None,
        kind: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        **filters: str | float,
    ) -> Pages[Deletion]:
        """List all matching requests, newest first, page by page.

        `filters` are the listing's other parameters: `guarantee`, `held`, `injected_norm_after_min`, ….
        """
        given = {"status": status, "kind": kind, "since": _time(since), "until": _time(until), **filters}

        def fetch(cursor: str | None) -> Steps[tuple[Sequence[Deletion], str | None]]:
            page = yield from self._call(DeletionPage, "GET", "/deletions", params=_given(given, cursor=cursor))
            return page.deletions, page.next_cursor

        return Pages(fetch)

    def search_nodes(self, nodes: Sequence[str]) -> Steps[SearchResult]:
        """Find the requests that deleted these nodes, or their features."""
        return self._call(SearchResult, "POST", "/deletions/search", json={"nodes": list(nodes)})

    def search(
        self, /, *, since: datetime | None = None, until: datetime | None = None, **filters: str | float
    ) -> Pages[Deletion]:
        """List all matching requests with audits, newest first, page by page; `filters` may include a `reference`."""
        given = {"since": _time(since), "until": _time(until), **filters}

        def fetch(cursor: str | None) -> Steps[tuple[Sequence[Deletion], str | None]]:
            page = yield from self._call(SearchResult, "POST", "/deletions/search", json=_given(given, cursor=cursor))
            return page.deletions or (), page.next_cursor

        return Pages(fetch)

    def run_drill(self, *, idempotency_key: str | None = None) -> Steps[AcceptedDrill]:
        """Ask Lethe to delete the next cohort of canaries.

        An `idempotency_key` is generated if not given, so that a retry after a lost response is the same drill.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        return self._call(AcceptedDrill, "POST", "/drills", headers=headers)

    def drills(self, *, limit: int | None = None) -> Steps[Drills]:
        """Return the served model's drill results, newest first, and the number of cohorts left."""
        return self._call(Drills, "GET", "/drills", params={} if limit is None else {"limit": limit})

    def audit_summary(self, *, since: date | None = None, until: date | None = None) -> Steps[AuditSummary]:
        """Return the audit figures for the days from `since` on and before `until` (UTC)."""
        days = {name: str(day) for name, day in {"since": since, "until": until}.items() if day is not None}
        return self._call(AuditSummary, "GET", "/audit/summary", params=days)

    def audit_series(
        self,
        *,
        step: Literal["hour", "day"] = "day",
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Steps[Series]:
        """Return the audit over time, by default for the last 30 hours or days."""
        given = {"step": step, "since": _time(since), "until": _time(until)}
        return self._call(Series, "GET", "/audit/series", params=_given(given))

    def audit_export(
        self,
        /,
        form: Literal["csv", "ndjson"] = "ndjson",
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        **filters: str | float,
    ) -> Request:
        """Export every matching request with its audit, as a file in parts; a part is a page of lines.

        Not retried if the connection breaks midway. That raises ServerUnreachable, and the received file is incomplete.
        """
        given = {"format": form, "since": _time(since), "until": _time(until), **filters}
        return Request("GET", "/audit/export", {"params": _given(given)})

    def predict(self, node: str) -> Steps[Prediction]:
        """Return the prediction for one node."""
        return self._call(Prediction, "GET", f"/predict/{_segment(node)}")

    def predict_many(self, nodes: Sequence[str]) -> Steps[Predictions]:
        """Return the predictions for several nodes, all by one model version."""
        return self._call(Predictions, "POST", "/predict", json={"nodes": list(nodes)})

    def predictions(self, form: Literal["parquet", "arrow", "csv", "ndjson"] = "ndjson") -> Request:
        """Return the predictions of all live nodes by one model version, as a file in parts.

        Not retried. The server cuts a slow download once the model has changed, which raises ServerUnreachable.
        """
        return Request("GET", "/predictions", {"params": {"format": form}})

    def predict_new(self, nodes: Sequence[OutsideNode]) -> Steps[OutsidePredictions]:
        """Return the predictions for nodes outside the graph, each as if it alone joined without a label.

        Lethe stores nothing of them. Needs the scope predictions:new.
        """
        return self._call(OutsidePredictions, "POST", "/predict-new", json={"nodes": list(map(as_json, nodes))})

    def model(self) -> Steps[ModelInfo]:
        """Return the served model."""
        return self._call(ModelInfo, "GET", "/model")

    def receipt(self, request_id: str) -> Steps[bytes]:
        """Return the receipt of an applied request, as JSON to store; `lethe audit verify` checks it."""
        return (yield from self._send("GET", f"/deletions/{_segment(request_id)}/receipt")).content

    def log_checkpoint(self) -> Steps[str]:
        """Return the transparency log's newest checkpoint, a signed note."""
        return (yield from self._send("GET", "/log/checkpoint")).text

    def log_consistency(self, old: int, new: int) -> Steps[ConsistencyProof]:
        """Return the proof that the log of `old` leaves is a prefix of the log of `new` leaves."""
        return self._call(ConsistencyProof, "GET", "/log/consistency", params={"from": old, "to": new})

    def log_proof(self, index: int, size: int) -> Steps[InclusionProof]:
        """Return the proof that the log of `size` leaves contains a leaf."""
        return self._call(InclusionProof, "GET", f"/log/proof/{index}", params={"size": size})

    def log_checked(self, size: int, root: str, *, against_size: int, against_root: str) -> Steps[None]:
        """Report that the log only grew from a stored checkpoint of `against_size` leaves to `size`; roots in hex."""
        against = {"size": against_size, "root": against_root}
        yield from self._send("POST", "/log/checks", json={"size": size, "root": root, "against": against})

    def wait(
        self, request_id: str, until: Literal["applied", "completed"] = "completed", *, timeout_s: float = 60.0
    ) -> Steps[Deletion]:
        """Wait until the request reaches the status `until` or a later one, for at most `timeout_s` seconds.

        Server outages are waited out.

        Raises:
            DeletionStopped: it failed or was cancelled.
            WaitTimeout: it did not reach that status in time.
        """
        reached = {"completed"} if until == "completed" else {"applied", "completed"}

        def look() -> Steps[tuple[Deletion | None, str]]:
            deletion = yield from self._call(Deletion, "GET", f"/deletions/{_segment(request_id)}", repeat=False)
            if deletion.status in {"failed", "cancelled"}:
                raise DeletionStopped(deletion)
            return (deletion if deletion.status in reached else None), deletion.status

        return self._wait(look, request_id, until, timeout_s)

    def wait_for_drill(self, request_id: str, *, timeout_s: float = 60.0) -> Steps[Drill]:
        """Wait until a drill has ended with any result, despite server outages, for at most `timeout_s` seconds.

        Raises:
            WaitTimeout: it did not end in time.
        """

        def look() -> Steps[tuple[Drill | None, str]]:
            newest = yield from self._call(Drills, "GET", "/drills", params={"limit": _DRILLS}, repeat=False)
            drill = next((drill for drill in newest.drills if drill.request_id == request_id), None)
            if drill is None:
                return None, "not among the newest drills"
            return (None if drill.status in {"queued", "applied"} else drill), drill.status

        return self._wait(look, request_id, "completed", timeout_s)

    def _wait(
        self, look: Callable[[], Steps[tuple[_T | None, str]]], request_id: str, until: str, timeout_s: float
    ) -> Steps[_T]:
        """Poll `look` until it returns a result; meanwhile it returns the request's status. It does not retry."""
        deadline = self._clock() + timeout_s
        pause = 0.05
        while True:
            try:
                found, status = yield from look()
            except ServerUnreachable as error:
                last = error.detail.rstrip(".")
            except ProblemError as error:
                if error.status not in TRANSIENT:
                    raise
                last = error.detail.rstrip(".")
            else:
                if found is not None:
                    return found
                last = f"it is {status}"
            left = deadline - self._clock()
            if left <= 0:
                raise WaitTimeout(request_id, until, timeout_s, last)
            yield Pause(min(pause, left))
            pause = min(pause * 1.5, 1.0)

    def _call(self, result: type[_T], method: str, path: str, *, repeat: bool = True, **arguments: Any) -> Steps[_T]:
        response = yield from self._send(method, path, repeat=repeat, **arguments)
        try:
            return msgspec.json.decode(response.content, type=result)
        except msgspec.DecodeError as error:
            raise ServerUnreachable(self._url, f"the server there is not Lethe ({error})") from error

    def _send(self, method: str, path: str, *, repeat: bool = True, **arguments: Any) -> Steps[httpx2.Response]:
        return self._retries.send(Request(method, path, arguments), self._url, repeat=repeat)


def _given(values: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the values that were given."""
    return {name: value for name, value in {**values, **more}.items() if value is not None}


def _segment(text: str) -> str:
    return quote(text, safe="")


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
