"""Publications for tests: small models written where a test keeps its files, and readers of them."""

import math
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
from service.publication.facts import ModelFacts, VersionFacts
from service.publication.mapped import open_view
from service.publication.reader import Prediction, Reader
from service.publication.writer import PublishedModel, Publisher

CLASSES = ("red", "green")


def model_facts(nodes: int, classes: Sequence[str] = CLASSES) -> ModelFacts:
    return ModelFacts(
        name="tiny",
        nodes=nodes,
        features=3,
        classes=tuple(classes),
        hops=2,
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
) -> PublishedModel:
    held = NodeIds.of(ids).without(np.flatnonzero(~snapshot.live))
    return PublishedModel(model_facts(len(ids), classes), canaries, held, np.isin(ids, public))


def snapshot(
    version: int, probabilities: NDArray[np.float64], edges: Sequence[tuple[int, int]] = (), dead: Sequence[int] = ()
) -> Snapshot:
    """One of n nodes, (n, C) probabilities; those of `dead` rows are zeroed."""
    nodes = len(probabilities)
    live = np.ones(nodes, dtype=np.bool_)
    live[list(dead)] = False
    pairs = np.array([*edges, *((second, first) for first, second in edges)], dtype=np.int64).reshape(-1, 2)
    adjacency = sp.csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(nodes, nodes))
    adjacency.sort_indices()
    return Snapshot(version, np.where(live[:, None], probabilities, 0.0), live, Edges(adjacency, live))


def load(publisher: Publisher, ref: VersionRef, model: PublishedModel, shown: Snapshot, fencing: int = 1) -> None:
    publisher.load(ref, model, shown, version_facts(shown), fencing)


def serve(reader: Reader, publisher: Publisher, ref: VersionRef, until: float = math.inf) -> None:
    """Have a reader answer from a published version without asking a database for a lease."""
    reader.serve(open_view(publisher.layout, ref.folder, reader.view))
    reader.extend(until)


def reader_of(
    home: Path, ids: Sequence[str], shown: Snapshot, *, classes: Sequence[str] = CLASSES, public: Sequence[str] = ()
) -> Reader:
    """A reader, for good, of one version that is published below `home`."""
    publisher, ref, reader = Publisher(home, home), VersionRef(shown.version, 1), Reader()
    load(publisher, ref, published_model(ids, shown, classes=classes, public=public), shown)
    serve(reader, publisher, ref)
    return reader


def predicted(reader: Reader, node: str) -> Prediction | None:
    """What a reader predicts of one node; None for one that it does not know."""
    return next(iter(reader.predict_many([node])[1]), None)
