"""Requests that ask for what was asked before, and requests that are taken back, through the whole service."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from lethe_client import LetheClient
from lethe_client.results import Accepted, Deletion
from tests.support.models.recomputation import Recomputation
from tests.support.models.trained_models import SMALL, Models
from tests.support.preloaded import Start
from tests.support.processes.lethe_process import LetheProcess, copied, version_of
from tests.support.service.bodies import node_body, refused

#: Nodes that fill a batch of `waiting`, whose batches go for no other reason.
BATCH = 8


@dataclass
class Asking:
    """A Lethe, clients of it, nodes that no test has asked for yet, and those that are to be gone."""

    lethe: LetheProcess
    client: LetheClient
    http: httpx2.Client
    nodes: Iterator[str]
    gone: set[str] = field(default_factory=set)

    def fresh(self, count: int) -> list[str]:
        return [next(self.nodes) for _ in range(count)]

    def delete(self, nodes: list[str]) -> Accepted:
        self.gone |= set(nodes)
        return self.client.request_deletion(nodes)

    def status(self, accepted: Accepted) -> str:
        return self.client.deletion(accepted.id).status

    def completed(self, accepted: Accepted) -> Deletion:
        return self.client.wait(accepted.id)


@contextmanager
def asking_of(lethe: LetheProcess, models: Models) -> Iterator[Asking]:
    with lethe.client() as client, lethe.http() as http:
        yield Asking(lethe, client, http, iter(models.graph(SMALL).node_ids))


@pytest.fixture(scope="module")
def asking(models: Models, lethe_start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    """Of a Lethe in which requests stay queued until they fill a batch; one for all tests that want that."""
    home = tmp_path_factory.mktemp("waiting") / "home"
    copied(models.trained(SMALL), home / "model")
    limits: dict[str, Any] = {"max_nodes_per_request": models.graph(SMALL).nodes, "max_body_bytes": 16_384}
    with (
        LetheProcess(lethe_start, home, max_batch_nodes=BATCH, max_wait_ms=60_000, **limits) as lethe,
        asking_of(lethe.start(), models) as asking,
    ):
        yield asking


@pytest.fixture
def scratch(models: Models) -> Recomputation:
    return models.recomputation(SMALL)


def test_what_is_deleted_already_is_never_deleted_again(asking: Asking, scratch: Recomputation) -> None:
    nodes = asking.fresh(BATCH)
    first = asking.delete(nodes)
    version = version_of(asking.completed(first))

    again = asking.delete(nodes[:2])
    assert again.already_deleted == dict.fromkeys(nodes[:2], first.id)
    others = asking.fresh(BATCH)
    partly = asking.delete([*nodes[:2], *others])
    assert (partly.count, partly.already_deleted) == (BATCH, dict.fromkeys(nodes[:2], first.id))
    # It waits like any other until a batch is full.
    record = asking.completed(again)
    assert (record.status, record.already_deleted_by, record.audit) == ("completed", first.id, None)
    assert first.id in (record.explanation or "")
    deletion = asking.completed(partly)
    assert deletion.audit is not None
    assert deletion.audit.batch.nodes == BATCH
    assert version_of(deletion) == version + 1
    scratch.assert_predictions(asking.lethe.predict(scratch.graph.node_ids), asking.gone)


def test_requests_for_a_node_that_is_queued_already_wait_for_the_first_and_delete_the_rest(
    asking: Asking, scratch: Recomputation
) -> None:
    shared, other = asking.fresh(2)
    first = asking.delete([shared])
    same = asking.delete([shared])
    wider = asking.delete([shared, other])
    assert [asking.status(one) for one in (first, same, wider)] == ["queued"] * 3
    assert same.already_deleted == wider.already_deleted == {}

    filling = asking.delete(asking.fresh(BATCH))
    deletions = [asking.completed(one) for one in (first, same, wider, filling)]

    assert deletions[1].already_deleted_by == first.id
    assert deletions[1].audit is None
    assert deletions[0].audit is not None
    assert deletions[2].audit is not None
    # What the wider one shares might still be withdrawn with the first, so it waits until that is applied.
    assert deletions[0].audit.batch != deletions[2].audit.batch
    assert deletions[0].audit.batch.nodes == 1
    scratch.assert_predictions(asking.lethe.predict(scratch.graph.node_ids), asking.gone)


def test_a_request_cancelled_while_queued_leaves_everything_as_it_was(asking: Asking, scratch: Recomputation) -> None:
    (spared,) = asking.fresh(1)
    before = asking.client.predict(spared)
    cancelled = asking.client.request_deletion([spared])
    assert asking.client.cancel(cancelled.id).status == "cancelled"
    refused(asking.http.delete(f"/deletions/{cancelled.id}"), 409, "conflict")
    assert asking.client.predict(spared) == before

    completed = asking.delete(asking.fresh(BATCH))
    asking.completed(completed)
    refused(asking.http.delete(f"/deletions/{completed.id}"), 409, "conflict")
    assert asking.status(cancelled) == "cancelled"
    scratch.assert_predictions(asking.lethe.predict(scratch.graph.node_ids), asking.gone)

    # Who takes a request back may make it again.
    asking.completed(asking.delete([spared, *asking.fresh(BATCH - 1)]))
    refused(asking.http.get(f"/predict/{spared}"), 410, "node-deleted")


def test_a_cancellation_that_races_with_the_unlearner_is_one_or_the_other(
    models: Models, serve: Callable[..., LetheProcess], scratch: Recomputation
) -> None:
    with asking_of(serve(models.trained(SMALL), max_wait_ms=0), models) as asking:
        outcomes = _raced(asking)
        assert all(outcomes.values()), "no race was lost, or none was won"
        for node, request in outcomes["completed"]:
            assert asking.client.wait(request).audit is not None
            refused(asking.http.get(f"/predict/{node}"), 410, "node-deleted")
        for _, request in outcomes["cancelled"]:
            assert asking.client.deletion(request).status == "cancelled"
        gone = [node for node, _ in outcomes["completed"]]
        answer = asking.client.predict_many(scratch.graph.node_ids)
        assert len(answer.predictions) == scratch.graph.nodes - len(gone)
        scratch.assert_predictions(answer, gone)


def _raced(asking: Asking) -> dict[str, list[tuple[str, str]]]:
    """Nodes and their requests, by which came first: the cancellation or the unlearner."""
    outcomes: dict[str, list[tuple[str, str]]] = {"cancelled": [], "completed": []}
    waiting: list[tuple[str, str]] = []
    # Each is cancelled so many requests later; the longer that is, the likelier the unlearner was first.
    for lag in (0, 1, 2, 4, 8, 16, 32):
        for node in asking.fresh(12):
            waiting.append((node, asking.client.request_deletion([node]).id))
            if len(waiting) > lag:
                _cancel(asking, *waiting.pop(0), outcomes)
    for node, request in waiting:
        _cancel(asking, node, request, outcomes)
    return outcomes


def test_requests_that_cannot_be_taken_are_refused_and_change_nothing(asking: Asking) -> None:
    node, version, requests = *asking.fresh(1), asking.client.model().version, len(list(asking.client.deletions()))
    for body, status, slug in (
        (node_body(), 422, "invalid-request"),
        (node_body(node, node), 422, "duplicate-targets"),
        ({"kind": "node", "nodes": [int(node)]}, 422, "invalid-request"),
        ({"kind": "person", "nodes": [node]}, 422, "invalid-request"),
        (node_body(*(str(number) for number in range(401))), 413, "too-large"),
        (node_body(*(f"{number:0200}" for number in range(100))), 413, "too-large"),
    ):
        refused(asking.http.post("/deletions", json=body), status, slug)
    problem = refused(asking.http.post("/deletions", json=node_body(node, "nobody", "no one")), 404, "unknown-nodes")
    assert problem["unknown"] == ["nobody", "no one"]
    refused(asking.http.get("/deletions", params={"cursor": "nonsense"}), 400, "malformed-cursor")
    with httpx2.Client(base_url=asking.lethe.url) as stranger:
        refused(stranger.post("/deletions", json=node_body(node)), 401, "unauthenticated")
        refused(stranger.get(f"/predict/{node}"), 401, "unauthenticated")
    assert len(list(asking.client.deletions())) == requests
    assert asking.client.predict(node).model_version == asking.client.model().version == version


def _cancel(asking: Asking, node: str, request: str, outcomes: dict[str, list[tuple[str, str]]]) -> None:
    response = asking.http.delete(f"/deletions/{request}")
    assert response.status_code in (200, 409), response.text
    outcomes["cancelled" if response.status_code == 200 else "completed"].append((node, request))
