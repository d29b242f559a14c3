"""Nodes declared public are never deleted: the API and the unlearner refuse requests that name them."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from service.domain.kinds import RequestKind
from service.domain.records import QueuedRequest, Targets
from service.domain.states import RequestStatus
from service.requests.deletable import PublicNodes, refuse_public
from service.unlearner.claims import DecryptedRequest
from service.unlearner.resolve import refused_for_public

IDS = ("a", "b", "c", "d")
PUBLIC = frozenset({"a", "b"})


def test_a_request_that_names_public_nodes_is_refused_naming_all_of_them() -> None:
    with pytest.raises(PublicNodes) as caught:
        refuse_public(PUBLIC, "cora", ["c", "b", "a"])
    assert caught.value.status == 409
    assert caught.value.detail.startswith("2 nodes are public: the MLP of the model cora was trained on")
    assert caught.value.extra == {"public": ["b", "a"]}
    assert "nothing was accepted" in caught.value.remedy


def test_only_an_edge_between_two_public_nodes_is_refused() -> None:
    with pytest.raises(PublicNodes) as caught:
        refuse_public(PUBLIC, "cora", [("a", "c"), ("a", "b"), ("c", "d")])
    assert caught.value.detail.startswith("1 edge joins two public nodes")
    assert caught.value.extra == {"public_edges": [("a", "b")]}
    refuse_public(PUBLIC, "cora", [("a", "c"), ("b", "d")])


def test_what_is_not_public_is_not_refused() -> None:
    refuse_public(PUBLIC, "cora", ["c", "d", "nobody"])


def claimed(kind: RequestKind, targets: Targets) -> DecryptedRequest:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    request = QueuedRequest(uuid4(), kind, RequestStatus.QUEUED, targets.count, b"sealed", None, now, None)
    return DecryptedRequest(request, targets)


def test_the_unlearner_refuses_what_names_public_nodes_and_nothing_else() -> None:
    node, mixed, features, edges, between = (
        claimed(RequestKind.NODE, Targets(nodes=("c", "d"))),
        claimed(RequestKind.NODE, Targets(nodes=("c", "a", "b"))),
        claimed(RequestKind.FEATURES, Targets(nodes=("a",))),
        claimed(RequestKind.EDGE, Targets(edges=(("a", "c"), ("c", "d")))),
        claimed(RequestKind.EDGE, Targets(edges=(("c", "d"), ("a", "b")))),
    )
    refused: dict[UUID, str] = refused_for_public([node, mixed, features, edges, between], PUBLIC)
    assert list(refused) == [mixed.request.id, features.request.id, between.request.id]
    assert refused[mixed.request.id].startswith("2 of its nodes are public: the model's MLP was trained on")
    assert refused[features.request.id].startswith("1 of its nodes are public")
    assert refused[between.request.id].startswith("1 of its edges join two public nodes")
    # The record must not name anyone.
    assert not any(f'"{name}"' in reason or f"'{name}'" in reason for reason in refused.values() for name in IDS)
    assert refused_for_public([mixed, between], frozenset()) == {}
