"""A small model with repairs: the result of retraining, and the records."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sqlalchemy import text

from model_store.build import build_model
from model_store.store import Store
from projector.graph.graph import Graph, feature_rows
from service.db.engine import create_engine
from service.db.transactions import transaction


def without(
    graph: Graph, nodes: Collection[str] = (), features: Collection[str] = (), edges: Collection[tuple[str, str]] = ()
) -> Graph:
    """Return `graph` with the nodes in place but without edges, features and label, so that they have no effect."""
    place = {node: row for row, node in enumerate(graph.node_ids)}
    gone = [place[node] for node in nodes]
    A = graph.adjacency.tolil(copy=True)
    A[gone], A[:, gone] = 0, 0
    for first, second in edges:
        A[place[first], place[second]] = A[place[second], place[first]] = 0
    X = feature_rows(graph.features, np.arange(graph.nodes)).astype(graph.features.dtype)
    X[[*gone, *(place[node] for node in features)]] = 0
    masks = {name: getattr(graph, name).copy() for name in ("train_mask", "val_mask", "test_mask")}
    for mask in masks.values():
        mask[gone] = False
    adjacency = sp.csr_array(A)
    adjacency.sort_indices()
    return replace(graph, adjacency=adjacency, features=X, **masks)


def retrained(model: Path, **deleted: Any) -> NDArray[np.float64]:
    """Return W (blocks, d, C) of an untouched model's folder, retrained without what is `deleted`."""
    store = Store.open(model)
    graph = without(store.load_base().graph, **deleted)
    return build_model(graph, store.manifest.spec, name="again", dataset="again", split="full").weights


@dataclass(frozen=True)
class Served:
    """The current content of a service's store."""

    model: Path

    @property
    def weights(self) -> NDArray[np.float64]:
        store = Store.open(self.model)
        return store.read_version(store.current()).features.weights

    def distance(self, weights: NDArray[np.float64]) -> float:
        """Return the relative distance of the committed weights from `weights`."""
        return float(np.linalg.norm(self.weights - weights) / np.linalg.norm(weights))

    def is_tidy(self) -> bool:
        """Whether there is exactly one version, with its own coefficients."""
        store = Store.open(self.model)
        return store.versions() == [store.current()] and not store.stale_coefficients(store.current())


async def query(url: str | None, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement. Raises Unavailable if Postgres stops meanwhile."""
    assert url is not None
    engine = create_engine(url, pool_size=1)
    try:
        async with transaction(engine) as connection:
            return [tuple(row) for row in await connection.execute(text(statement))]
    finally:
        await engine.dispose()


async def events(url: str | None) -> dict[str, list[str]]:
    """Return the event types of each request, in order."""
    found: dict[str, list[str]] = {}
    for request, kind in await query(url, "SELECT request_id, type FROM events ORDER BY id"):
        found.setdefault(str(request), []).append(kind)
    return found
