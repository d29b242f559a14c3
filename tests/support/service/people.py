"""A graph of people, and their traces on the disk."""

import secrets
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from projector.graph.graph import Graph

NODES, FEATURES, CLASSES = 300, 24, 3


def private_graph(path: Path) -> Path:
    """Write a graph of people: random ids of 32 characters, and real-valued features that no two of them share."""
    rng = np.random.default_rng(0)
    ids = np.array([secrets.token_hex(16) for _ in range(NODES)])
    labels = rng.integers(CLASSES, size=NODES)
    left, right = rng.integers(NODES, size=(2, 3 * NODES))
    pairs = np.unique(np.sort(np.stack([left, right])[:, left != right], axis=0), axis=1)
    features = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    # A feature of a single node, so that a direction is lost.
    features[:, -1] = 0.0
    features[7, -1] = rng.standard_normal()
    np.savez(path, edge_index=np.hstack([pairs, pairs[::-1]]).astype(np.int32), y=labels, x=features, node_ids=ids)
    return path


def traces(graph: Graph, node: str) -> Mapping[str, bytes]:
    """Return byte strings that only this node's data can have left, by kind."""
    row = graph.node_ids.index(node)
    assert isinstance(graph.features, np.ndarray)
    features = graph.features[row]
    return {
        "id": node.encode(),
        "id as bytes": bytes.fromhex(node),
        "id in UTF-16": node.encode("utf-16-le"),
        "two features": features[:2].tobytes(),
        "two features in float64": features[:2].astype(np.float64).tobytes(),
    }
