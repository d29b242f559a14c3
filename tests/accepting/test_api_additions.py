"""Adding nodes and edges, and correcting nodes: what is accepted, what is refused, and that nothing is half written."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest

from service.access.api_keys import ApiKeyRepository, new_api_key
from service.access.request_keys import decrypt
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import NodeContent, Targets
from service.domain.scopes import Scope
from service.requests.lookup import RequestRepository
from service.requests.moves import RequestMoves
from tests.support.service.api_harness import NODES, Api, serving
from tests.support.service.bodies import GRAPH_WRITER, WRITER, new_node, node_body, refused

ROW = [0.5, 0.0, 1.0]


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path, max_nodes_per_request=30, max_queued_nodes=60) as api:
        yield api


@pytest.fixture
async def writer(api: Api) -> httpx2.AsyncClient:
    return await api.client(*GRAPH_WRITER)


async def stored(api: Api, request_id: str) -> Targets:
    """What a queued request names, decrypted."""
    async with transaction(api.engine) as connection:
        [request] = await RequestRepository(connection).queued(api.services.model, [UUID(request_id)])
    key = api.request_keys.get(request.id, request.key_slot)
    assert key is not None
    assert request.ciphertext is not None
    return decrypt(request.ciphertext, key, request.id)


async def test_an_addition_is_accepted_durably_and_can_be_followed(api: Api, writer: httpx2.AsyncClient) -> None:
    body = {
        "nodes": [new_node("anna", label="b"), {"id": "bert", "features": ROW, "rejoin": True}],
        "edges": [["bert", "anna"], ["anna", "12"]],
        "reference": "sign-up 1",
    }
    response = await writer.post("/additions", json=body)
    assert response.status_code == 202, response.text
    accepted = response.json()
    assert response.headers["location"] == accepted["links"]["self"] == f"/additions/{accepted['id']}"
    assert (accepted["status"], accepted["kind"], accepted["count"]) == ("queued", "addition", 4)
    assert set(accepted["salts"]["nodes"]) == {"anna", "bert", "12"}

    targets = await stored(api, accepted["id"])
    assert (targets.nodes, targets.edges) == (("anna", "bert"), (("anna", "bert"), ("12", "anna")))
    assert targets.content == {
        "anna": NodeContent({"0": 1.0, "2": 0.5}, "b"),
        "bert": NodeContent((0.5, 0.0, 1.0), None, rejoin=True),
    }
    for path in (response.headers["location"], f"/deletions/{accepted['id']}"):
        seen = (await writer.get(path)).json()
        assert (seen["id"], seen["kind"], seen["links"]) == (accepted["id"], "addition", accepted["links"])
    refused(await writer.get(f"/corrections/{accepted['id']}"), 404, "not-found")
    assert (await api.count("outbox"), await api.count("queued_joins")) == (1, 2)


async def test_a_correction_is_accepted_durably_and_can_be_followed(api: Api, writer: httpx2.AsyncClient) -> None:
    body = {"nodes": [{"id": "12", "features": ROW}, {"id": "13", "label": "c"}]}
    accepted = (await writer.post("/corrections", json=body)).json()
    assert (accepted["kind"], accepted["count"]) == ("correction", 2)
    assert accepted["links"] == {"self": f"/corrections/{accepted['id']}"}
    assert (await stored(api, accepted["id"])).content == {
        "12": NodeContent((0.5, 0.0, 1.0)),
        "13": NodeContent(None, "c"),
    }
    assert (await writer.get(f"/corrections/{accepted['id']}")).json()["status"] == "queued"
    assert await api.count("queued_joins") == 0


BAD_ADDITIONS: list[tuple[Any, list[str | int]]] = [
    ({}, ["body"]),
    ({"nodes": [], "edges": []}, ["body"]),
    ({"nodes": ["anna"]}, ["body", "nodes", 0]),
    ({"nodes": [{"id": "anna"}]}, ["body", "nodes", 0, "features"]),
    ({"nodes": [{"id": "", "features": ROW}]}, ["body", "nodes", 0, "id"]),
    ({"nodes": [{"id": "a\nb", "features": ROW}]}, ["body", "nodes", 0, "id"]),
    ({"nodes": [{"id": " a", "features": ROW}]}, ["body", "nodes", 0, "id"]),
    ({"nodes": [{"id": 7, "features": ROW}]}, ["body", "nodes", 0, "id"]),
    ({"nodes": [{"id": "a", "features": [1, "2"]}]}, ["body", "nodes", 0, "features", "dense", 1]),
    ({"nodes": [{"id": "a", "features": [True]}]}, ["body", "nodes", 0, "features", "dense", 0]),
    ({"nodes": [{"id": "a", "features": {"": 1}}]}, ["body", "nodes", 0, "features", "by_column", "", "[key]"]),
    ({"nodes": [{"id": "a", "features": {"1": None}}]}, ["body", "nodes", 0, "features", "by_column", "1", "number"]),
    ({"nodes": [{"id": "a", "features": ROW, "label": True}]}, ["body", "nodes", 0, "label", "target"]),
    ({"nodes": [{"id": "a", "features": ROW, "rejoin": 1}]}, ["body", "nodes", 0, "rejoin"]),
    ({"nodes": [{"id": "a", "features": ROW, "colour": 1}]}, ["body", "nodes", 0, "colour"]),
    ({"edges": [["1", "2", 3, 4]]}, ["body", "edges", 0, "pair"]),
    ({"edges": [["1", "2", "3"]]}, ["body", "edges", 0, "weighted", 2]),
    ({"edges": [["1", "2", 0]]}, ["body", "edges", 0, "weighted", 2]),
    ({"edges": [["1", "2", -0.5]]}, ["body", "edges", 0, "weighted", 2]),
]
BAD_CORRECTIONS: list[tuple[Any, list[str | int]]] = [
    ({"nodes": []}, ["body", "nodes"]),
    ({"nodes": [{"id": "12"}]}, ["body", "nodes", 0]),
    ({"nodes": [{"id": "12", "features": ROW, "label": None}]}, ["body", "nodes", 0, "label"]),
    ({"nodes": [{"id": "12", "features": None, "label": "a"}]}, ["body", "nodes", 0, "features"]),
    ({"nodes": [{"id": "12", "features": ROW, "rejoin": True}]}, ["body", "nodes", 0, "rejoin"]),
    ({"nodes": [{"id": "12", "features": ROW}], "edges": []}, ["body", "edges"]),
]


async def test_a_body_that_does_not_fit_the_schema_names_the_place(api: Api, writer: httpx2.AsyncClient) -> None:
    for path, bodies in (("/additions", BAD_ADDITIONS), ("/corrections", BAD_CORRECTIONS)):
        for body, place in bodies:
            document = refused(await writer.post(path, json=body), 422, "invalid-request")
            assert place in [fault["loc"] for fault in document["errors"]], (body, document)
            assert all("see the documentation" not in fault["msg"] for fault in document["errors"]), document
    huge = b'{"nodes": [{"id": "a", "features": [1e999, 0, 0]}]}'
    response = await writer.post("/additions", content=huge, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    assert await api.count("requests") == 0


@pytest.mark.parametrize("path", ["/additions", "/corrections"])
async def test_features_and_labels_that_do_not_fit_the_model_are_named(
    api: Api, writer: httpx2.AsyncClient, path: str
) -> None:
    ids = ("anna", "bert", "carl") if path == "/additions" else ("12", "13", "14")
    named: list[Any] = [{"3": 1.0}, {"1.5": 1}, {"-1": 1}, {"01": 1}, {"age": 1}, {"1": "red"}, {"1": [1.0]}]
    for wrong in ([1.0, 2.0], [1.0] * 4, *named):
        nodes = [{"id": ids[0], "features": ROW}, {"id": ids[1], "features": wrong}]
        document = refused(await writer.post(path, json={"nodes": nodes}), 422, "unfit-features")
        assert document["unfit"] == [ids[1]]
        assert "3 columns" in document["detail"]
    for label in ("d", 1.0, [1.0, 2.0, 3.0]):
        nodes = [{"id": ids[2], "features": ROW, "label": label}]
        assert refused(await writer.post(path, json={"nodes": nodes}), 422, "unfit-labels")["unfit"] == [ids[2]]
    assert await api.count("requests") == 0


async def test_weights_are_refused_where_the_graph_has_none(api: Api, writer: httpx2.AsyncClient) -> None:
    edges = [["1", "9", 2.5], ["1", "12", 1]]
    document = refused(await writer.post("/additions", json={"edges": edges}), 422, "unfit-weights")
    assert document["unfit_edges"] == [["1", "9"]]
    assert await api.count("requests") == 0
    assert (await writer.post("/additions", json={"edges": edges[1:]})).status_code == 202


async def test_an_addition_of_what_is_there_is_refused_by_name(api: Api, writer: httpx2.AsyncClient) -> None:
    nodes = [new_node("anna"), new_node("5"), new_node("user/38", rejoin=True)]
    assert refused(await writer.post("/additions", json={"nodes": nodes}), 409, "known-nodes")["known"] == [
        "5",
        "user/38",
    ]
    edges = [["anna", "5"], ["2", "1"], ["1", "9"]]
    answer = await writer.post("/additions", json={"nodes": [new_node("anna")], "edges": edges})
    assert refused(answer, 409, "known-edges")["known_edges"] == [["1", "2"]]
    answer = await writer.post("/additions", json={"edges": [["1", "9"], ["1", "nobody"], ["x", "y"]]})
    assert refused(answer, 404, "unknown-nodes")["unknown"] == ["nobody", "x", "y"]
    answer = await writer.post("/additions", json={"nodes": [new_node("anna"), new_node("anna")]})
    assert refused(answer, 422, "duplicate-targets")["duplicates"] == ["anna"]
    answer = await writer.post("/additions", json={"edges": [["1", "9"], ["9", "1"]]})
    assert refused(answer, 422, "duplicate-targets")["duplicates"] == [["1", "9"]]
    answer = await writer.post("/additions", json={"nodes": [new_node("anna")], "edges": [["anna", "anna"]]})
    assert refused(answer, 422, "self-loops")["self_loops"] == ["anna"]
    assert (await api.count("requests"), await api.count("queued_joins")) == (0, 0)


async def test_a_deleted_node_joins_again_only_if_that_is_said(api: Api, writer: httpx2.AsyncClient) -> None:
    earlier = (await writer.post("/deletions", json=node_body("5"))).json()["id"]
    await api.forget(["5"], earlier)
    answer = await writer.post("/additions", json={"nodes": [new_node("5"), new_node("anna")]})
    assert refused(answer, 409, "deleted-nodes")["deleted"] == ["5"]
    for path, body in (("/additions", {"edges": [["1", "5"]]}), ("/corrections", {"nodes": [new_node("5")]})):
        assert refused(await writer.post(path, json=body), 409, "deleted-nodes")["deleted"] == ["5"]
    answer = await writer.post("/additions", json={"nodes": [new_node("5", rejoin=True)], "edges": [["1", "5"]]})
    assert answer.status_code == 202


async def test_a_correction_of_an_unknown_node_is_refused_by_name(api: Api, writer: httpx2.AsyncClient) -> None:
    answer = await writer.post("/corrections", json={"nodes": [new_node("nobody"), new_node("5")]})
    assert refused(answer, 404, "unknown-nodes")["unknown"] == ["nobody"]
    assert await api.count("requests") == 0


async def test_what_is_queued_to_join_can_be_linked_corrected_and_deleted(api: Api, writer: httpx2.AsyncClient) -> None:
    addition = (await writer.post("/additions", json={"nodes": [new_node("anna")]})).json()["id"]
    assert (await writer.post("/additions", json={"edges": [["anna", "5"]]})).status_code == 202
    assert (await writer.post("/corrections", json={"nodes": [new_node("anna")]})).status_code == 202
    deletion = (await writer.post("/deletions", json=node_body("anna", "5"))).json()
    assert (deletion["count"], deletion["already_deleted"]) == (2, {})
    features = (await writer.post("/deletions", json={"kind": "features", "nodes": ["anna"]})).json()
    assert (features["count"], features["already_deleted"]) == (1, {})
    # A key that may only write learns no more than that the id is known.
    deleter = await api.client(Scope.DELETIONS_WRITE)
    open_ones = [deletion, features]
    for kind in ("node", "features", "label"):
        document = (await deleter.post("/deletions", json={"kind": kind, "nodes": ["anna"]})).json()
        assert (document["status"], document["count"], document["already_deleted"]) == ("queued", 1, {})
        open_ones.append(document)
        refused(await deleter.post("/deletions", json={"kind": kind, "nodes": ["nobody"]}), 404, "unknown-targets")
    # Only as long as it is queued, or a deletion that names it.
    assert (await writer.delete(f"/additions/{addition}")).json()["status"] == "cancelled"
    assert await api.count("queued_joins") == 2
    for one in open_ones:
        by = deleter if one in open_ones[2:] else writer
        assert (await by.delete(one["links"]["self"])).json()["status"] == "cancelled"
    assert await api.count("queued_joins") == 0
    refused(await writer.post("/deletions", json=node_body("anna")), 404, "unknown-nodes")


async def test_a_deletion_of_who_is_queued_to_come_back_is_not_done_already(
    api: Api, writer: httpx2.AsyncClient
) -> None:
    earlier = (await writer.post("/deletions", json=node_body("5"))).json()["id"]
    await api.forget(["5"], earlier)
    await api.complete(earlier)
    await writer.post("/additions", json={"nodes": [new_node("5", rejoin=True)]})
    assert (await writer.post("/deletions", json=node_body("5", "6"))).json()["already_deleted"] == {}


async def test_the_same_idempotency_key_and_body_give_the_same_answer(api: Api, writer: httpx2.AsyncClient) -> None:
    headers = {"Idempotency-Key": "order-1"}
    body = {"nodes": [{"id": "anna", "features": ROW}]}
    first = await writer.post("/additions", json=body, headers=headers)
    assert (await writer.post("/additions", json=body, headers=headers)).json() == first.json()
    other = {"nodes": [{"id": "anna", "features": [0.5, 0.0, 1.5]}]}
    refused(await writer.post("/additions", json=other, headers=headers), 409, "conflict")
    refused(await writer.post("/corrections", json=body, headers=headers), 409, "conflict")
    assert (await api.count("requests"), await api.count("queued_joins")) == (1, 1)


async def test_limits_are_those_of_deletions(api: Api, writer: httpx2.AsyncClient) -> None:
    many = {"nodes": [new_node(f"new {place}") for place in range(20)], "edges": [[f"new {n}", "1"] for n in range(11)]}
    assert refused(await writer.post("/additions", json=many), 413, "too-large")["max_nodes"] == 30
    for first in (0, 30):
        nodes = [new_node(f"new {place}") for place in range(first, first + 30)]
        assert (await writer.post("/additions", json={"nodes": nodes})).status_code == 202
    refused(await writer.post("/additions", json={"nodes": [new_node("anna")]}), 429, "queue-full")


async def test_salts_may_be_given(api: Api, writer: httpx2.AsyncClient) -> None:
    salts = {node: f"{place:048x}" for place, node in enumerate(("anna", "1"), start=1)}
    body = {"nodes": [new_node("anna")], "edges": [["anna", "1"]], "salts": {"nodes": salts}}
    assert (await writer.post("/additions", json=body)).json()["salts"]["nodes"] == salts
    short = {"nodes": [new_node("bert")], "edges": [["bert", "1"]], "salts": {"nodes": {"bert": f"{9:048x}"}}}
    assert refused(await writer.post("/additions", json=short), 422, "unfit-salts")["without_salt"] == ["1"]


async def test_a_key_for_some_kinds_makes_no_requests_of_others(api: Api) -> None:
    made = new_api_key()
    async with transaction(api.engine) as connection:
        await ApiKeyRepository(connection).create(
            made.id,
            "edges and additions",
            [Scope.DELETIONS_WRITE, Scope.GRAPH_WRITE],
            api.services.keyring.api_key_hash(made.text),
            kinds=[RequestKind.EDGE, RequestKind.ADDITION],
        )
    client = await api.client_with(made.text)
    assert (await client.post("/additions", json={"nodes": [new_node("anna")]})).status_code == 202
    document = refused(await client.post("/deletions", json=node_body("1")), 403, "kind-not-allowed")
    assert document["detail"] == "This API key may not make requests of the kind node, only addition or edge."
    refused(await client.post("/corrections", json={"nodes": [{"id": "1", "label": "0"}]}), 403, "kind-not-allowed")
    refused(await client.post("/drills"), 403, "kind-not-allowed")


async def test_requests_need_a_scope_of_their_own_and_so_does_cancelling(api: Api) -> None:
    deleter, grower = await api.client(*WRITER), await api.client(Scope.GRAPH_WRITE)
    body = {"nodes": [new_node("anna")]}
    for path in ("/additions", "/corrections"):
        assert refused(await deleter.post(path, json=body), 403, "missing-scope")["scope"] == "graph:write"
    refused(await grower.post("/deletions", json=node_body("1")), 403, "missing-scope")
    addition = (await grower.post("/additions", json=body)).json()["id"]
    refused(await deleter.delete(f"/additions/{addition}"), 403, "missing-scope")
    refused(await grower.delete(f"/corrections/{addition}"), 404, "not-found")
    assert (await grower.delete(f"/additions/{addition}")).json()["status"] == "cancelled"
    refused(await grower.delete(f"/additions/{addition}"), 409, "conflict")


async def test_refusals_are_recorded_without_names(api: Api, writer: httpx2.AsyncClient) -> None:
    await writer.post("/additions", json={"nodes": [new_node("5")]})
    await writer.post("/corrections", json={"nodes": [new_node("nobody")]})
    async with transaction(api.engine) as connection:
        rows = (await connection.exec_driver_sql("SELECT * FROM audit_refusals ORDER BY refused_at")).mappings().all()
    assert [(row["kind"], row["named"], row["reason"]) for row in rows] == [
        ("addition", 1, "known-nodes"),
        ("correction", 1, "unknown-nodes"),
    ]
    assert "nobody" not in str(rows)


async def test_a_key_that_may_only_write_gets_one_answer_for_all_ids(api: Api, writer: httpx2.AsyncClient) -> None:
    earlier = (await writer.post("/deletions", json=node_body("5"))).json()["id"]
    await api.forget(["5"], earlier)
    grower = await api.client(Scope.GRAPH_WRITE)
    ids = ("5", "6", "nobody", *NODES[10:13])
    answers = [await grower.post("/additions", json={"nodes": [new_node(node)]}) for node in ids]
    answers += [await grower.post("/additions", json={"edges": [[node, "20"]]}) for node in (*ids, "19")]
    answers += [await grower.post("/corrections", json={"nodes": [new_node(node)]}) for node in ids]
    results = {
        (answer.status_code, answer.json()["status"], answer.json()["count"], str(answer.json()["already_deleted"]))
        for answer in answers
    }
    assert results == {(202, "queued", 1, "{}")}
    for answer in answers:
        refused(await grower.get(answer.headers["location"]), 403, "missing-scope")
        assert (await grower.delete(answer.headers["location"])).status_code == 200


async def test_a_repetition_does_not_reveal_to_a_key_that_may_only_write_that_an_addition_failed(api: Api) -> None:
    grower = await api.client(Scope.GRAPH_WRITE)
    ids = {}
    for node in ("5", "nobody"):
        answer = await grower.post(
            "/additions", json={"nodes": [new_node(node)]}, headers={"Idempotency-Key": f"add-{node}"}
        )
        ids[node] = answer.json()["id"]
    async with transaction(api.engine) as connection:
        requests = RequestMoves(connection)
        assert len(await requests.take([UUID(request) for request in ids.values()])) == 2
        await requests.mark_failed(UUID(ids["5"]), "A node that it adds is in the graph already.")
    await api.complete(ids["nobody"])

    async def assert_nothing_is_revealed() -> None:
        for node, request in ids.items():
            again = await grower.post(
                "/additions", json={"nodes": [new_node(node)]}, headers={"Idempotency-Key": f"add-{node}"}
            )
            document = again.json()
            assert (again.status_code, document["id"]) == (202, request)
            assert (document["status"], document["salts"]) == ("queued", None), node

    await assert_nothing_is_revealed()
    operator = await api.client(Scope.DELETIONS_WRITE, Scope.GRAPH_WRITE, Scope.AUDIT_READ)
    assert (await operator.post(f"/deletions/{ids['5']}/retry")).json()["status"] == "queued"
    await assert_nothing_is_revealed()


async def test_labels_are_withdrawn_unless_nothing_would_unlearn_them(
    api: Api, writer: httpx2.AsyncClient, database_url: str, tmp_path: Path
) -> None:
    accepted = (await writer.post("/deletions", json={"kind": "label", "nodes": ["1", "2"]})).json()
    assert (accepted["kind"], accepted["count"]) == ("label", 2)
    refused(await writer.post("/deletions", json={"kind": "label", "nodes": ["nobody"]}), 404, "unknown-nodes")
    await api.forget(["1"], accepted["id"], RequestKind.LABEL)
    again = (await writer.post("/deletions", json={"kind": "label", "nodes": ["1", "3"]})).json()
    assert again["already_deleted"] == {"1": accepted["id"]}


async def test_labels_are_not_withdrawn_from_a_model_without_repair(database_url: str, tmp_path: Path) -> None:
    async with serving(database_url, tmp_path, repair="never") as api:
        writer = await api.client(*GRAPH_WRITER)
        answer = await writer.post("/deletions", json={"kind": "label", "nodes": ["1"]})
        refused(answer, 409, "needs-repair")
        assert await api.count("requests") == 0
