"""The graph that workers share: each makes it by itself from the model's folder, as the unlearner says."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from model_store.store import Store
from model_store.versions import VersionRef
from projector.forgetting.live_graph import LiveGraph
from projector.graph.graph import Graph


class Task(msgspec.Struct, frozen=True):
    """What a worker is to make ready."""

    #: Of the committed version, and the digest of its manifest.
    folder: str
    digest: str
    #: Edges, by the rows of their ends, that the version lacks and that may still be on the disk.
    deleted_edges: list[tuple[int, int]]


def digest_of(version: str, graph: Graph) -> str:
    """By which workers know that they hold the same: a version, by the digest of its manifest, and its graph."""
    found = hashlib.sha256(version.encode())
    for array in _arrays(graph):
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def load(model: Path, task: Task, device: torch.device) -> tuple[LiveGraph, str]:
    """The graph of a task, made from the model's folder, which is only read, and its digest.

    Raises NotAStore, StoreDamaged, and OSError.
    """
    store = Store.open(model)
    version = store.read_version(VersionRef.parse(task.folder), digest=task.digest)
    graph = store.load_graph().without_edges(np.array(task.deleted_edges, dtype=np.int64).reshape(-1, 2))
    manifest = store.manifest
    live_graph = LiveGraph.of(
        graph, manifest.spec, manifest.diffusion,
        temperature=manifest.temperature, live=version.live, featured=version.featured, device=device,
    )  # fmt: skip
    return live_graph, digest_of(task.digest, graph)


def _arrays(graph: Graph) -> Iterator[NDArray[np.generic]]:
    yield from (graph.adjacency.indptr, graph.adjacency.indices)
    if isinstance(graph.features, np.ndarray):
        yield graph.features
    else:
        yield from (graph.features.indptr, graph.features.indices, graph.features.data)
    yield from (graph.labels, graph.train_mask)
    if graph.values is not None:
        yield graph.values
