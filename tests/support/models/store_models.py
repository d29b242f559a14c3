"""Small models to store, and their state after an erasure, computed without the store."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base.base import Base
from model_store.base.erasure import Erasure
from model_store.manifest import Accuracy, FeatureDtype, FeatureLayout, Manifest, TrainingRecord
from model_store.store import Store
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Features, Graph
from projector.network.spec import Combine, ModelSpec
from projector.training.mlp import MlpRecord

ALPHABET = np.array(list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"))


@dataclass(frozen=True)
class SmallModel:
    """All inputs for creating a store."""

    manifest: Manifest
    graph: Graph
    weights: NDArray[np.float64]
    label_weights: NDArray[np.float64]
    beta: NDArray[np.float64]
    label_beta: NDArray[np.float64]
    public: NDArray[np.bool_]

    @property
    def base(self) -> Base:
        """The content of `base/`."""
        return Base(self.graph, self.beta, self.label_beta, self.public)

    def create(self, path: Path, *, chunk_rows: int = 5) -> Store:
        return Store.create(
            path,
            manifest=self.manifest,
            graph=self.graph,
            weights=self.weights,
            label_weights=self.label_weights,
            beta=self.beta,
            label_beta=self.label_beta,
            public=self.public,
            chunk_rows=chunk_rows,
        )


def random_ids(random: np.random.Generator, nodes: int) -> tuple[str, ...]:
    """Ids of 32 random letters and digits."""
    return tuple("".join(random.choice(ALPHABET, 32)) for _ in range(nodes))


def small_model(
    layout: str = "dense",
    dtype: str = "float32",
    *,
    nodes: int = 23,
    features: int = 6,
    edges: int = 40,
    seed: int = 0,
    node_ids: tuple[str, ...] | None = None,
    label_hops: int = 1,
) -> SmallModel:
    """Return a random graph of three classes with random features, weights and coefficients of two feature blocks.

    Some of the training nodes are public.
    """
    random = np.random.default_rng(seed)
    ends = random.integers(0, nodes, (edges, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    one_way = sp.coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(nodes, nodes))
    adjacency = sp.csr_array(((one_way + one_way.T).tocsr() > 0).astype(np.float64))
    adjacency.sort_indices()
    dense = random.standard_normal((nodes, features)).astype(dtype)
    matrix: Features = dense
    if layout == "csr":
        matrix = sp.csr_array(dense * (random.random((nodes, features)) < 0.5).astype(dtype))
        matrix.sum_duplicates()
    split = np.arange(nodes) % 4
    public = np.arange(nodes) % 8 == 0
    graph = Graph(
        adjacency=adjacency,
        features=matrix,
        labels=np.where(split == 3, -1, random.integers(0, 3, nodes)),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
        node_ids=NodeIds.of(node_ids or random_ids(random, nodes)),
        class_names=("0", "1", "two"),
    )
    manifest = Manifest(
        name="small",
        created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        dataset="small",
        split="full",
        spec=ModelSpec(hops=1, combine=Combine.CONCAT, label_hops=label_hops, mlp_width=features),
        nodes=nodes,
        edges=graph.edges,
        features=features,
        feature_layout=FeatureLayout(layout),
        feature_dtype=FeatureDtype(dtype),
        classes=graph.class_names,
        rank=features,
        sigma_ref_squared=10.0,
        rank_tolerance=1e-10,
        condition_number=3.0,
        accuracy=Accuracy(train=1.0, val=0.5, test=None),
        training=TrainingRecord(relative_gradient=1e-12, identity_error=1e-14, iterations=3, seconds=0.5, device="cpu"),
        mlp=MlpRecord(width=features, public_nodes=int(public.sum())),
    )
    return SmallModel(
        manifest=manifest,
        graph=graph,
        weights=random.standard_normal((2, features, 3)),
        label_weights=random.standard_normal((label_hops, 3, 3)),
        beta=random.standard_normal((2, nodes, 3)),
        label_beta=random.standard_normal((label_hops, nodes, 3)),
        public=public,
    )


def without(base: Base, erasure: Erasure) -> Base:
    """Return `base` after `erasure`."""
    graph, n = base.graph, base.graph.nodes
    live = np.ones(n, dtype=np.bool_)
    live[erasure.nodes] = False
    featured = live.copy()
    featured[erasure.feature_rows] = False
    adjacency = graph.adjacency.toarray()
    adjacency[~live] = 0
    adjacency[:, ~live] = 0
    for left, right in erasure.edges:
        adjacency[left, right] = adjacency[right, left] = 0
    features: Features
    if isinstance(graph.features, np.ndarray):
        features = np.where(featured[:, None], graph.features, graph.features.dtype.type(0))
    else:
        stored = graph.features.tocoo()
        kept = featured[stored.row]
        features = sp.csr_array(
            sp.coo_array((stored.data[kept], (stored.row[kept], stored.col[kept])), shape=stored.shape)
        )
    beta, label_beta = base.beta.copy(), base.label_beta.copy()
    beta[:, ~featured] = 0
    label_beta[:, ~live] = 0
    left_over = replace(
        graph,
        adjacency=sp.csr_array(adjacency),
        features=features,
        labels=np.where(live, graph.labels, -1),
        values=None if graph.values is None else np.where(live[:, None], graph.values, 0.0),
        train_mask=graph.train_mask & live,
        val_mask=graph.val_mask & live,
        test_mask=graph.test_mask & live,
        node_ids=NodeIds.of(name if alive else "" for name, alive in zip(graph.node_ids, live, strict=True)),
    )
    return Base(left_over, beta, label_beta, base.public & live)


def assert_same(found: Base, expected: Base) -> None:
    """Check that two bases are equal in every value, type and layout, except for the width of sparse indices."""
    assert difference(found, expected) is None, difference(found, expected)


def difference(found: Base, expected: Base) -> str | None:
    """Return the first part in which two bases differ, or None."""
    pairs = {
        "labels": (found.graph.labels, expected.graph.labels),
        "train_mask": (found.graph.train_mask, expected.graph.train_mask),
        "val_mask": (found.graph.val_mask, expected.graph.val_mask),
        "test_mask": (found.graph.test_mask, expected.graph.test_mask),
        "beta": (found.beta, expected.beta),
        "label_beta": (found.label_beta, expected.label_beta),
        "public": (found.public, expected.public),
        **_parts("adjacency", found.graph.adjacency, expected.graph.adjacency),
    }
    if isinstance(found.graph.features, np.ndarray) != isinstance(expected.graph.features, np.ndarray):
        return "layout of the features"
    if isinstance(found.graph.features, np.ndarray):
        pairs["features"] = (found.graph.features, expected.graph.features)
    else:
        pairs |= _parts("features", found.graph.features, expected.graph.features)
    for name, (left, right) in pairs.items():
        same_type = left.dtype == right.dtype or name.endswith((".indptr", ".indices"))
        if not same_type or left.shape != right.shape or not np.array_equal(left, right):
            return name
    left, right = (np.zeros(0) if graph.values is None else graph.values for graph in (found.graph, expected.graph))
    if not np.array_equal(left, right, equal_nan=True):
        return "values"
    if found.graph.node_ids != expected.graph.node_ids:
        return "node_ids"
    if found.graph.weighted != expected.graph.weighted:
        return "weighted"
    return None if found.graph.class_names == expected.graph.class_names else "class_names"


def _parts(
    name: str, left: sp.csr_array, right: sp.csr_array
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    return {f"{name}.{part}": (getattr(left, part), getattr(right, part)) for part in ("indptr", "indices", "data")}
