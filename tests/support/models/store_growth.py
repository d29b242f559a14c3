"""Random additions to a stored model, and the expected result, computed without the store."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base.base import Base
from model_store.base.edit import PUBLIC, TEST, TRAIN, VAL, Edit
from model_store.base.erasure import Erasure
from model_store.manifest import Fit
from model_store.store import Store
from model_store.versions import SpanArrays, VersionRef, VersionState
from projector.graph.external_ids import NodeIds
from projector.network.spec import LossKind, ModelSpec
from tests.support.models.small_graphs import with_weights
from tests.support.models.store_models import SmallModel, random_ids, without


def regression(model: SmallModel) -> SmallModel:
    """Return the model with two real-valued targets instead of classes, without label reuse."""
    graph, random = model.graph, np.random.default_rng(9)
    values = np.where(graph.labels[:, None] >= 0, random.standard_normal((graph.nodes, 2)), np.nan)
    graph = replace(graph, labels=np.where(graph.labels >= 0, 0, -1), class_names=("height", "weight"), values=values)
    manifest = replace(
        model.manifest,
        spec=ModelSpec(hops=1, loss=LossKind.SQUARED),
        classes=graph.class_names,
        regression=Fit(1.0, None, None, 0.0, None, None),
        mlp=None,
    )
    blocks = len(manifest.spec.block_hops)
    return SmallModel(
        manifest=manifest,
        graph=graph,
        weights=random.standard_normal((blocks, graph.num_features, 2)),
        label_weights=np.zeros((0, 2, 2)),
        beta=random.standard_normal((blocks, graph.nodes, 2)),
        label_beta=np.zeros((0, graph.nodes, 2)),
        public=np.zeros(graph.nodes, dtype=np.bool_),
    )


def weighted(model: SmallModel) -> SmallModel:
    """Return the model with another weight for every edge."""
    graph = model.graph
    return replace(model, graph=replace(graph, adjacency=with_weights(graph.adjacency), weighted=True))


def an_edit(
    base: Base, random: np.random.Generator, *, new: int = 3, corrected: int = 2, labelled: int = 3, edges: int = 6
) -> Edit:
    """Return random additions and corrections for the live nodes of `base`; some labels are withdrawn."""
    graph, n = base.graph, base.graph.nodes
    live = np.flatnonzero(graph.node_ids.named)
    corrected_rows = np.sort(random.permutation(live)[:corrected])
    label_rows = np.sort(random.permutation(live)[:labelled])
    rows = np.concatenate([corrected_rows, np.arange(n, n + new)])
    dense = random.standard_normal((rows.size, graph.num_features)).astype(graph.features.dtype)
    features: Any = dense
    if not isinstance(graph.features, np.ndarray):
        features = sp.csr_array(dense * (random.random(dense.shape) < 0.6).astype(dense.dtype))
    ends = np.concatenate([live, np.arange(n, n + new)])
    pairs = np.sort(random.choice(ends, (edges, 2)), axis=1)
    known = np.zeros((n + new, n + new), dtype=np.bool_)
    known[:n, :n] = graph.adjacency.toarray() > 0
    pairs = np.unique(pairs[(pairs[:, 0] != pairs[:, 1]) & ~known[pairs[:, 0], pairs[:, 1]]], axis=0)
    labels, labels_of_rows = _labels(base, random, new), _labels(base, random, label_rows.size)
    public = np.where(base.public[label_rows], PUBLIC, 0)
    return Edit(
        n,
        NodeIds.of(random_ids(random, new)),
        labels,
        _masks(labels, random),
        _targets(base, labels, random),
        rows,
        features,
        label_rows,
        labels_of_rows,
        (_masks(labels_of_rows, random) | public).astype(np.uint8),
        _targets(base, labels_of_rows, random),
        pairs,
        10.0 ** random.uniform(-2, 1, len(pairs)) if graph.weighted else None,
    )


def _labels(base: Base, random: np.random.Generator, count: int) -> NDArray[np.int64]:
    return random.integers(-1, 1 if base.graph.values is not None else base.graph.num_classes, count)


def _masks(labels: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.uint8]:
    return np.where(labels >= 0, random.choice([0, TRAIN, VAL, TEST], labels.size), 0).astype(np.uint8)


def _targets(base: Base, labels: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.float64] | None:
    if base.graph.values is None or not labels.size:
        return None
    drawn = random.standard_normal((labels.size, base.graph.num_classes))
    return np.where(labels[:, None] >= 0, drawn, np.nan)


def joined(base: Base, edit: Edit) -> Base:
    """Return `base` with `edit` applied, with coefficients of zero for new nodes."""
    graph, n, new = base.graph, base.graph.nodes, len(edit.ids)
    adjacency = np.zeros((n + new, n + new))
    adjacency[:n, :n] = graph.adjacency.toarray()
    weights = np.ones(len(edit.edges)) if edit.edge_weight is None else edit.edge_weight
    for (left, right), weight in zip(edit.edges, weights, strict=True):
        adjacency[left, right] = adjacency[right, left] = weight
    features: Any = np.zeros((n + new, graph.num_features), dtype=graph.features.dtype)
    features[:n] = graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    if edit.features is not None:
        given = edit.features
        features[edit.feature_rows] = given if isinstance(given, np.ndarray) else given.toarray()
    if not isinstance(graph.features, np.ndarray):
        features = sp.csr_array(features)
    labels = np.concatenate([graph.labels, edit.labels])
    labels[edit.label_rows] = edit.labels_of_rows
    values = graph.values
    if values is not None:
        values = np.concatenate([values, *([] if edit.targets is None else [edit.targets])])
        if edit.targets_of_rows is not None:
            values[edit.label_rows] = edit.targets_of_rows
    masks = []
    for bit, mask in (
        (TRAIN, graph.train_mask),
        (VAL, graph.val_mask),
        (TEST, graph.test_mask),
        (PUBLIC, base.public),
    ):
        found = np.concatenate([mask, (edit.masks & bit) > 0])
        found[edit.label_rows] = (edit.masks_of_rows & bit) > 0
        masks.append(found)
    train, val, test, public = masks
    grown = replace(
        graph,
        adjacency=sp.csr_array(adjacency),
        features=features,
        labels=labels,
        values=values,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        node_ids=NodeIds.of([*graph.node_ids, *edit.ids]),
    )
    beta, label_beta = (np.pad(each, ((0, 0), (0, new), (0, 0))) for each in (base.beta, base.label_beta))
    return Base(grown, beta, label_beta, public)


def rebuilt(base: Base, ref: VersionRef) -> Base:
    """Return the graph with random coefficients of a version; zero for erased nodes."""
    random = np.random.default_rng(1000 + ref.version)
    live = base.graph.node_ids.named[:, None]
    beta, label_beta = (random.standard_normal(each.shape) * live for each in (base.beta, base.label_beta))
    return replace(base, beta=beta, label_beta=label_beta)


def a_version(base: Base, erased: Erasure, nodes: int) -> VersionState:
    """Return a state with `nodes` nodes and weights of zero; nodes that `base` lacks or `erased` names are not live."""
    live = np.concatenate([base.graph.node_ids.named, np.ones(nodes - base.graph.nodes, dtype=np.bool_)])
    live[erased.nodes] = False
    featured = live.copy()
    featured[erased.feature_rows] = False
    blocks, classes = base.beta.shape[0], base.beta.shape[2]
    weights = SpanArrays.untouched(np.zeros((blocks, base.graph.num_features, classes)))
    labels = SpanArrays.untouched(np.zeros((base.label_beta.shape[0], classes, classes)))
    return VersionState(weights, labels, live, featured, 0)


def commit(store: Store, ref: VersionRef, base: Base, edit: Edit, erased: Erasure | None = None) -> Base:
    """Make a version with `edit` the current one, and return the base expected in the end."""
    erased = erased or Erasure()
    expected = rebuilt(joined(without(base, erased), edit), ref)
    state = a_version(base, erased, edit.nodes)
    store.write_version(ref, state, edges=0, beta_version=ref.version, edit=edit)
    store.set_current(ref)
    return expected


def carry_out(store: Store, ref: VersionRef, expected: Base, erased: Erasure | None = None) -> None:
    """Do the steps that follow the commit of a version, as the service does."""
    if store.stale_coefficients(ref):
        store.write_beta(expected.beta, expected.label_beta, version=ref.version, fencing=ref.fencing)
    store.erase(erased or Erasure(), fencing=ref.fencing, keep=ref)
    store.grow(ref, fencing=ref.fencing)
