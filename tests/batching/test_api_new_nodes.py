"""Predictions of nodes outside the graph, over HTTP, with a stand-in for the unlearner that answers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.domain.scopes import Scope
from service.predictions.newcomers import Late, NotShown, Predicted, Question, Reply, Unfit, answered
from service.web.api import new_node_routes
from tests.support.service.api_harness import CLASSES, Api, publish, serving
from tests.support.service.bodies import node_body, refused

MOST = 5
ROW = {"0": 1.0, "2": -0.25}
OUTPUT = (0.3329, 0.3338, 0.3333)


@pytest.fixture
async def api(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path, redis_url=redis_url, max_predicted_nodes=MOST) as api:
        yield api


@pytest.fixture
async def unlearner(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[list[Question]]]]:
    """Start a stand-in that gives these replies, the last one again and again; return the questions that it gets."""
    async with AsyncExitStack() as running:

        async def start(*replies: Callable[[Question], Reply], name: str = "unlearner") -> list[Question]:
            questions = list[Question]()

            async def answer(question: Question) -> Reply:
                questions.append(question)
                return replies[min(len(questions), len(replies)) - 1](question)

            await running.enter_async_context(answered(tmp_path, name, answer))
            return questions

        yield start


def predicting(question: Question) -> Reply:
    return Predicted((OUTPUT,) * len(question.newcomers))


def body(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {"nodes": list(nodes) or [{"features": ROW, "neighbours": ["3", "user/38"]}]}


async def test_the_unlearner_is_asked_by_row_and_its_answer_is_rounded(api: Api, unlearner: Any) -> None:
    questions = await unlearner(predicting)
    for more, shown in (((), [0.33, 0.33, 0.33]), ((Scope.PREDICTIONS_EXACT,), OUTPUT)):
        client = await api.client(Scope.PREDICTIONS_NEW, *more)
        dense = {"features": [1.0, 0, -0.25], "neighbours": []}
        answer = (await client.post("/predict-new", json=body(*body()["nodes"], dense))).json()
        one = {"label": "b", "probabilities": dict(zip(CLASSES, shown, strict=True))}
        assert answer == {"model_version": 1, "predictions": [one, one]}
    sparse, full = questions[-1].newcomers
    assert (questions[-1].fencing, questions[-1].version) == (1, 1)
    assert (sparse.features, sparse.neighbours) == ({"0": 1.0, "2": -0.25}, (3, 38))
    assert (full.features, full.neighbours) == ((1.0, 0.0, -0.25), ())


@pytest.mark.parametrize(
    ("node", "place", "said"),
    [
        ({"neighbours": ["1"]}, "features", "is missing"),
        ({"features": {"": 1}}, "features", "at least 1"),
        ({"features": ["1"]}, "features", "number"),
        ({"features": ROW, "neighbours": ["1", "1"]}, "neighbours", "each neighbour once"),
        ({"features": ROW, "label": "a"}, "label", "is unknown here"),
    ],
)
async def test_what_is_malformed_is_refused_by_name(api: Api, node: dict[str, Any], place: str, said: str) -> None:
    client = await api.client(Scope.PREDICTIONS_NEW)
    document = refused(await client.post("/predict-new", json=body(node)), 422, "invalid-request")
    assert place in str(document["errors"])
    assert said in str(document["errors"])
    assert "0.25" not in str(document)


async def test_features_that_do_not_fit_the_model_are_refused_by_place(api: Api, unlearner: Any) -> None:
    await unlearner(lambda question: Unfit(1, "The features of a node are too long."))
    client = await api.client(Scope.PREDICTIONS_NEW)
    for wrong in ({"3": 1.0}, [1.0, 2.0]):
        nodes: list[dict[str, Any]] = [{"features": ROW}, {"features": wrong}]
        document = refused(await client.post("/predict-new", json=body(*nodes)), 422, "unfit-features")
        assert (document["unfit"], "3 columns" in document["detail"]) == ([1], True)
    document = refused(await client.post("/predict-new", json=body(*2 * [{"features": ROW}])), 422, "unfit-features")
    assert (document["unfit"], document["detail"]) == ([1], "The features of a node are too long.")


async def test_neighbours_that_are_not_there_are_refused_as_each_key_may_know(api: Api, unlearner: Any) -> None:
    questions = await unlearner(predicting)
    writer = await api.client(Scope.DELETIONS_WRITE)
    await api.forget(["7"], (await writer.post("/deletions", json=node_body("7"))).json()["id"])
    knowing = await api.client(Scope.PREDICTIONS_NEW, Scope.DELETIONS_READ)
    other = await api.client(Scope.PREDICTIONS_NEW)
    both = body({"features": ROW, "neighbours": ["1", "7"]}, {"features": ROW, "neighbours": ["nobody", "7"]})
    document = refused(await other.post("/predict-new", json=both), 404, "unknown-nodes")
    assert document["unknown"] == ["7", "nobody"]
    document = refused(await knowing.post("/predict-new", json=both), 404, "unknown-nodes")
    assert document["unknown"] == ["nobody"]
    gone = body({"features": ROW, "neighbours": ["1", "7"]})
    assert refused(await knowing.post("/predict-new", json=gone), 409, "deleted-nodes")["deleted"] == ["7"]
    assert questions == []


async def test_each_node_counts_each_time_with_those_of_the_graph(api: Api, unlearner: Any) -> None:
    questions = await unlearner(predicting)
    client = await api.client(Scope.PREDICTIONS_NEW, Scope.PREDICTIONS_READ)
    three = body(*3 * [{"features": ROW}])
    assert (await client.post("/predict-new", json=three)).status_code == 200
    document = refused(await client.post("/predict-new", json=three), 403, "node-limit-reached")
    assert (document["predicted_nodes"], document["max_predicted_nodes"]) == (3, MOST)
    assert (await client.post("/predict", json={"nodes": ["1", "2"]})).status_code == 200
    assert (await client.get("/predict/1")).status_code == 200
    refused(await client.get("/predict/3"), 403, "node-limit-reached")
    refused(await client.post("/predict-new", json=body()), 403, "node-limit-reached")
    publish(api.services.reader, api.publisher, replace(api.snapshot, version=2))
    assert (await client.post("/predict-new", json=three)).json()["model_version"] == 2
    assert len(questions) == 2
    many = body(*(new_node_routes.MOST_NODES + 1) * [{"features": ROW}])
    assert refused(await client.post("/predict-new", json=many), 413, "too-large")["max_nodes"] == 100


async def test_an_answer_counts_only_if_the_head_is_still_the_same(api: Api, unlearner: Any) -> None:
    """Otherwise a node that left meanwhile could have influenced it."""

    def overtaken(question: Question) -> Reply:
        publish(api.services.reader, api.publisher, replace(api.snapshot, version=question.version + 1))
        return predicting(question)

    questions = await unlearner(overtaken, lambda _: NotShown(), predicting)
    client = await api.client(Scope.PREDICTIONS_NEW)
    assert (await client.post("/predict-new", json=body())).json()["model_version"] == 2
    assert [question.version for question in questions] == [1, 2, 2]


async def test_without_an_unlearner_that_answers_there_is_no_prediction(
    api: Api, unlearner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await api.client(Scope.PREDICTIONS_NEW)
    refused(await client.post("/predict-new", json=body()), 503, "unavailable")
    # A standby waits for the lease; another unlearner shows the head.
    standby = await unlearner(lambda _: NotShown(), name="standby")
    monkeypatch.setattr(new_node_routes, "_LONGEST_S", 0.1)
    refused(await client.post("/predict-new", json=body()), 503, "unavailable")
    questions = await unlearner(predicting, lambda _: Late())
    assert (await client.post("/predict-new", json=body())).status_code == 200
    refused(await client.post("/predict-new", json=body()), 503, "unavailable")
    assert standby
    assert questions[0].within_s <= 0.1
