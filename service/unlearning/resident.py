"""The model resident on the device: the arrays that stay, and the committed state that each batch replaces."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.base_store import Base
from model_store.blocks import by_block, side_by_side
from model_store.features import FeatureMatrix
from model_store.gram import Gram, factorise
from model_store.graph import one_hot
from model_store.inputs import inputs_of
from model_store.losses import loss_of
from model_store.manifest import Manifest
from model_store.memory import Sizes, require_memory, serving_needs
from model_store.propagation import Propagator
from model_store.versions import SpanArrays, VersionState
from service.domain.states import RequestKind
from service.unlearning.batch import InputRows, ModelState, Projection, Removal, project_batch
from service.unlearning.live_graph import LiveGraph
from service.unlearning.projection import SpanState
from service.unlearning.snapshot import Snapshot


class NotFinite(ArithmeticError):
    """A batch led to weights, coefficients or predictions that are not finite numbers; nothing was changed."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch computed beside the committed state: what would be committed, and what was measured."""

    #: Nodes that leave, (m,), nodes whose features leave, (l,), and edges that leave, (k, 2).
    nodes: NDArray[np.int64]
    feature_rows: NDArray[np.int64]
    edges: NDArray[np.int64]
    projection: Projection
    live_graph: LiveGraph
    snapshot: Snapshot


class Resident:
    """One model on one device. `prepare` changes nothing; `commit` makes what was prepared the committed state."""

    def __init__(
        self,
        features: InputRows,
        labels: InputRows | None,
        state: ModelState,
        live_graph: LiveGraph,
        rows: dict[str, int],
        public: frozenset[str],
        channels: Sequence[int],
    ) -> None:
        self.features = features
        self.labels = labels
        self.state = state
        self.live_graph = live_graph
        #: External id -> row, live nodes only.
        self.rows = rows
        #: External ids of the nodes declared public: an MLP was trained on them, and they are never deleted.
        self.public = public
        self._channels = tuple(channels)

    @classmethod
    def load(
        cls, manifest: Manifest, base: Base, version: VersionState, number: int, device: torch.device | str
    ) -> "Resident":
        """Puts version `number` of a stored model on the device and factorises its Gram matrices.

        Raises DeviceError, before any work, when the device has less free memory than that and later batches need.
        """
        graph, live = base.graph, version.live
        require_memory("Serving", serving_needs(manifest.spec, Sizes.of(graph)), device)
        propagator = Propagator.build(
            graph.adjacency, manifest.spec.propagation, manifest.spec.self_loops, live=live, device=device
        )
        training = graph.train_mask & live
        labels = one_hot(graph.labels, training, graph.num_classes)
        inputs = inputs_of(
            manifest.spec,
            FeatureMatrix(graph.features, device),
            labels,
            propagator,
            manifest.diffusion,
            version.featured,
        )
        features = InputRows(inputs.features.rows, side_by_side(_on(base.beta, device)))
        gram = factorise(
            features.rows,
            version.featured,
            sigma_ref_squared=manifest.sigma_ref_squared,
            rank_tolerance=manifest.rank_tolerance,
        )
        state = ModelState(
            version=number,
            features=_span(version.features, gram, version.featured, device),
            labels=None,
            live=live,
            classes=graph.num_classes,
        )
        label_rows = None
        if inputs.labels is not None:
            label_rows = InputRows(inputs.labels.rows, side_by_side(_on(base.label_beta, device)))
            # Counts of training nodes by class: n bounds them for good, and a class that has one is never lost in it.
            gram = factorise(label_rows.rows, training, sigma_ref_squared=float(graph.nodes))
            state = replace(state, labels=_span(version.labels, gram, training, device))
        return cls(
            features=features,
            labels=label_rows,
            state=state,
            live_graph=LiveGraph(inputs, propagator, loss_of(manifest.spec.loss)),
            rows={graph.node_ids[row]: int(row) for row in np.flatnonzero(live)},
            public=frozenset(graph.node_ids[row] for row in np.flatnonzero(base.public)),
            channels=[channel.column for channel in manifest.injected_channels],
        )

    def predictions(self) -> Snapshot:
        """The predictions of the committed state."""
        return self.live_graph.predictions(self.state)

    def prepare(self, removals: Sequence[Removal]) -> Prepared:
        """Computes all removals at once, beside the committed state.

        Raises NotFinite when the result is not made of finite numbers.
        """
        projection = project_batch(self.state, self.features, self.labels, removals, self._channels)
        nodes = _joined([removal.nodes for removal in removals if removal.kind is RequestKind.NODE])
        feature_rows = _joined([removal.nodes for removal in removals if removal.kind is RequestKind.FEATURES])
        edges = np.concatenate([removal.edges for removal in removals])
        live_graph = self.live_graph.without(nodes, edges, feature_rows)
        snapshot = live_graph.predictions(projection.state)
        parts = [part for span in projection.state.spans for part in (span.W, span.B, span.T)]
        if not (all(bool(part.isfinite().all()) for part in parts) and np.isfinite(snapshot.probabilities).all()):
            raise NotFinite("The batch leads to weights or predictions that are not finite; it was not applied.")
        return Prepared(nodes, feature_rows, edges, projection, live_graph, snapshot)

    def commit(self, prepared: Prepared) -> None:
        """Makes `prepared` the committed state and forgets the removed rows in memory."""
        self.state = prepared.projection.state
        self.live_graph = prepared.live_graph
        _forget(self.features, np.concatenate([prepared.nodes, prepared.feature_rows]))
        if self.labels is not None:
            _forget(self.labels, prepared.nodes)
        deleted = set(prepared.nodes.tolist())
        self.rows = {node: row for node, row in self.rows.items() if row not in deleted}


def version_state(state: ModelState) -> VersionState:
    """`state` as it is stored."""
    classes = state.classes
    no_labels = SpanArrays.untouched(np.zeros((0, classes, classes)))
    return VersionState(
        features=_arrays(state.features, classes),
        labels=no_labels if state.labels is None else _arrays(state.labels, classes),
        live=state.live,
        featured=state.features.in_span,
        rank=state.features.gram.rank,
    )


def _span(arrays: SpanArrays, gram: Gram, in_span: NDArray[np.bool_], device: torch.device | str) -> SpanState:
    W, B, T = (side_by_side(_on(part, device)) for part in (arrays.weights, arrays.B, arrays.T))
    return SpanState(W, B, T, gram, in_span)


def _arrays(span: SpanState, classes: int) -> SpanArrays:
    return SpanArrays(*(by_block(part, classes).cpu().numpy() for part in (span.W, span.B, span.T)))


def _forget(given: InputRows, rows: NDArray[np.int64]) -> None:
    given.rows.forget(rows)
    given.beta[torch.from_numpy(rows).to(given.beta.device)] = 0.0


def _joined(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([*rows, np.empty(0, dtype=np.int64)])


def _on(array: NDArray[np.float64], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
