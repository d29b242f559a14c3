"""A small model for requests of all kinds, its expected predictions, and a service that dies at an erasure.

As a program, `kinds_world.py serve`, it is `lethe serve`, killed just before erasing what its first batch deleted.
"""

import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.base.erasure import Erasure
from model_store.build import build_model
from model_store.datasets.load import load_dataset
from model_store.manifest import InjectedChannel
from model_store.store import Store
from model_store.versions import VersionRef
from projector.forgetting.injection import inject_channel
from projector.graph.graph import Graph, feature_rows
from projector.network.spec import ModelSpec, PropagationKind
from tests.support.processes.forked_children import kill_supervisor

NODES = 160
#: The node with a column of its own: its features support a direction that no other node's do.
CHANNEL = "8"


def make_model(folder: Path) -> None:
    """Train a model in `folder`."""
    graph = inject_channel(
        load_dataset(f"synthetic:n={NODES},d=12,classes=3,seed=3", data_dirs=[]), [CHANNEL], extra_class=False
    )
    channel = InjectedChannel(column=graph.num_features - 1, nodes=1)
    build_model(graph, ModelSpec(), name="small", dataset="synthetic", split="full", injected_channels=[channel]).write(
        folder
    )


@dataclass
class World:
    """The model before any deletion, and the deletions since."""

    folder: Path
    nodes: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)
    edges: set[tuple[str, str]] = field(default_factory=set)

    @property
    def graph(self) -> Graph:
        """The graph that it was trained on."""
        return Store.open(self.folder).load_base().graph

    def neighbours(self, node: str) -> list[str]:
        """Return the initial neighbours of `node`, by id."""
        graph = self.graph
        row = graph.node_ids.index(node)
        return [
            graph.node_ids[column] for column in graph.adjacency.indices[slice(*graph.adjacency.indptr[row : row + 2])]
        ]

    def edge(self, *without: str) -> tuple[str, str]:
        """Return an edge between two nodes outside `without` and its neighbours."""
        graph = self.graph
        near = {*without, *(other for node in without for other in self.neighbours(node))}
        rows, columns = graph.adjacency.nonzero()
        pairs = ((graph.node_ids[i], graph.node_ids[j]) for i, j in zip(rows, columns, strict=True))
        return next((min(pair), max(pair)) for pair in pairs if near.isdisjoint(pair))

    def predictions(self) -> dict[str, NDArray[np.float64]]:
        """Compute the class probabilities of every live node from scratch: projection by an SVD, on the remaining
        graph.
        """
        store = Store.open(self.folder)
        graph, manifest = store.load_base().graph, store.manifest
        place = {node: row for row, node in enumerate(graph.node_ids)}
        X, A = feature_rows(graph.features, np.arange(graph.nodes)), graph.adjacency.toarray()
        X[[place[node] for node in self.features | self.nodes]] = 0.0
        for first, second in self.edges:
            A[place[first], place[second]] = A[place[second], place[first]] = 0.0
        live = np.array([node not in self.nodes for node in graph.node_ids])
        cutoff = np.sqrt(manifest.rank_tolerance * manifest.sigma_ref_squared)
        _, sigma, right = np.linalg.svd(X, full_matrices=False)
        basis = right[sigma > cutoff]
        A = A[np.ix_(live, live)] + manifest.spec.self_loops * np.eye(int(live.sum()))
        scale = A.sum(axis=1) ** -0.5
        assert manifest.spec.propagation is PropagationKind.SYM
        P = A * np.outer(scale, scale)
        weights = store.read_version(store.current()).features.weights
        logits = sum(
            np.linalg.matrix_power(P, hop) @ X[live] @ (basis.T @ (basis @ block))
            for hop, block in zip(manifest.spec.block_hops, weights, strict=True)
        )
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows = exponents / exponents.sum(axis=1, keepdims=True)
        return dict(zip([node for node in graph.node_ids if node not in self.nodes], rows, strict=True))

    def left_on_disk(self, folder: Path) -> set[str]:
        """Return the kinds of deleted data that are still in the files of the model in `folder`."""
        graph = Store.open(folder).load_base().graph
        X = feature_rows(graph.features, np.arange(graph.nodes))
        place = {node: row for row, node in enumerate(self.graph.node_ids)}
        left = set()
        if any(graph.node_ids[place[node]] or X[place[node]].any() for node in self.nodes):
            left.add("node")
        if any(X[place[node]].any() for node in self.features):
            left.add("features")
        if any(graph.adjacency[place[first], place[second]] for first, second in self.edges):
            left.add("edge")
        return left


def dies_at_the_erasure(self: Store, erasure: Erasure, *, fencing: int, keep: VersionRef | None = None) -> None:
    """Replaces `Store.erase`."""
    if self.current().version > 0:
        kill_supervisor()
    erase(self, erasure, fencing=fencing, keep=keep)


def closest(
    found: dict[str, dict[str, float]], expected: dict[str, NDArray[np.float64]], nodes: Collection[str]
) -> float:
    """Return the largest difference between two sets of predictions of `nodes`."""
    return max(float(np.abs(np.array(list(found[node].values())) - expected[node]).max()) for node in nodes)


if __name__ == "__main__":
    from service.cli.main import main

    erase = Store.erase
    Store.erase = dies_at_the_erasure  # type: ignore[method-assign]  # a program, without monkeypatch
    main(sys.argv[1:])
