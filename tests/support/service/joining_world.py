"""Requests by which something joins, straight into the queue, and the model that a fit on the same graph gives."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sqlalchemy import text

from model_store.build import build_model
from model_store.store import Store
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Graph, feature_rows
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import NodeContent, Targets
from service.requests.intake import NewRequest
from tests.support.service.db_harness import until
from tests.support.service.running import Lethe


async def take_in(
    lethe: Lethe,
    kind: RequestKind,
    content: Mapping[str, NodeContent] | None = None,
    *,
    nodes: Sequence[str] = (),
    edges: Sequence[tuple[str, str]] = (),
) -> UUID:
    """Queue a request and return its id."""
    services = lethe.services
    async with transaction(services.engine) as connection:
        key = await connection.scalar(text("SELECT id FROM api_keys LIMIT 1"))
    targets = Targets(nodes=tuple(nodes) or tuple(content or ()), edges=tuple(edges), content=content or {})
    new = NewRequest(model=services.model, kind=kind, targets=targets, reference=None, api_key_id=key)
    return (await services.deletions.intake.accept(new)).request.id


async def row(lethe: Lethe, request_id: UUID) -> Any:
    """Return what the database has of a request, with its norms and its batch."""
    query = text("""
        SELECT r.*, a.deleted, a.joined, a.rejoined, a.training_norm_before, a.training_norm_after, b.nodes_joined,
               b.edges_joined, b.features_joined, b.labels_joined, b.directions_gained
        FROM requests r LEFT JOIN request_audits a ON a.request_id = r.id LEFT JOIN batches b ON b.id = a.batch_id
        WHERE r.id = :id
    """)
    async with transaction(lethe.services.engine) as connection:
        return (await connection.execute(query, {"id": request_id})).one()


async def ended(lethe: Lethe, *request_ids: UUID) -> list[Any]:
    """Wait until these requests are completed or failed, and return their rows."""

    async def are_ended() -> bool:
        assert not lethe.failures
        return all([(await row(lethe, each)).status in ("completed", "failed") for each in request_ids])

    await until(are_ended)
    return [await row(lethe, each) for each in request_ids]


def graph_of(model: Path) -> Graph:
    """Return the graph of a store, in which erased nodes have neither id nor edges."""
    return Store.open(model).load_base().graph


def changed(
    graph: Graph,
    new: Mapping[str, tuple[Sequence[float], int]] | None = None,
    edges: Sequence[tuple[Any, ...]] = (),
    *,
    features: Mapping[str, Sequence[float]] | None = None,
    labels: Mapping[str, int] | None = None,
) -> Graph:
    """Return `graph` with new nodes (features and class, -1 for none), edges, and corrected features and classes.

    An edge's weight follows its ends; it is 1 by default.
    """
    added = dict(new or {})
    ids = [*graph.node_ids, *added]
    place = {node: at for at, node in enumerate(ids)}
    count = len(ids)
    A = sp.lil_array((count, count))
    A[: graph.nodes, : graph.nodes] = graph.adjacency
    for first, second, *weight in edges:
        A[place[first], place[second]] = A[place[second], place[first]] = weight[0] if weight else 1.0
    X = np.zeros((count, graph.num_features), dtype=graph.features.dtype)
    X[: graph.nodes] = feature_rows(graph.features, np.arange(graph.nodes))
    y = np.full(count, -1, dtype=np.int64)
    y[: graph.nodes] = graph.labels
    for node, (values, label) in added.items():
        X[place[node]], y[place[node]] = values, label
    for node, given in (features or {}).items():
        X[place[node]] = given
    for node, given_label in (labels or {}).items():
        y[place[node]] = given_label
    train = np.concatenate([graph.train_mask, np.zeros(len(added), dtype=np.bool_)])
    for node in [*added, *(labels or {})]:
        train[place[node]] = y[place[node]] >= 0
    other: dict[str, Any] = {
        name: np.concatenate([getattr(graph, name), np.zeros(len(added), dtype=np.bool_)]) for name in _OTHERS
    }
    adjacency = sp.csr_array(A)
    adjacency.sort_indices()
    return replace(
        graph, adjacency=adjacency, features=X, labels=y, train_mask=train, node_ids=NodeIds.of(ids), **other
    )


_OTHERS = ("val_mask", "test_mask")


def fitted(model: Path, graph: Graph) -> NDArray[np.float64]:
    """Return W (blocks, d, C) of a model trained on `graph` as the untouched one in `model` was."""
    return build_model(graph, Store.open(model).manifest.spec, name="again", dataset="again", split="full").weights
