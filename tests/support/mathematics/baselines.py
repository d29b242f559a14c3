"""Graphs small enough to evaluate every formula densely, and dense reference results."""

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.special import expit

from projector import ModelSpec, from_arrays
from projector.graph.graph import Graph
from projector.network.spec import LossKind


def small_graph(seed: int = 0, nodes: int = 24, features: int = 5, classes: int = 3) -> Graph:
    """Return a homophilous graph with dense features; two thirds for training, the rest for validation and test."""
    random = np.random.default_rng(seed)
    labels = np.arange(nodes) % classes
    X = random.normal(size=(nodes, features)) + np.eye(classes, features)[labels]
    edge = random.random((nodes, nodes)) < np.where(labels[:, None] == labels, 0.25, 0.05)
    graph = from_arrays(sp.csr_array(np.triu(edge, 1).astype(float)), X, labels)
    place = random.permutation(nodes) % 6
    return replace(graph, train_mask=place < 4, val_mask=place == 4, test_mask=place == 5)


def dense_propagation(graph: Graph, *, row: bool = False) -> NDArray[np.float64]:
    """Return P by its definition, with self loops of weight 1."""
    A = graph.adjacency.toarray() + np.eye(graph.nodes)
    degrees = A.sum(axis=1)
    return A / degrees[:, None] if row else A / np.sqrt(np.outer(degrees, degrees))


def signs(graph: Graph, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 1 for a row's class and -1 for every other, (m, C)."""
    return 2.0 * (graph.labels[rows][:, None] == np.arange(graph.num_classes)) - 1.0


def sum_gradient(
    H: NDArray[np.float64], s: NDArray[np.float64], w: NDArray[np.float64], lam: float
) -> NDArray[np.float64]:
    """Return the gradient of sum_i [log(1 + exp(-s_i w h_i)) + lambda/2 |w|^2], row by row."""
    return sum((-s_i * expit(-s_i * (h @ w)) * h + lam * w for h, s_i in zip(H, s, strict=True)), np.zeros_like(w))


def sum_hessian(
    H: NDArray[np.float64], s: NDArray[np.float64], w: NDArray[np.float64], lam: float
) -> NDArray[np.float64]:
    """Return the Hessian of the same sum, row by row."""
    eye = np.eye(w.size)
    return sum(
        (expit(h @ w * s_i) * expit(-(h @ w) * s_i) * np.outer(h, h) + lam * eye for h, s_i in zip(H, s, strict=True)),
        np.zeros_like(eye),
    )


OVR = ModelSpec(loss=LossKind.OVR, regularization=1e-2)
