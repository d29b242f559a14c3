"""What clients asked of a graph, how each request ended, and the graph that must be left.

Independent of Lethe: the graph is kept here, and follows the requests that were completed, in the order in which they
were accepted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from lethe_client import Correction, LetheClient, NewNode
from lethe_client.results import Accepted
from projector.graph.graph import Graph, feature_rows
from projector.network.spec import ModelSpec
from tests.support.mathematics.retraining import Matrix, Problem

Edge = tuple[str, str]
#: Numbers that are not 0, by column.
Row = Mapping[int, float]
#: Label of a node that is not trained on.
NONE = -1


@dataclass(frozen=True)
class Content:
    """What a node brings, or what replaces its own; None stays as it is."""

    features: Row | None = None
    label: int | None = None
    rejoin: bool = False


@dataclass(frozen=True)
class Asked:
    """One request."""

    kind: str
    nodes: tuple[str, ...] = ()
    edges: tuple[Edge, ...] = ()
    content: Mapping[str, Content] = field(default_factory=dict)

    def send(self, client: LetheClient, key: str, classes: tuple[str, ...]) -> Accepted:
        """Send it; a repetition with the same key is the same request."""
        if self.kind in ("addition", "correction"):
            named = {node: each.label for node, each in self.content.items()}
            labels = {node: None if label is None else classes[label] for node, label in named.items()}
            if self.kind == "addition":
                new = [
                    NewNode(node, each.features or {}, labels[node], each.rejoin) for node, each in self.content.items()
                ]
                return client.add(new, edges=self.edges, idempotency_key=key)
            corrected = [Correction(node, each.features, labels[node]) for node, each in self.content.items()]
            return client.correct(corrected, idempotency_key=key)
        kind = self.kind
        assert kind in ("node", "edge", "features", "label")
        return client.request_deletion(self.nodes, kind=kind, edges=self.edges, idempotency_key=key)  # type: ignore[arg-type]

    @property
    def resource(self) -> str:
        """The kind as routes name it."""
        return self.kind if self.kind in ("addition", "correction") else "deletion"


@dataclass
class Node:
    """A node of the graph: its features, (d,), None once they are deleted, and its class if it is trained on."""

    features: Matrix | None
    label: int


def ordered(first: str, second: str) -> Edge:
    """Return an undirected edge by its sorted ends."""
    return (first, second) if first < second else (second, first)


class Expected:
    """The graph that completed requests lead to."""

    def __init__(self, graph: Graph) -> None:
        self.columns = graph.num_features
        self.classes = graph.class_names
        ids = list(graph.node_ids)
        X = feature_rows(graph.features, np.arange(graph.nodes))
        labels = np.where(graph.train_mask, graph.labels, NONE)
        self.nodes = {node: Node(X[row], int(labels[row])) for row, node in enumerate(ids)}
        #: Deleted on request and not back.
        self.gone: set[str] = set()
        #: Everybody who ever was in the graph.
        self.ever = set(ids)
        first, second = graph.adjacency.nonzero()
        self.neighbours: dict[str, set[str]] = {node: set() for node in ids}
        for left, right in zip(first.tolist(), second.tolist(), strict=True):
            self.neighbours[ids[left]].add(ids[right])

    @property
    def edges(self) -> set[Edge]:
        """Each edge once, its ends in order."""
        return {ordered(node, other) for node, others in self.neighbours.items() for other in others}

    def follow(self, asked: Iterable[Asked]) -> None:
        """Apply completed requests, in the order in which they were accepted."""
        for one in asked:
            self.apply(one)

    def apply(self, one: Asked) -> None:
        """Apply a completed request."""
        there = [node for node in one.nodes if node in self.nodes]
        match one.kind:
            case "node":
                for node in there:
                    self._remove(node)
            case "features":
                for node in there:
                    self.nodes[node].features = None
            case "label":
                for node in there:
                    self.nodes[node].label = NONE
            case "edge":
                for first, second in one.edges:
                    self.neighbours.get(first, set()).discard(second)
                    self.neighbours.get(second, set()).discard(first)
            case "addition":
                self._add(one)
            case "correction":
                for node, content in one.content.items():
                    if node in self.nodes:
                        self._correct(self.nodes[node], content)

    def _remove(self, node: str) -> None:
        del self.nodes[node]
        self.gone.add(node)
        for other in self.neighbours.pop(node):
            self.neighbours[other].discard(node)

    def _add(self, one: Asked) -> None:
        for node, content in one.content.items():
            if node in self.nodes or (node in self.gone and not content.rejoin):
                continue
            self.gone.discard(node)
            self.ever.add(node)
            self.nodes[node] = Node(self.row(content.features or {}), NONE)
            self.neighbours[node] = set()
            self._correct(self.nodes[node], content)
        for first, second in one.edges:
            if first in self.nodes and second in self.nodes:
                self.neighbours[first].add(second)
                self.neighbours[second].add(first)

    def _correct(self, node: Node, content: Content) -> None:
        if content.features is not None:
            node.features = self.row(content.features)
        if content.label is not None:
            node.label = content.label

    def row(self, features: Row) -> Matrix:
        """Return a row, (d,)."""
        dense = np.zeros(self.columns)
        dense[[*features]] = [*features.values()]
        return dense


@dataclass(frozen=True, eq=False)
class Fitted:
    """An independent fit on a graph: W (d, C) for the hops' last image, and the probabilities by node."""

    weights: Matrix
    #: Bound of the distance of `weights` from the minimum.
    error: float
    probabilities: Mapping[str, NDArray[np.float64]]


def fitted(expected: Expected, spec: ModelSpec) -> Fitted:
    """Fit the softmax model of the normalised graph from zero, in float64, with a solver that Lethe does not use."""
    ids = list(expected.nodes)
    place = {node: row for row, node in enumerate(ids)}
    nothing = np.zeros(expected.columns)
    X = np.array([nothing if node.features is None else node.features for node in expected.nodes.values()])
    y = np.array([node.label for node in expected.nodes.values()])
    ends = np.array([(place[first], place[second]) for first, second in expected.edges]).reshape(-1, 2)
    both = np.vstack([ends, ends[:, ::-1]])
    A = sp.csr_array((np.ones(len(both)), (both[:, 0], both[:, 1])), shape=(len(ids), len(ids)))
    A = A + sp.eye_array(len(ids), format="csr")
    root = sp.diags_array(1.0 / np.sqrt(A.sum(axis=1)))
    H = X
    for _ in range(spec.hops):
        H = root @ (A @ (root @ H))
    trained = y != NONE
    problem = Problem(H[trained], y[trained], len(expected.classes), spec.loss, spec.regularization)
    W = problem.minimum(1e-11)
    Z = H @ W
    E = np.exp(Z - Z.max(axis=1, keepdims=True))
    P = E / E.sum(axis=1, keepdims=True)
    return Fitted(W, problem.distance_bound(W), dict(zip(ids, P, strict=True)))
