"""The Open Inference Protocol: the shapes of its answers, its errors, and its tensors in JSON and in binary form."""

import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import numpy as np
import pytest

from service.domain.scopes import Scope
from service.predictions.reader import Reader
from service.version import VERSION
from service.web.services import Services
from tests.support.service.api_harness import CLASSES, NODES, Api, serving
from tests.support.service.bodies import node_body

INFER = "/v2/models/tiny/infer"
TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "datatype": {"enum": ["BOOL", "INT64", "FP32", "FP64", "BYTES"]},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": {"type": "array", "items": {"type": ["number", "string", "boolean"]}},
        "parameters": {"type": "object"},
    },
    "additionalProperties": False,
}
#: The response objects of the protocol (kserve/open-inference-protocol, inference_rest.md), by path.
SHAPES: dict[str, dict[str, Any]] = {
    "/v2": {"name": {"type": "string"}, "version": {"type": "string"}, "extensions": {"type": "array"}},
    "/v2/models/tiny": {
        "name": {"type": "string"},
        "versions": {"type": "array", "items": {"type": "string"}},
        "platform": {"type": "string"},
        "inputs": {"type": "array", "items": TENSOR},
        "outputs": {"type": "array", "items": TENSOR},
    },
    "/v2/models/tiny/ready": {"name": {"const": "tiny"}, "ready": {"const": True}},
    "/v2/health/live": {"live": {"const": True}},
    "/v2/health/ready": {"live": {"const": True}, "ready": {"const": True}},
    INFER: {
        "model_name": {"const": "tiny"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "outputs": {"type": "array", "items": TENSOR},
    },
}


def fits(path: str, document: Any, *optional: str) -> None:
    shape = SHAPES[path]
    required = [name for name in shape if name not in optional]
    jsonschema_rs.validate(
        {"type": "object", "properties": shape, "required": required, "additionalProperties": False}, document
    )


def failed(answer: httpx2.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert isinstance(error, str)
    assert all(word in error for word in words), error


def asking(*nodes: object, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "node", "shape": [len(nodes)], "datatype": "BYTES", "data": list(nodes)}], **more}


def packed(*texts: str) -> bytes:
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path, max_nodes_per_request=50) as api:
        yield api


@pytest.fixture
async def client(api: Api) -> httpx2.AsyncClient:
    return await api.client(Scope.PREDICTIONS_READ)


async def test_server_and_model_are_described_as_the_protocol_says(api: Api, client: httpx2.AsyncClient) -> None:
    for path in SHAPES:
        if path != INFER:
            answer = await client.get(path)
            assert answer.status_code == 200
            fits(path, answer.json())
    assert (await client.get("/v2")).json()["version"] == VERSION
    model = (await client.get("/v2/models/tiny")).json()
    assert model == (await client.get("/v2/models/tiny/versions/1")).json()
    assert [(one["name"], one["datatype"], one["shape"]) for one in (*model["inputs"], *model["outputs"])] == [
        ("node", "BYTES", [-1]),
        ("label", "BYTES", [-1]),
        ("probabilities", "FP64", [-1, 3]),
    ]
    assert model["outputs"][1]["parameters"] == {"labels": list(CLASSES)}
    nobody = await api.client_with(None, ("203.0.113.9", 4711))
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready"):
        assert (await nobody.get(path)).status_code == 200
    failed(await nobody.get("/v2/models/other/ready"), 404, "No model")
    failed(await nobody.get("/v2/models/tiny"), 401, "API key")
    for path in ("/v2/models/tiny/versions/1", INFER, "/v2/models/tiny/versions/1/infer"):
        answer = await (nobody.post(path, json=asking("1")) if path.endswith("infer") else nobody.get(path))
        failed(answer, 401, "API key")
    failed(await client.get("/v2/models/tiny/versions/7"), 404, "version 1 is")
    failed(await client.get("/v2/no-such-route"), 404, "does not exist")
    failed(await client.put("/v2"), 405, "Allow")


async def test_tensors_hold_what_predict_answers(api: Api, client: httpx2.AsyncClient) -> None:
    nodes = [*NODES[::-1], NODES[3]]
    predicted = (await client.post("/predict", json={"nodes": nodes})).json()
    answer = await client.post(INFER, json=asking(*nodes, id="a request"))
    document = answer.json()
    fits(INFER, document)
    assert (document["model_version"], document["id"]) == (str(predicted["model_version"]), "a request")
    label, probabilities = document["outputs"]
    assert label["data"] == [one["label"] for one in predicted["predictions"]]
    assert probabilities["shape"] == [len(nodes), 3]
    rows = [list(one["probabilities"].values()) for one in predicted["predictions"]]
    assert probabilities["data"] == [value for row in rows for value in row]
    column = asking(*nodes)
    column["inputs"][0] |= {"shape": [len(nodes), 1], "data": [[node] for node in nodes]}
    column["inputs"][0]["parameters"] = {"content_type": "str"}
    one = {"outputs": [{"name": "probabilities"}]}
    alone = (await client.post("/v2/models/tiny/versions/1/infer", json=column | one)).json()
    fits(INFER, alone, "id")
    assert alone["outputs"] == [probabilities]


async def test_tensors_may_be_binary_in_either_direction(client: httpx2.AsyncClient) -> None:
    nodes = ("1", "ålesund 39")
    plain = (await client.post(INFER, json=asking(*nodes))).json()["outputs"]
    given = {"name": "node", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": len(packed(*nodes))}}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    sizes = {"Inference-Header-Content-Length": str(len(head))}
    answer = await client.post(INFER, content=head + packed(*nodes), headers=sizes)
    size = int(answer.headers["inference-header-content-length"])
    label, probabilities = json.loads(answer.content[:size])["outputs"]
    split = size + label["parameters"]["binary_data_size"]
    assert answer.content[size:split] == packed(*plain[0]["data"])
    assert np.frombuffer(answer.content[split:], "<f8").tolist() == plain[1]["data"]
    assert probabilities["parameters"]["binary_data_size"] == len(answer.content) - split
    some = asking(*nodes, outputs=[{"name": "probabilities", "parameters": {"binary_data": True}}, {"name": "label"}])
    answer = await client.post(INFER, json=some)
    size = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.content[:size])["outputs"][1] == plain[0]
    assert np.frombuffer(answer.content[size:], "<f8").tolist() == plain[1]["data"]
    for broken in (packed(*nodes)[:-1], packed(*nodes) + b"\0"):
        failed(await client.post(INFER, content=head + broken, headers=sizes), 400, "binary_data_size")
    failed(await client.post(INFER, content=head, headers={"Inference-Header-Content-Length": "9999"}), 400, "size")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"inputs": []}, "one input"),
    ({"inputs": 3}, "inputs"),
    (asking("1") | {"input": []}, "input"),
    (asking(), "at least 1"),
    (asking(1), "string"),
    (asking("1", outputs=[{"name": "logits"}]), "'logits'"),
    (asking("1", outputs=[{"name": "label"}, {"name": "label"}]), "twice"),
    (asking("1", outputs=[{"name": "label", "parameters": {"classification": 2}}]), "'classification'"),
    (asking("1", parameters={"sequence_id": 3}), "'sequence_id'"),
    (asking("1", parameters={"binary_data_output": 1}), "'binary_data_output'"),
]
for _change, _word in (
    ({"name": "nodes"}, "'nodes'"),
    ({"datatype": "INT64"}, "INT64"),
    ({"shape": [2]}, "[2]"),
    ({"shape": [1, 2]}, "[1, 2]"),
    ({"shape": [[1]]}, "shape"),
    ({"data": [["1", "2"]]}, "string"),
    ({"parameters": {"binary_data_size": 5}}, "once"),
    ({"parameters": {"content_type": "pd"}}, "'content_type'"),
):
    WRONG.append(({"inputs": [asking("1")["inputs"][0] | _change]}, _word))


async def test_what_is_wrong_in_a_request_is_named(client: httpx2.AsyncClient) -> None:
    for body, word in WRONG:
        failed(await client.post(INFER, json=body), 400, word)
    failed(await client.post(INFER, content=b"{"), 400, "JSON")
    # Neither could be in an answer.
    failed(await client.post(INFER, content=json.dumps(asking("1") | {"id": "\ud800"}).encode()), 400, "surrogate")
    endless = {"Inference-Header-Content-Length": "9" * 5_000}
    failed(await client.post(INFER, content=b"{}", headers=endless), 400, "size")
    failed(await client.post(INFER, data={"inputs": "1"}), 415, "application/json")
    failed(await client.post(INFER, content=b'{"id": "1", "id": "2"}'), 422, "`id`")
    failed(await client.post(INFER, json=asking(*["1"] * 51)), 413, "50 per request")
    failed(await client.post("/v2/models/other/infer", json=asking("1")), 404, "No model")
    failed(await client.post(f"{INFER}?a=b", json=asking("1")), 422, "`a`")


async def test_ids_without_a_node_are_named_and_deleted_ones_to_those_who_may_know(
    api: Api, client: httpx2.AsyncClient
) -> None:
    writer = await api.client(Scope.DELETIONS_WRITE)
    await api.forget(["7"], (await writer.post("/deletions", json=node_body("7"))).json()["id"])
    informed = await api.client(Scope.PREDICTIONS_READ, Scope.DELETIONS_READ)
    failed(await client.post(INFER, json=asking("7")), 404, "Unknown nodes: 7.")
    failed(await informed.post(INFER, json=asking("7", "8")), 410, "Deleted on request: 7.")
    answer = await informed.post(INFER, json=asking("7", "nobody", "8"))
    failed(answer, 404, "Unknown nodes: nobody.", "Deleted on request: 7.")
    assert (answer.json()["unknown"], answer.json()["deleted"]) == (["nobody"], ["7"])


async def test_nothing_is_ready_without_a_version(api: Api, client: httpx2.AsyncClient, tmp_path: Path) -> None:
    services: Services = api.services
    api.app.state.services = type(services)(**vars(services) | {"reader": Reader(tmp_path)})
    for path in ("/v2/health/ready", "/v2/models/tiny/ready", "/v2/models/tiny"):
        failed(await client.get(path), 503, "committed version")
    assert (await client.get("/v2/health/live")).status_code == 200
