"""The HTTP clients: what they send, what they retry, what they raise; each test runs with both."""

import asyncio
import json
import random
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from inspect import isawaitable
from typing import Any

import httpx2
import numpy as np
import pytest

from lethe_client import (
    AsyncLetheClient,
    Correction,
    DeletionStopped,
    LetheClient,
    NewNode,
    OutsideNode,
    ProblemError,
    Salts,
    ServerUnreachable,
    WaitTimeout,
)
from lethe_client.calls import Calls

ACCEPTED = {
    "id": "r1",
    "status": "queued",
    "kind": "node",
    "count": 1,
    "received_at": "2026-03-02T09:15:04.120000Z",
    "links": {"self": "/deletions/r1"},
    "salts": {"nodes": {"12": "5f1d"}, "reference": None},
    "already_deleted": {},
    "a_field_of_tomorrow": 1,
}


def deletion(status: str, **fields: object) -> dict[str, object]:
    return {"id": "r1", "status": status, "kind": "node", "count": 1, "received_at": ACCEPTED["received_at"], **fields}


class Blocking:
    """An asyncio client whose calls each run to their end."""

    def __init__(self, client: AsyncLetheClient) -> None:
        self._client = client

    def __enter__(self) -> "Blocking":
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run(self._client.close())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            async def run() -> Any:
                outcome = getattr(self._client, name)(*args, **kwargs)
                return await outcome if isawaitable(outcome) else [one async for one in outcome]

            return asyncio.run(run())

        return call


@pytest.fixture(params=[LetheClient, AsyncLetheClient], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[LetheClient | AsyncLetheClient]:
    """The client of a test run."""
    monkeypatch.setattr(Server, "kind", request.param)
    chosen: type[LetheClient | AsyncLetheClient] = request.param
    return chosen


class Server:
    """Answers from a script and records requests, with a clock that only sleeping advances."""

    kind: type[LetheClient | AsyncLetheClient] = LetheClient

    def __init__(self, *script: object) -> None:
        self.script = list(script)
        self.asked: list[httpx2.Request] = []
        self.slept: list[float] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, Exception):
            raise step
        return step if isinstance(step, httpx2.Response) else httpx2.Response(200, json=step)

    def client(self, **options: Any) -> Any:
        """Return a client of the tested kind."""
        options |= {"clock": lambda: sum(self.slept), "rng": random.Random(0), "transport": httpx2.MockTransport(self)}
        if self.kind is LetheClient:
            return LetheClient("http://lethe.test", "lethe_key", sleep=self.slept.append, **options)

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        return Blocking(AsyncLetheClient("http://lethe.test", "lethe_key", sleep=sleep, **options))


def problem(status: int, headers: dict[str, str] | None = None, **members: object) -> httpx2.Response:
    body = {"type": "urn:lethe:problem:x", "title": "T", "status": status, "detail": "D.", "remedy": "R.", **members}
    return httpx2.Response(status, json=body, headers=headers)


def test_a_deletion_request_carries_key_body_and_an_idempotency_key() -> None:
    server = Server(ACCEPTED)
    accepted = server.client().request_deletion(["12"], reference="DSR-17")
    request = server.asked[0]
    assert (request.method, request.url.path) == ("POST", "/deletions")
    assert request.headers["Authorization"] == "Bearer lethe_key"
    assert request.headers["Idempotency-Key"]
    assert json.loads(request.content) == {"kind": "node", "nodes": ["12"], "reference": "DSR-17"}
    assert accepted.received_at == datetime(2026, 3, 2, 9, 15, 4, 120000, tzinfo=UTC)
    assert accepted.salts is not None
    assert accepted.salts.nodes == {"12": "5f1d"}


def test_own_salts_go_with_the_request() -> None:
    server = Server(ACCEPTED)
    salts = Salts(nodes={"12": "ab" * 24}, reference="cd" * 24)
    server.client().request_deletion(["12"], reference="DSR-17", salts=salts)
    assert json.loads(server.asked[0].content)["salts"] == {"nodes": {"12": "ab" * 24}, "reference": "cd" * 24}


def test_edges_are_requested_as_pairs_without_nodes() -> None:
    server = Server({**ACCEPTED, "kind": "edge"})
    server.client().request_deletion(kind="edge", edges=[("1", "2")])
    assert json.loads(server.asked[0].content) == {"kind": "edge", "edges": [["1", "2"]]}


def test_nodes_are_added_with_numbers_of_any_kind_and_corrected_in_part() -> None:
    server = Server({**ACCEPTED, "kind": "addition"}, {**ACCEPTED, "kind": "correction"})
    client = server.client()
    nodes = [
        NewNode("anna", {3: 1, 17: 0.5}, "2", rejoin=True),
        NewNode("bert", np.array([1.0, 0.0]), label=(0.5, 1)),
    ]
    client.add(nodes, edges=[("anna", "12")], reference="R", idempotency_key="one")
    client.correct([Correction("12", label="3"), Correction("13", features=[0, 1])])
    addition, correction = server.asked
    assert (addition.url.path, addition.headers["Idempotency-Key"]) == ("/additions", "one")
    assert json.loads(addition.content) == {
        "nodes": [
            {"id": "anna", "features": {"3": 1.0, "17": 0.5}, "label": "2", "rejoin": True},
            {"id": "bert", "features": [1.0, 0.0], "label": [0.5, 1.0]},
        ],
        "edges": [["anna", "12"]],
        "reference": "R",
    }
    assert (correction.url.path, json.loads(correction.content)) == (
        "/corrections",
        {"nodes": [{"id": "12", "label": "3"}, {"id": "13", "features": [0.0, 1.0]}]},
    )


def test_a_request_is_cancelled_where_its_kind_is_followed() -> None:
    server = Server(deletion("cancelled"), deletion("cancelled"))
    client = server.client()
    client.cancel("r1")
    client.cancel("r1", "addition")
    assert [request.url.path for request in server.asked] == ["/deletions/r1", "/additions/r1"]


def test_a_repeated_deletion_request_is_the_same_request() -> None:
    server = Server(httpx2.ReadTimeout("no answer"), problem(503), ACCEPTED)
    assert server.client().request_deletion(["12"]).id == "r1"
    keys = {request.headers["Idempotency-Key"] for request in server.asked}
    assert len(server.asked) == 3
    assert len(keys) == 1


def test_a_repeated_drill_is_the_same_drill_and_is_waited_for_through_an_outage() -> None:
    drill = {"request_id": "r1", "cohort": 3, "requested_at": ACCEPTED["received_at"]}
    begun = drill | {"status": "queued", "finding": "It is under way."}
    cohorts = {"total": 12, "nodes": 4, "remaining": 8, "partly_deleted": []}
    server = Server(problem(503), begun | {"cohorts": cohorts, "salts": None})
    assert server.client().run_drill().cohorts.remaining == 8
    assert len({request.headers["Idempotency-Key"] for request in server.asked}) == 1
    assert [(request.method, request.url.path) for request in server.asked] == [("POST", "/drills")] * 2

    def listed(*drills: object) -> dict[str, object]:
        return {"model": "cora", "cohorts": cohorts, "drills": list(drills)}

    ended = drill | {"status": "completed", "finding": "It fell.", "passed": True}
    server = Server(listed(), httpx2.ReadTimeout("no answer"), listed(begun), listed(ended))
    assert server.client(retries=0).wait_for_drill("r1").passed
    assert len(server.asked) == 4


def test_two_calls_are_two_requests() -> None:
    server = Server(ACCEPTED)
    client = server.client()
    client.request_deletion(["12"])
    client.request_deletion(["12"])
    assert len({request.headers["Idempotency-Key"] for request in server.asked}) == 2


@pytest.mark.parametrize(
    ("call", "route"), [("cancel", ("DELETE", "/deletions/r1")), ("retry", ("POST", "/deletions/r1/retry"))]
)
def test_a_cancellation_and_a_retry_are_never_repeated(call: str, route: tuple[str, str]) -> None:
    server = Server(httpx2.ReadError("broken"))
    with pytest.raises(ServerUnreachable, match=r"http://lethe\.test"):
        getattr(server.client(), call)("r1")
    [asked] = server.asked
    assert (asked.method, asked.url.path) == route


def test_repetitions_are_bounded_and_heed_retry_after() -> None:
    server = Server(problem(429, {"Retry-After": "7"}))
    with pytest.raises(ProblemError):
        server.client(retries=3).model()
    assert len(server.asked) == 4
    assert all(7.0 <= pause <= 10.0 for pause in server.slept)


def test_an_absurd_retry_after_does_not_stall_the_caller() -> None:
    server = Server(problem(503, {"Retry-After": "86400"}), {"node": "a"})
    with pytest.raises(ServerUnreachable, match="not Lethe"):
        server.client().predict("a")
    assert server.slept == [10.0]


def test_a_refusal_is_raised_with_every_member_and_not_repeated() -> None:
    server = Server(problem(404, unknown=["99"]))
    with pytest.raises(ProblemError) as caught:
        server.client().request_deletion(["99"])
    error = caught.value
    assert (error.status, error.type, error.title) == (404, "urn:lethe:problem:x", "T")
    assert (error.detail, error.remedy, error.extra) == ("D.", "R.", {"unknown": ["99"]})
    assert len(server.asked) == 1


def test_a_refusal_by_something_else_than_lethe_is_still_a_problem() -> None:
    with pytest.raises(ProblemError, match="answered 502") as caught:
        Server(httpx2.Response(502, text="<html>bad gateway")).client(retries=0).model()
    assert caught.value.type == "about:blank"


def test_node_ids_travel_in_one_path_segment() -> None:
    server = Server({"node": "a/b?ü", "label": "x", "probabilities": {"x": 1.0}, "model_version": 3})
    prediction = server.client().predict("a/b?ü")
    assert server.asked[0].url.raw_path == b"/predict/a%2Fb%3F%C3%BC"
    assert (prediction.node, prediction.label, prediction.model_version) == ("a/b?ü", "x", 3)


def test_many_predictions_come_with_what_is_unknown_and_deleted() -> None:
    prediction = {"node": "1", "label": "x", "probabilities": {"x": 1.0}}
    answer = {"model_version": 4, "predictions": [prediction], "unknown": ["z"], "deleted": ["2"]}
    result = Server(answer).client().predict_many(["1", "2", "z"])
    assert ([p.node for p in result.predictions], result.unknown, result.deleted) == (["1"], ["z"], ["2"])


def test_nodes_outside_the_graph_are_predicted_from_features_and_neighbours() -> None:
    answer = {"model_version": 4, "predictions": [{"label": "x", "probabilities": {"x": 1.0}}, {"scores": {"y": 0.5}}]}
    server = Server(answer)
    result = server.client().predict_new([OutsideNode({3: 1}, ("1",)), OutsideNode(np.array([0.0, 1.5]))])
    assert [(one.label, one.scores) for one in result.predictions] == [("x", {}), ("", {"y": 0.5})]
    sent = [{"features": {"3": 1.0}, "neighbours": ["1"]}, {"features": [0.0, 1.5], "neighbours": []}]
    assert json.loads(server.asked[0].content) == {"nodes": sent}


def test_a_listing_follows_its_cursor_with_the_same_filters() -> None:
    first = {"deletions": [deletion("queued")], "next_cursor": "abc"}
    server = Server(first, {"deletions": [deletion("completed")], "next_cursor": None})
    since = datetime(2026, 1, 1, tzinfo=UTC)
    assert [one.status for one in server.client().deletions(kind="node", since=since)] == ["queued", "completed"]
    parameters = [dict(request.url.params) for request in server.asked]
    assert parameters[0] == {"kind": "node", "since": "2026-01-01T00:00:00+00:00"}
    assert parameters[1] == {**parameters[0], "cursor": "abc"}


def test_the_model_names_its_lambda() -> None:
    answer = {"name": "cora", "version": 1, "nodes": 4, "live_nodes": 3, "edges": 2, "features": 5, "classes": ["0"]}
    answer |= {"hops": 2, "combine": "last", "loss": "softmax", "lambda": 1e-4, "rank": 3, "device": "cpu"}
    model = Server({**answer, "weights_sha256": "00"}).client().model()
    assert (model.lambda_, model.rank, model.condition_number) == (1e-4, 3, None)


def test_waiting_goes_on_through_an_outage_until_the_state_is_reached() -> None:
    server = Server(deletion("queued"), problem(503), httpx2.ConnectError("refused"), deletion("completed"))
    assert server.client(retries=0).wait("r1", until="applied").status == "completed"
    assert len(server.asked) == 4


def test_waiting_for_completion_does_not_stop_at_applied() -> None:
    server = Server(deletion("applied"), deletion("applied"), deletion("completed"))
    assert server.client().wait("r1").status == "completed"


def test_waiting_ends_when_the_time_is_over_and_takes_no_longer_because_the_server_is_away() -> None:
    for server in (Server(deletion("queued")), Server(problem(503))):
        with pytest.raises(WaitTimeout, match="continues by itself"):
            server.client().wait("r1", timeout_s=5.0)
        assert sum(server.slept) == pytest.approx(5.0)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_waiting_for_a_request_that_stopped_is_an_error(status: str) -> None:
    with pytest.raises(DeletionStopped, match=status):
        Server(deletion(status, failure="bad data.")).client().wait("r1")


def test_a_refused_key_ends_the_waiting() -> None:
    with pytest.raises(ProblemError):
        Server(problem(401)).client().wait("r1")


@pytest.mark.parametrize("url", [lambda: f"http://127.0.0.1:{unused_port()}", lambda: "lethe.example", lambda: "x://y"])
def test_an_address_where_nothing_answers_is_named(
    url: Callable[[], str], kind: type[LetheClient | AsyncLetheClient]
) -> None:
    made = kind(url(), retries=0)
    client: Any = made if isinstance(made, LetheClient) else Blocking(made)
    with client, pytest.raises(ServerUnreachable, match="--url"):
        client.model()


def test_every_call_is_one_of_the_client(kind: type[LetheClient | AsyncLetheClient]) -> None:
    described = {name for name in vars(Calls) if not name.startswith("_")}
    offered = {name for name in vars(kind) if not name.startswith("_")}
    assert offered == described | {"close"}


async def test_calls_of_a_client_of_asyncio_are_under_way_at_once() -> None:
    all_asked = asyncio.Barrier(3)

    async def answer(request: httpx2.Request) -> httpx2.Response:
        await all_asked.wait()
        node = request.url.path.rpartition("/")[2]
        return httpx2.Response(200, json={"node": node, "label": "x", "probabilities": {"x": 1.0}, "model_version": 3})

    async with AsyncLetheClient("http://lethe.test", transport=httpx2.MockTransport(answer)) as client:
        predictions = await asyncio.wait_for(asyncio.gather(*map(client.predict, "abc")), 60)
    assert [prediction.node for prediction in predictions] == ["a", "b", "c"]


def unused_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_search_goes_on_until_there_is_no_cursor() -> None:
    server = Server({"deletions": [deletion("completed")], "next_cursor": "c1"}, {"deletions": [], "next_cursor": None})
    with server.client() as client:
        assert [one.id for one in client.search(reference="DSR-17", injected_norm_after_min=0.5)] == ["r1"]
    bodies = [json.loads(request.content) for request in server.asked]
    assert bodies[0] == {"reference": "DSR-17", "injected_norm_after_min": 0.5}
    assert bodies[1] == bodies[0] | {"cursor": "c1"}
    assert all(request.url.path == "/deletions/search" and not request.url.query for request in server.asked)


def test_an_export_comes_in_parts_and_a_refusal_is_raised() -> None:
    server = Server(*(httpx2.Response(200, content=b"a\nb\n") for _ in range(2)), problem(403))
    with server.client() as client:
        assert b"".join(client.audit_export("csv", status="failed")) == b"a\nb\n"
        assert b"".join(client.predictions("arrow")) == b"a\nb\n"
        queries = [str(request.url.query, "ascii") for request in server.asked]
        assert queries == ["format=csv&status=failed", "format=arrow"]
        with pytest.raises(ProblemError) as refused:
            list(client.audit_export())
    assert refused.value.status == 403
