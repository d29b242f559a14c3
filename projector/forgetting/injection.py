"""Feature columns that only chosen nodes carry. Their rows of W show what the model has forgotten.

They serve two purposes. The paper's feature injection test adds a column to nodes of the dataset. Canaries are
synthetic nodes with such columns.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from projector.errors import GraphError
from projector.forgetting.canaries import PREFIX, Canaries
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Graph, some

#: Name of the class that `inject_channel` adds.
INJECTED_CLASS = "injected"


def inject_channel(graph: Graph, node_ids: Sequence[str], *, extra_class: bool) -> Graph:
    """Return `graph` with one more feature, the last: 1 on the given nodes and 0 elsewhere.

    This is the paper's injection test. With `extra_class` these nodes also get a new class as label. Raises GraphError
    if an id is unknown or none is given.
    """
    rows = graph.node_ids.rows_of(node_ids)
    unknown = [name for name, row in zip(node_ids, rows, strict=True) if row < 0]
    if unknown:
        raise GraphError(
            f"{len(unknown)} node id(s) to inject a channel on are not in the graph: {some(unknown)}.",
            "Give ids of nodes of this dataset.",
        )
    if not node_ids:
        raise GraphError("No node is named to inject a channel on.", "Give at least one node id.")
    rows = np.unique(rows)
    injected = _with_columns(graph, [rows], value=1.0)
    if not extra_class:
        return injected
    if graph.values is not None:
        raise GraphError("Real-valued targets have no classes.", "Inject a channel without a class.")
    if INJECTED_CLASS in graph.class_names:
        raise GraphError(f"The dataset has a class {INJECTED_CLASS!r} already.", "Inject a channel without a class.")
    labels = graph.labels.copy()
    labels[rows] = graph.num_classes
    return replace(injected, labels=labels, class_names=(*graph.class_names, INJECTED_CLASS))


def add_canaries(graph: Graph, cohorts: int, *, nodes: int, seed: int, tag: str) -> tuple[Graph, Canaries]:
    """Return `graph` followed by `cohorts` cohorts of `nodes` canaries each, and the canaries' description.

    A canary's only feature is its cohort's column, one of those added after the graph's own. Its value is the power of
    two nearest to the size of a real node's features. So training treats both alike, and canaries do not cause columns
    to be rescaled. A canary is a training node, in neither validation nor test. It is linked to the rest of its cohort
    and to one real training node of its own. `seed` draws that node, and each cohort's label: the label of a random
    training node, so that the classes keep their shares. `tag` becomes part of the canaries' ids.

    Raises GraphError if an id of `graph` has the canaries' prefix, or if there are more canaries than training nodes.
    """
    refuse_canary_ids(graph)
    training = np.flatnonzero(graph.train_mask)
    count = cohorts * nodes
    if count > training.size:
        raise GraphError(
            f"{cohorts} cohorts of {nodes} canaries are more than the {training.size} training nodes.",
            "Ask for fewer cohorts or smaller ones: canaries are trained on like real nodes.",
        )
    # Independent of the draws that the seed itself starts, such as a split.
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    like = np.repeat(random.choice(training, size=cohorts), nodes)
    labels = graph.labels[like]
    neighbours = random.choice(training, size=count, replace=False)
    canaries = Canaries(cohorts=cohorts, nodes=nodes, first_column=graph.num_features, tag=tag)
    rows = graph.nodes + np.arange(count)
    by_cohort = rows.reshape(cohorts, nodes)
    first, second = np.triu_indices(nodes, k=1)
    within = np.stack([by_cohort[:, first], by_cohort[:, second]], axis=-1).reshape(-1, 2)
    none = np.zeros(count, dtype=np.bool_)
    larger = replace(
        graph,
        adjacency=_with_edges(graph, count, np.concatenate([within, np.column_stack([neighbours, rows])])),
        features=_with_empty_rows(graph, count),
        labels=np.concatenate([graph.labels, labels]),
        train_mask=np.concatenate([graph.train_mask, ~none]),
        val_mask=np.concatenate([graph.val_mask, none]),
        test_mask=np.concatenate([graph.test_mask, none]),
        node_ids=NodeIds.of(chain(graph.node_ids, canaries.ids)),
        values=None if graph.values is None else np.concatenate([graph.values, graph.values[like]]),
    )
    return _with_columns(larger, list(by_cohort), value=_row_size(graph)), canaries


def refuse_canary_ids(graph: Graph, canaries: Canaries | None = None) -> None:
    """Raise GraphError if an id of `graph` has the canaries' prefix and is not one of `canaries`."""
    own = set() if canaries is None else set(canaries.ids)
    like_them = graph.node_ids.take(np.flatnonzero(graph.node_ids.beginning_with(PREFIX.encode())))
    taken = [name for name in like_them if name not in own]
    if taken:
        raise GraphError(
            f"{len(taken)} node id(s) begin with {PREFIX!r}: {some(taken)}.",
            "Rename these nodes: such ids are reserved for canaries.",
        )


def _with_columns(graph: Graph, carriers: Sequence[NDArray[np.int64]], *, value: float) -> Graph:
    """Return `graph` with one more feature for each of `carriers`: `value` on these rows and 0 elsewhere."""
    rows = np.concatenate(carriers)
    columns = np.repeat(np.arange(len(carriers)), [each.size for each in carriers])
    values = np.full(rows.size, value, dtype=graph.features.dtype)
    added = sp.csr_array((values, (rows, columns)), shape=(graph.nodes, len(carriers)))
    if isinstance(graph.features, np.ndarray):
        return replace(graph, features=np.hstack([graph.features, added.toarray()]))
    return replace(graph, features=sp.hstack([graph.features, added], format="csr"))


def _row_size(graph: Graph) -> float:
    """Return the root mean square of |x_j|_2 over all nodes, to the nearest power of two; 1 if all are zero."""
    stored = graph.features if isinstance(graph.features, np.ndarray) else graph.features.data
    values = stored.ravel()
    size = math.sqrt(float(np.einsum("i,i->", values, values, dtype=np.float64)) / graph.nodes)
    return 2.0 ** round(math.log2(size)) if size > 0 else 1.0


def _with_empty_rows(graph: Graph, count: int) -> NDArray[np.float32] | NDArray[np.float64] | sp.csr_array:
    """Return the features with `count` more rows of zeros."""
    shape = (count, graph.num_features)
    if isinstance(graph.features, np.ndarray):
        return np.concatenate([graph.features, np.zeros(shape, dtype=graph.features.dtype)])
    return sp.vstack([graph.features, sp.csr_array(shape, dtype=graph.features.dtype)], format="csr")


def _with_edges(graph: Graph, count: int, pairs: NDArray[np.int64]) -> sp.csr_array:
    """Return the adjacency with `count` more nodes and the edges `pairs` (k, 2) of weight 1, each given once."""
    before = graph.adjacency.tocoo()
    nodes = graph.nodes + count
    rows = np.concatenate([before.row, pairs[:, 0], pairs[:, 1]])
    columns = np.concatenate([before.col, pairs[:, 1], pairs[:, 0]])
    values = np.concatenate([before.data, np.ones(2 * len(pairs))])
    adjacency = sp.csr_array((values, (rows, columns)), shape=(nodes, nodes))
    adjacency.sort_indices()
    return adjacency
