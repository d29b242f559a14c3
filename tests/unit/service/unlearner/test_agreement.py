"""Erasure at a restart: known from the version and, for edges, from the batch with the unfinished erasure."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pytest

from model_store.versions import SpanArrays, VersionState
from projector.graph.external_ids import NodeIds
from service.access.own_slots import OwnSlots, ReservedKey
from service.access.request_keys import RequestKeys, encrypt
from service.domain.kinds import RequestKind
from service.domain.records import KeySlot, QueuedRequest, Targets
from service.domain.states import RequestStatus
from service.errors import KeyMissing
from service.unlearner.agreement import deleted_edges, rows_of_edges
from service.unlearner.new_version import ToErase


@pytest.fixture
def slots(tmp_path: Path) -> Iterator[OwnSlots]:
    with OwnSlots.open(tmp_path / "keys" / "requests") as slots:
        yield slots


def sealed(kind: RequestKind, targets: Targets, reserved: ReservedKey, request_id: UUID) -> QueuedRequest:
    ciphertext = encrypt(targets, reserved.key, request_id)
    received = datetime(2026, 3, 2, tzinfo=UTC)
    return QueuedRequest(
        request_id, kind, RequestStatus.APPLIED, targets.count, ciphertext, None, received, uuid4(), *reserved.slot
    )


def version(live: list[bool], featured: list[bool]) -> VersionState:
    nothing = SpanArrays.untouched(np.zeros((0, 2, 2)))
    return VersionState(nothing, nothing, np.array(live), np.array(featured), rank=0)


def test_the_edges_of_all_edge_requests_of_an_unfinished_batch_are_still_to_be_erased(slots: OwnSlots) -> None:
    keys = RequestKeys(slots.folder)
    assert deleted_edges([], keys) == []
    first, second, third = (uuid4() for _ in range(3))
    key = slots.reserve([first, second, third])
    batch = [
        sealed(RequestKind.EDGE, Targets(edges=(("1", "2"), ("2", "3"))), key[first], first),
        sealed(RequestKind.NODE, Targets(nodes=("9",)), key[second], second),
        sealed(RequestKind.EDGE, Targets(edges=(("4", "9"),)), key[third], third),
    ]
    edges = deleted_edges(batch, keys)
    assert edges == [("1", "2"), ("2", "3"), ("4", "9")]
    # 9 is deleted, together with its edges.
    assert rows_of_edges(edges, NodeIds.of(["4", "3", "2", "1"])).tolist() == [[3, 2], [2, 1]]
    assert rows_of_edges([], NodeIds.of([])).shape == (0, 2)


def test_edges_that_cannot_be_read_any_more_stop_the_start_instead_of_coming_back(slots: OwnSlots) -> None:
    keys = RequestKeys(slots.folder)
    request_id = uuid4()
    reserved = ReservedKey(KeySlot(0, 1), bytes(32))
    request = sealed(RequestKind.EDGE, Targets(edges=(("1", "2"),)), reserved, request_id)
    with pytest.raises(KeyMissing, match="would come back"):
        deleted_edges([request], keys)
    assert slots.reserve([request_id])[request_id].slot == reserved.slot
    with pytest.raises(KeyMissing, match="does not fit"):
        deleted_edges([request], keys)


def test_the_first_erasure_looks_for_all_that_is_gone_and_later_ones_for_what_is_new() -> None:
    to_erase = ToErase(4, np.array([[0, 1]]))
    first = version([True, False, True, True], [False, False, True, True])
    erasure = to_erase.erasure(first)
    assert (erasure.nodes.tolist(), erasure.feature_rows.tolist(), erasure.edges.tolist()) == ([1], [0], [[0, 1]])
    # Everything that failed is tried again.
    assert to_erase.erasure(first).edges.tolist() == [[0, 1]]
    to_erase.erased(first)
    to_erase.add_edges(np.array([[2, 3]]))
    erasure = to_erase.erasure(version([True, False, True, False], [False, False, True, False]))
    assert (erasure.nodes.tolist(), erasure.feature_rows.tolist(), erasure.edges.tolist()) == ([3], [], [[2, 3]])
