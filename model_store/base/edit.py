"""The additions and replacements of one version, by row, as stored in the version's folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from projector.graph.external_ids import SLOT_BYTES, NodeIds
from projector.graph.graph import NO_LABEL, Features, Graph
from projector.graph.sparse_parts import from_compressed

#: Bits of a node's masks.
TRAIN, VAL, TEST, PUBLIC = 1, 2, 4, 8


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


def _no_masks() -> NDArray[np.uint8]:
    return np.empty(0, dtype=np.uint8)


def _no_edges() -> NDArray[np.int64]:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class EditedRows:
    """Span coefficients of some rows of one input."""

    #: (m,) int64; a row of which nothing is known any more has coefficients of zero.
    rows: NDArray[np.int64]
    #: (blocks, m, C) float64.
    beta: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Edit:
    """Additions and replacements of one version, after all of its removals.

    The rows of the graph are those of the version before, then the new nodes. Applying the edit overwrites the earlier
    features of `feature_rows` and the earlier labels and masks of `label_rows` on disk.
    """

    #: Rows of the graph before; the first new node gets this row.
    first_row: int
    #: Ids of the new nodes, (a,).
    ids: NodeIds = field(default_factory=lambda: NodeIds.of(()))
    #: Their labels, (a,), -1 for none, and their masks, (a,), bits `TRAIN`, `VAL`, `TEST` and `PUBLIC`.
    labels: NDArray[np.int64] = field(default_factory=_no_rows)
    masks: NDArray[np.uint8] = field(default_factory=_no_masks)
    #: Their real-valued targets, (a, C) float64; None for a model of classes.
    targets: NDArray[np.float64] | None = None
    #: Rows that get features, ascending: earlier rows, then every new one, (m,).
    feature_rows: NDArray[np.int64] = field(default_factory=_no_rows)
    #: Their features, (m, d), in the layout, dtype and column scales of the store; None for no row.
    features: Features | None = None
    #: Earlier rows whose label and masks are replaced, ascending, (l,). -1 withdraws a label. The masks are all that
    #: the row has from now on.
    label_rows: NDArray[np.int64] = field(default_factory=_no_rows)
    labels_of_rows: NDArray[np.int64] = field(default_factory=_no_rows)
    masks_of_rows: NDArray[np.uint8] = field(default_factory=_no_masks)
    #: (l, C) float64; None for a model of classes.
    targets_of_rows: NDArray[np.float64] | None = None
    #: Edges that join, each once, (k, 2).
    edges: NDArray[np.int64] = field(default_factory=_no_edges)
    #: Their weights, (k,) float64; None if all are 1.
    edge_weight: NDArray[np.float64] | None = None
    #: The span coefficients that change by joining, of the features and then of the labels that are an input; None if
    #: those of the version can be rebuilt from its weights.
    coefficients: "tuple[EditedRows, ...] | None" = None

    @classmethod
    def unlabelled(cls, nodes: int, rows: NDArray[np.int64], values: NDArray[np.float64] | None) -> "Edit | None":
        """Return the edit that takes the labels of `rows` (l,) of `nodes` away; None for no row.

        `values` (n, C) are the real-valued targets of a graph that has them.
        """
        if not rows.size:
            return None
        return cls(
            first_row=nodes,
            label_rows=np.sort(rows),
            labels_of_rows=np.full(rows.size, NO_LABEL),
            masks_of_rows=np.zeros(rows.size, dtype=np.uint8),
            targets_of_rows=None if values is None else np.zeros((rows.size, values.shape[1])),
        )

    @property
    def nodes(self) -> int:
        """Number of rows of the graph afterwards."""
        return self.first_row + len(self.ids)

    def to_bytes(self) -> bytes:
        """Return the edit as written to disk."""
        tensors = {"first_row": np.array([self.first_row]), "id_utf8": self.ids.utf8, "id_bytes": self.ids.lengths}
        tensors["id_slots"] = np.diff(self.ids.starts).astype(np.uint32)
        tensors |= {name: getattr(self, name) for name in _ARRAYS}
        tensors |= {name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) is not None}
        for number, each in enumerate(self.coefficients or ()):
            tensors |= {f"coefficients.{number}.rows": each.rows, f"coefficients.{number}.beta": each.beta}
        if isinstance(self.features, np.ndarray):
            tensors["features"] = self.features
        elif self.features is not None:
            tensors |= {f"features.{part}": getattr(self.features, part) for part in _CSR}
            tensors["features.shape"] = np.array(self.features.shape)
        return save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})

    def feature_slots(self, path: Path, data: bytes) -> Iterator["FeatureSlots"]:
        """Yield where the file `path`, which holds `data`, has features of which row."""
        rows = self.feature_rows
        if self.features is not None and not isinstance(self.features, np.ndarray):
            rows = np.repeat(rows, np.diff(self.features.indptr))
        header_bytes = 8 + int.from_bytes(data[:8], "little")
        for name, tensor in json.loads(data[8:header_bytes]).items():
            if name in ("features", "features.data", "features.indices"):
                first, end = tensor["data_offsets"]
                yield FeatureSlots(path, header_bytes + first, (end - first) // max(rows.size, 1), rows)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Edit":
        """Return the edit in the bytes of `to_bytes`; raises ValueError for other bytes."""
        try:
            tensors = load(data)
            arrays: dict[str, Any] = {name: tensors[name] for name in _ARRAYS}
            arrays |= {name: tensors.get(name) for name in _OPTIONAL}
            arrays["ids"] = _ids(tensors["id_utf8"], tensors["id_slots"], tensors["id_bytes"])
            arrays["features"] = tensors.get("features")
            arrays["coefficients"] = _coefficients(tensors)
            if "features.shape" in tensors:
                indptr, indices, values = (tensors[f"features.{part}"] for part in _CSR)
                arrays["features"] = from_compressed(indptr, indices, values, tensors["features.shape"].tolist())
            return cls(int(tensors["first_row"][0]), **arrays)
        except (SafetensorError, KeyError, TypeError, IndexError) as error:
            raise ValueError(str(error)) from error

    def applied(self, graph: Graph, public: NDArray[np.bool_]) -> tuple[Graph, NDArray[np.bool_]]:
        """Return the `graph` of the version before and its `public` nodes (n,) with the edit applied."""
        nodes = self.nodes
        labels = np.concatenate([graph.labels, self.labels])
        labels[self.label_rows] = self.labels_of_rows
        masks = graph.train_mask * TRAIN + graph.val_mask * VAL + graph.test_mask * TEST + public * PUBLIC
        masks = np.concatenate([masks, self.masks])
        masks[self.label_rows] = self.masks_of_rows
        values = graph.values
        if values is not None:
            new = np.zeros((0, values.shape[1])) if self.targets is None else self.targets
            values = np.concatenate([values, new])
            values[self.label_rows] = 0 if self.targets_of_rows is None else self.targets_of_rows
        ends = np.concatenate([self.edges, self.edges[:, ::-1]])
        weights = np.ones(len(self.edges)) if self.edge_weight is None else self.edge_weight
        joined = sp.coo_array((np.tile(weights, 2), (ends[:, 0], ends[:, 1])), shape=(nodes, nodes))
        # One that left in this version and joined again may still be in `base/`.
        adjacency = graph.without_edges(self.edges[(self.edges < graph.nodes).all(axis=1)]).adjacency.copy()
        adjacency.resize(nodes, nodes)
        adjacency = sp.csr_array(adjacency + joined.tocsr())
        grown = replace(
            graph,
            adjacency=adjacency,
            features=self._applied_features(graph.features),
            labels=labels,
            train_mask=(masks & TRAIN) > 0,
            val_mask=(masks & VAL) > 0,
            test_mask=(masks & TEST) > 0,
            node_ids=graph.node_ids.followed_by(self.ids),
            values=values,
        )
        return grown, np.asarray((masks & PUBLIC) > 0)

    def _applied_features(self, features: Features) -> Features:
        given, shape = self.features, (self.nodes, features.shape[1])
        if given is None:
            return features
        if isinstance(features, np.ndarray):
            grown = np.zeros(shape, dtype=features.dtype)
            grown[: len(features)] = features
            grown[self.feature_rows] = given
            return grown
        stored, added = features.tocoo(), sp.coo_array(given)
        stays = ~np.isin(stored.row, self.feature_rows)
        rows = np.concatenate([stored.row[stays], self.feature_rows[added.row]])
        columns = np.concatenate([stored.col[stays], added.col])
        values = np.concatenate([stored.data[stays], added.data])
        return sp.csr_array(sp.coo_array((values, (rows, columns)), shape=shape))


@dataclass(frozen=True, eq=False)
class FeatureSlots:
    """Equal slots of a file, each with features of one row: all of them if dense, one stored value if sparse."""

    file: Path
    #: Byte at which they begin, and the bytes of each.
    offset: int
    slot_bytes: int
    #: (slots,) the row of each slot; -1 for a blanked one.
    row_of_slot: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PendingEdit:
    """The edit of a version that may not be applied yet."""

    version: int
    edit: Edit


_ARRAYS = ("labels", "masks", "feature_rows", "label_rows", "labels_of_rows", "masks_of_rows", "edges")
_OPTIONAL = ("targets", "targets_of_rows", "edge_weight")
_CSR = ("indptr", "indices", "data")


def _coefficients(tensors: dict[str, NDArray[Any]]) -> tuple[EditedRows, ...] | None:
    found: list[EditedRows] = []
    while (rows := tensors.get(f"coefficients.{len(found)}.rows")) is not None:
        found.append(EditedRows(rows, tensors[f"coefficients.{len(found)}.beta"]))
    return tuple(found) or None


def _ids(utf8: NDArray[np.uint8], slots: NDArray[np.uint32], lengths: NDArray[np.uint32]) -> NodeIds:
    if utf8.shape != (slots.sum(), SLOT_BYTES) or lengths.shape != slots.shape or (lengths > slots * SLOT_BYTES).any():
        raise ValueError("its ids do not fill their slots")
    return NodeIds(utf8, slots, lengths)
