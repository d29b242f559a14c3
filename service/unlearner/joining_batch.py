"""Turn what joins by requests into rows and arrays: for the numerical core, and for the disk."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base.edit import TRAIN, Edit, EditedRows
from model_store.manifest import Manifest
from projector.asked import Arriving, joining_of
from projector.errors import GraphError
from projector.forgetting.batch import Removal
from projector.forgetting.joining import Joining
from projector.forgetting.update import Updated
from projector.graph.columns import NamedColumns, UnfitValue, numbers_of
from projector.graph.external_ids import NodeIds
from projector.graph.graph import NO_LABEL
from service.domain.kinds import RequestKind, ordered
from service.domain.records import NodeContent
from service.unlearner.claims import Change
from service.unlearner.committed import Committed


@dataclass(frozen=True, eq=False)
class JoiningBatch:
    """What joins by the requests of a batch, by row of the committed graph, then of the new nodes."""

    #: Rows of the committed graph; the new nodes, (a,), come after them.
    before: int
    ids: tuple[str, ...]
    #: None if nothing joins.
    joining: Joining | None
    #: Nodes whose labels are withdrawn, (r,).
    unlabelled: NDArray[np.int64]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Number of new nodes and edges, and of earlier nodes that get features and labels."""
        joining, new = self.joining, len(self.ids)
        if joining is None:
            return 0, 0, 0, 0
        labels = int((joining.label_rows < self.before).sum())
        return new, len(joining.edges), joining.feature_rows.size - new, labels

    @classmethod
    def nothing(cls, committed: Committed) -> "JoiningBatch":
        """Return the batch by which nothing joins."""
        return cls.without_labels(committed, np.empty(0, dtype=np.int64))

    @classmethod
    def without_labels(cls, committed: Committed, rows: NDArray[np.int64]) -> "JoiningBatch":
        """Return the batch that withdraws the labels of `rows` (r,), and by which nothing joins."""
        return cls(committed.state.live.size, (), None, np.sort(rows))

    @classmethod
    def of(cls, changes: Sequence[Change], committed: Committed, manifest: Manifest) -> "JoiningBatch":
        """Return what joins by `changes`, checked against the model. Raises GraphError."""
        held = committed.held(None)
        arriving, ids = _arriving(changes, committed, manifest)
        removal = _together([change.removal for change in changes])
        withdrawn = [
            node
            for change in changes
            if change.claimed.request.kind is RequestKind.LABEL
            for node in change.targets
            if isinstance(node, str)
        ]
        joining = joining_of(held, exponents_of(manifest), arriving, removal)
        if joining is not None and joining.edge_weight is not None and not committed.live_graph.weighted:
            raise GraphError("An edge has a weight, and the graph has none.", "Add it without a weight.")
        return cls(committed.state.live.size, ids, joining, np.sort(committed.node_ids.rows_of(withdrawn)))

    def edit(self, committed: Committed, updated: Updated, label_rows: NDArray[np.int64]) -> Edit | None:
        """Return what changes on disk after `updated`, which removed `label_rows` (r,); None if nothing does."""
        if self.joining is None and not self.unlabelled.size:
            return None
        before, joining = self.before, self.joining or _nothing(committed)
        real = joining.labels.ndim == 2
        classes = np.zeros(joining.label_rows.size, dtype=np.int64) if real else joining.labels.astype(np.int64)
        is_old = joining.label_rows < before
        labels, masks = np.full(joining.new, NO_LABEL), np.zeros(joining.new, dtype=np.uint8)
        learnt = joining.label_rows[~is_old] - before
        labels[learnt], masks[learnt] = classes[~is_old], TRAIN
        rows = np.concatenate([joining.label_rows[is_old], self.unlabelled])
        of_rows = np.concatenate([classes[is_old], np.full(self.unlabelled.size, NO_LABEL)])
        order = np.argsort(rows)
        columns = committed.state.classes
        targets = targets_of_rows = None
        if committed.live_graph.values is not None:
            targets, found = np.zeros((joining.new, columns)), np.zeros((rows.size, columns))
            targets[learnt] = joining.labels[~is_old] if real else 0.0
            found[: is_old.sum()] = joining.labels[is_old] if real else 0.0
            targets_of_rows = found[order] if rows.size else None
            targets = targets if joining.new else None
        return Edit(
            first_row=before,
            ids=NodeIds.of(self.ids),
            labels=labels,
            masks=masks,
            targets=targets,
            feature_rows=joining.feature_rows,
            features=joining.features if joining.feature_rows.size else None,
            label_rows=rows[order],
            labels_of_rows=of_rows[order],
            masks_of_rows=np.where(of_rows[order] == NO_LABEL, 0, TRAIN).astype(np.uint8),
            targets_of_rows=targets_of_rows,
            edges=joining.edges,
            edge_weight=joining.edge_weight,
            coefficients=_coefficients(committed, updated, label_rows),
        )


def exponents_of(manifest: Manifest) -> NDArray[np.int64] | None:
    """Return the powers of 2 by which training scaled the columns, (d,); None if it scaled none."""
    return None if manifest.column_scale is None else np.array(manifest.column_scale, dtype=np.int64)


_ROWS = re.compile(r"(?:node|row) \d+(?: of add_nodes)?")


def without_rows(detail: str) -> str:
    """Return the words of a refusal without numbers of rows."""
    return _ROWS.sub("a node", detail)


def misfits(changes: Sequence[Change], committed: Committed, manifest: Manifest) -> Iterator[tuple[Change, str]]:
    """Yield each of `changes` whose own content does not fit the model, with the reason."""
    for change in changes:
        if change.joins:
            try:
                JoiningBatch.of([change], committed, manifest)
            except GraphError as error:
                # Rows are as telling as ids, and everybody may read this.
                yield change, f"{without_rows(error.detail)} Nothing of this request joined."


def _coefficients(
    committed: Committed, updated: Updated, label_rows: NDArray[np.int64]
) -> tuple[EditedRows, ...] | None:
    """Return the coefficients that change by joining, and those of withdrawn labels, which are zero.

    None if the repair rebuilt all of them from the weights.
    """
    if updated.outcome.coefficients is not None:
        return None
    found = []
    for number, given in enumerate((committed.features, committed.labels)):
        if given is None:
            continue
        rows, beta = (label_rows if number else label_rows[:0]), given.beta.cpu().numpy()
        parts = [np.zeros((beta.shape[0], rows.size, beta.shape[2]))]
        if updated.joined:
            joined = updated.joined[number]
            rows, kept = np.concatenate([rows, joined.rows]), ~np.isin(rows, joined.rows)
            parts = [parts[0][:, kept], joined.beta.cpu().numpy()]
            rows = np.concatenate([label_rows[kept] if number else label_rows[:0], joined.rows])
        found.append(EditedRows(rows, np.concatenate(parts, axis=1)))
    return tuple(found)


def _nothing(committed: Committed) -> Joining:
    none = np.empty(0, dtype=np.int64)
    rows = committed.features.rows
    empty = np.empty((0, rows.num_features), dtype=rows.dtype)
    return Joining(0, none, empty if rows.dense else sp.csr_array(empty), none, none, none.reshape(0, 2))


def _together(removals: Sequence[Removal]) -> Removal:
    parts = {name: [getattr(each, name) for each in removals] for name in ("nodes", "features", "edges", "labels")}
    nothing = Removal()
    return Removal(**{name: np.concatenate([*found, getattr(nothing, name)]) for name, found in parts.items()})


def _arriving(changes: Sequence[Change], committed: Committed, manifest: Manifest) -> tuple[Arriving, tuple[str, ...]]:
    """Return what joins by row, new nodes after the committed ones, and the ids of the new nodes."""
    ids = tuple(node for change in changes for node in change.joins.nodes)
    contents = {
        node: change.claimed.targets.content[node]
        for change in changes
        for node in (*change.joins.nodes, *change.joins.corrected)
    }
    corrected = [node for change in changes for node in change.joins.corrected]
    edges = [edge for change in changes for edge in change.joins.edges]
    weights: dict[tuple[str, str], float] = {}
    for targets in (change.claimed.targets for change in changes if change.claimed.targets.edge_weight):
        weights |= zip(map(ordered, targets.edges), targets.edge_weight, strict=True)
    before = committed.state.live.size
    rows = {node: before + place for place, node in enumerate(ids)}
    named = list({*corrected, *(end for edge in edges for end in edge)} - rows.keys())
    rows |= dict(zip(named, committed.node_ids.rows_of(named).tolist(), strict=True))
    featured = [node for node in corrected if contents[node].features is not None]
    arriving = Arriving(
        nodes=sp.vstack([feature_row(contents[node], manifest) for node in ids], format="csr") if ids else None,
        node_labels=_labels([contents[node] for node in ids], manifest) if ids else None,
        edges=np.array([[rows[end] for end in edge] for edge in edges], dtype=np.int64).reshape(-1, 2),
        edge_weight=[weights.get(ordered(edge), 1.0) for edge in edges] if weights else None,
        features={rows[node]: feature_row(contents[node], manifest) for node in featured},
        labels={rows[node]: _label(contents[node], manifest) for node in corrected if contents[node].label is not None},
    )
    return arriving, ids


def feature_row(content: NodeContent, manifest: Manifest) -> sp.csr_array:
    """Return a node's features, (1, d). Raises GraphError, without names of columns and values."""
    if content.features is None:
        raise GraphError("A node that joins has no features.", "Give it features; {} for none but zeros.")
    try:
        found = numbers_of(content.features, NamedColumns.of(manifest.columns), manifest.features)
    except UnfitValue:
        raise GraphError(
            f"The features of a node do not fit the {manifest.features} columns of the model.",
            "Give each of its columns a number, or values by column.",
        ) from None
    columns, values = np.array([*found], dtype=np.int64), np.array([*found.values()], dtype=np.float64)
    return sp.csr_array((values, (np.zeros(columns.size, dtype=np.int64), columns)), shape=(1, manifest.features))


def _labels(contents: Sequence[NodeContent], manifest: Manifest) -> NDArray[Any]:
    """Return the classes of new nodes, (a,), or their real-valued targets, (a, C); none of a node without a label."""
    none: Any = NO_LABEL if manifest.regression is None else np.full(len(manifest.classes), np.nan)
    found = [none if content.label is None else _label(content, manifest) for content in contents]
    return np.array(found, dtype=np.int64 if manifest.regression is None else np.float64)


def _label(content: NodeContent, manifest: Manifest) -> Any:
    """Return the class of a node, or its real-valued targets, (C,). Raises GraphError."""
    label = content.label
    if manifest.regression is not None:
        if not isinstance(label, tuple) or len(label) != len(manifest.classes):
            raise GraphError(
                f"The label of a node does not have the model's {len(manifest.classes)} targets.",
                "Give one number per target.",
            )
        return np.array(label, dtype=np.float64)
    if label not in manifest.classes:
        raise GraphError("A node's label is not among the model's classes.", "Give a class of the model.")
    return manifest.classes.index(label)
