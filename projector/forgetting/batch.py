"""One batch of removals: the rows that leave each input's span, and the figures measured for each request."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.device import threads_for
from projector.forgetting.gram import FactorMethod
from projector.forgetting.projection import Norms, SpanState, SpanUpdate, channel_norm, injected_norms, project
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Features


def _no_nodes() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


def _no_edges() -> NDArray[np.int64]:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Removal:
    """What one request removes, by row."""

    #: Nodes to remove with all their data, (m,). They are live and appear in no other removal of the batch.
    nodes: NDArray[np.int64] = field(default_factory=_no_nodes)
    #: Nodes whose features are removed, (l,), under the same conditions.
    features: NDArray[np.int64] = field(default_factory=_no_nodes)
    #: Edges, (k, 2).
    edges: NDArray[np.int64] = field(default_factory=_no_edges)
    #: Training nodes whose labels are removed, (r,), under the same conditions.
    labels: NDArray[np.int64] = field(default_factory=_no_nodes)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Nodes whose features are removed, with or without the node, (m + l,)."""
        return np.concatenate([self.nodes, self.features])


@dataclass(frozen=True, eq=False)
class ModelState:
    """One version of the model on the device; never changed in place."""

    version: int
    features: SpanState
    #: The labels' span, under label reuse.
    labels: SpanState | None
    #: Mask (n,) of live nodes.
    live: NDArray[np.bool_]
    #: C.
    classes: int

    @property
    def spans(self) -> tuple[SpanState, ...]:
        """The spans of all inputs, features first."""
        return (self.features,) if self.labels is None else (self.features, self.labels)


@dataclass(frozen=True, eq=False)
class InputRows:
    """The rows of one input and their span coefficients (blocks, n, C), as last stored."""

    rows: FeatureMatrix
    beta: Tensor


@dataclass(frozen=True, eq=False)
class InjectedColumn:
    """A feature column added to the dataset's: an injected channel, or one of a canary cohort."""

    column: int
    #: Its nonzero rows, (m,) int64; may include rows of deleted nodes.
    carriers: NDArray[np.int64]


def carried_columns(features: Features, columns: Sequence[int]) -> tuple[InjectedColumn, ...]:
    """Return `columns` of `features` (n, d) with their carriers."""
    if not columns:
        return ()
    chosen = sp.coo_array(features[:, list(columns)])
    there = chosen.data != 0
    rows, places = chosen.row[there].astype(np.int64), chosen.col[there]
    return tuple(InjectedColumn(column, rows[places == place]) for place, column in enumerate(columns))


@dataclass(frozen=True, eq=False)
class Projection:
    """The state after a batch, and the figures measured on the way."""

    state: ModelState
    #: One entry per removal, in the order given.
    norms: tuple[Norms, ...]
    #: Number of feature directions that only deleted rows supported.
    directions_removed: int
    #: |Q^T W|_F over all feature blocks; None if no direction was lost.
    lost_direction_norm_before: float | None
    lost_direction_norm_after: float | None
    #: |W_after - W_before|_F / |W_before|_F over all inputs.
    weight_change: float
    #: |W - (B + M T)|_F / |W|_F, the largest over inputs.
    coefficient_residual: float
    #: How the features' pseudo-inverse was obtained.
    factor_method: FactorMethod
    #: Q, (d, k), a trace of the deleted rows; None if no direction was lost.
    lost_directions: Tensor | None
    #: For each removal, the injected columns that its rows carried and no row carries after the batch.
    emptied_columns: tuple[tuple[int, ...], ...]
    #: Number of feature directions that only joining rows support.
    directions_gained: int = 0
    #: Whether rows have joined since the removal, so that the removed rows' columns may carry weight again.
    between_halves: bool = False

    def with_weights_of(self, state: ModelState, before: ModelState) -> "Projection":
        """Return these measurements with the after-weights figures taken from `state`.

        `state` has the same span but other weights. `before` is the state before the batch.
        """
        if self.between_halves:
            return replace(self, state=state, weight_change=_change(before, state))
        norms = tuple(
            norm if norm.channel_after is None else replace(norm, channel_after=_of_channels(state, columns))
            for norm, columns in zip(self.norms, self.emptied_columns, strict=True)
        )
        return replace(
            self,
            state=state,
            norms=norms,
            lost_direction_norm_after=_along(self.lost_directions, state),
            weight_change=_change(before, state),
        )


def project_batch(
    state: ModelState,
    features: InputRows,
    labels: InputRows | None,
    removals: Sequence[Removal],
    injected: Sequence[InjectedColumn] = (),
) -> Projection:
    """Apply all removals together and return the new state. No argument changes.

    Removing a node takes its features and label out of their spans. Removing only features or labels affects only their
    own span. Removing edges affects neither.

    `injected` lists columns whose rows of W can be watched. Those that lose their last carrier in this batch are
    measured.
    """
    with threads_for(state.features.gram.stored):
        return _project_batch(state, features, labels, removals, injected)


def _project_batch(
    state: ModelState,
    features: InputRows,
    labels: InputRows | None,
    removals: Sequence[Removal],
    injected: Sequence[InjectedColumn],
) -> Projection:
    nodes = np.concatenate([*(removal.nodes for removal in removals), _no_nodes()])
    leaving = _leaving(removals, state.features.in_span)
    update = _projected(state.features, features, leaving.rows)
    label_update = None
    if state.labels is not None and labels is not None:
        owners = np.concatenate([nodes, *(removal.labels for removal in removals)])
        label_update = _projected(state.labels, labels, owners[state.labels.in_span[owners]])
    live = state.live.copy()
    live[nodes] = False
    after = ModelState(
        version=state.version + 1,
        features=state.features if update is None else update.state,
        labels=state.labels if label_update is None else label_update.state,
        live=live,
        classes=state.classes,
    )
    Q = None if update is None or update.lost_directions.shape[1] == 0 else update.lost_directions
    updates = [each for each in (update, label_update) if each is not None]
    emptied = _emptied(len(removals), leaving, after.features.in_span, injected)
    return Projection(
        state=after,
        norms=_norms(removals, leaving, update, state, after, emptied),
        directions_removed=0 if Q is None else int(Q.shape[1]),
        lost_direction_norm_before=_along(Q, state),
        lost_direction_norm_after=_along(Q, after),
        weight_change=_change(state, after),
        coefficient_residual=max((each.coefficient_residual for each in updates), default=0.0),
        factor_method=FactorMethod.NONE if update is None else update.factor_method,
        lost_directions=Q,
        emptied_columns=emptied,
    )


@dataclass(frozen=True, eq=False)
class _Leaving:
    """The feature rows that leave the span, (m,), and the index of each row's removal; edges remove none."""

    rows: NDArray[np.int64]
    owner: NDArray[np.int64]


def _leaving(removals: Sequence[Removal], in_span: NDArray[np.bool_]) -> _Leaving:
    rows = np.concatenate([_no_nodes(), *(part for each in removals for part in (each.nodes, each.features))])
    owner = np.repeat(np.arange(len(removals)), [each.nodes.size + each.features.size for each in removals])
    there = in_span[rows]
    return _Leaving(rows[there], owner[there])


def _projected(span: SpanState, given: InputRows, deleted: NDArray[np.int64]) -> SpanUpdate | None:
    return project(span, given.rows, given.beta, deleted) if deleted.size else None


def _norms(
    removals: Sequence[Removal],
    leaving: _Leaving,
    update: SpanUpdate | None,
    before: ModelState,
    after: ModelState,
    emptied: Sequence[Sequence[int]],
) -> tuple[Norms, ...]:
    owner = leaving.owner
    norms = [Norms(0.0, 0.0) if each.nodes.size or each.features.size else Norms() for each in removals]
    if update is None:
        return tuple(norms)
    injected = injected_norms(update.effective_before, owner, len(removals), before.classes)
    # Nonzero only if the update failed to take a request's rows out of the span.
    remains = np.flatnonzero(after.features.in_span[leaving.rows])
    left = [0.0] * len(removals)
    if remains.size:
        moved = update.deleted_rows[remains] @ (after.features.T - before.features.T)
        effective = update.effective_before[remains] + moved
        left = injected_norms(effective, owner[remains], len(removals), before.classes)
    for index in np.unique(owner).tolist():
        norms[index] = Norms(injected[index], left[index])
    for index, columns in enumerate(emptied):
        if columns:
            norms[index] = replace(
                norms[index], channel_before=_of_channels(before, columns), channel_after=_of_channels(after, columns)
            )
    return tuple(norms)


def _emptied(
    removals: int, leaving: _Leaving, in_span: NDArray[np.bool_], injected: Sequence[InjectedColumn]
) -> tuple[tuple[int, ...], ...]:
    """Return for each removal the `injected` columns that its rows carry and no row `in_span` (n,) carries."""
    columns: list[list[int]] = [[] for _ in range(removals)]
    for each in injected:
        if not in_span[each.carriers].any():
            for place in np.unique(leaving.owner[np.isin(leaving.rows, each.carriers)]).tolist():
                columns[place].append(each.column)
    return tuple(map(tuple, columns))


def _of_channels(state: ModelState, columns: Sequence[int]) -> float:
    return channel_norm(state.features.W, columns, state.classes)


def _along(Q: Tensor | None, state: ModelState) -> float | None:
    """Return |Q^T W|_F of the feature weights."""
    return None if Q is None else float(torch.linalg.norm(Q.T @ state.features.W))


def _change(before: ModelState, after: ModelState) -> float:
    pairs = list(zip(before.spans, after.spans, strict=True))
    if all(new.W is old.W for old, new in pairs):
        return 0.0
    moved = math.hypot(*(float(torch.linalg.norm(new.W - old.W)) for old, new in pairs))
    size = math.hypot(*(float(torch.linalg.norm(old.W)) for old, _ in pairs))
    return moved / size if size > 0.0 else moved
