"""Publications for tests: small models in a test's folder, and their readers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.versions import VersionRef
from projector.forgetting.canaries import Canaries
from projector.graph.edges import Edges
from projector.graph.external_ids import NodeIds
from service.domain.snapshot import Snapshot
from service.predictions.facts import ModelFacts, VersionFacts
from service.predictions.heads import Head
from service.predictions.layout import Layout
from service.predictions.mapped import View, open_view
from service.predictions.reader import Prediction, Reader, Scores
from service.predictions.writer import PublishedModel, Publisher

CLASSES = ("red", "green")


def model_facts(nodes: int, classes: Sequence[str] = CLASSES, hops: int = 2) -> ModelFacts:
    return ModelFacts(
        name="tiny",
        nodes=nodes,
        features=3,
        classes=tuple(classes),
        hops=hops,
        combine="last",
        propagation="sym",
        loss="softmax",
        regularization=1e-4,
        condition_number=12.5,
    )


def version_facts(snapshot: Snapshot) -> VersionFacts:
    return VersionFacts(
        version=snapshot.version,
        live_nodes=int(snapshot.live.sum()),
        edges=snapshot.edges.adjacency.nnz // 2,
        rank=3,
        distance_bound=1e-9,
        distance_bound_relative=None,
        device="cpu",
    )


def published_model(
    ids: Sequence[str],
    snapshot: Snapshot,
    *,
    classes: Sequence[str] = CLASSES,
    public: Sequence[str] = (),
    canaries: Canaries | None = None,
    hops: int = 2,
) -> PublishedModel:
    held = NodeIds.of(ids).without(np.flatnonzero(~snapshot.live))
    return PublishedModel(model_facts(len(ids), classes, hops), canaries, held, np.isin(ids, public))


def snapshot(
    version: int, probabilities: NDArray[np.float64], edges: Sequence[tuple[int, int]] = (), dead: Sequence[int] = ()
) -> Snapshot:
    """Return a snapshot of n nodes with (n, C) probabilities; those of `dead` rows are zeroed."""
    nodes = len(probabilities)
    live = np.ones(nodes, dtype=np.bool_)
    live[list(dead)] = False
    pairs = np.array([*edges, *((second, first) for first, second in edges)], dtype=np.int64).reshape(-1, 2)
    adjacency = sp.csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(nodes, nodes))
    adjacency.sort_indices()
    return Snapshot(version, np.where(live[:, None], probabilities, 0.0), live, Edges(adjacency, live))


def load(publisher: Publisher, ref: VersionRef, model: PublishedModel, shown: Snapshot, fencing: int = 1) -> None:
    publisher.load(ref, model, shown, version_facts(shown), fencing)


def admitted(home: Path) -> Reader:
    """Return a reader that answers from any shown version, without confirmation by a database."""
    reader = Reader(home)
    reader.admit(0)
    return reader


def folder_of(publisher: Publisher, ref: VersionRef) -> Path:
    """Return the folder of a published version."""
    return publisher._versions[ref.folder].path


def layout_of(publisher: Publisher) -> Layout:
    """Return the layout of the latest publication."""
    return list(publisher._versions.values())[-1].layout


def view_of(publisher: Publisher, ref: VersionRef) -> View:
    """Return a published version as mapped by a reader, whether shown or not."""
    return open_view(Head(ref.fencing, ref.version, 0), folder_of(publisher, ref))


def knows(reader: Reader, node: str) -> bool:
    """Whether a reader knows a live node."""
    return node in reader.live([node])


def is_public(reader: Reader, node: str) -> bool:
    """Whether a reader knows a node as public."""
    found = reader.look_up([node])
    assert found is not None
    return node in found.public


def have_edges(reader: Reader, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Return which edges a reader knows."""
    found = reader.look_up([], pairs)
    assert found is not None
    return list(found.edges)


def predicted(reader: Reader, node: str) -> Prediction | None:
    """Return a reader's class probabilities of one node; None if unknown."""
    found = next(iter(reader.predict_many([node])[1]), None)
    assert not isinstance(found, Scores)
    return found
