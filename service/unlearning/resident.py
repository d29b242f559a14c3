"""The model resident on the device: the arrays that stay, and the committed state that each batch replaces."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.base_store import Base
from model_store.blocks import by_block, side_by_side
from model_store.features import FeatureMatrix
from model_store.gram import factorise
from model_store.inputs import inputs_of, one_hot
from model_store.losses import loss_of
from model_store.manifest import Manifest
from model_store.propagation import Propagator
from model_store.versions import VersionState
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
        channels: Sequence[int],
    ) -> None:
        self.features = features
        self.labels = labels
        self.state = state
        self.live_graph = live_graph
        #: External id -> row, live nodes only.
        self.rows = rows
        self._channels = tuple(channels)

    @classmethod
    def load(
        cls, manifest: Manifest, base: Base, version: VersionState, number: int, device: torch.device | str
    ) -> "Resident":
        """Puts version `number` of a stored model on the device and factorises its Gram matrices."""
        graph, live = base.graph, version.live
        features = InputRows(FeatureMatrix(graph.features, device), side_by_side(_on(base.beta, device)))
        gram = factorise(
            features.rows, live, sigma_ref_squared=manifest.sigma_ref_squared, rank_tolerance=manifest.rank_tolerance
        )
        span = SpanState(
            W=side_by_side(_on(version.weights, device)),
            B=side_by_side(_on(version.B, device)),
            T=side_by_side(_on(version.T, device)),
            gram=gram,
            in_span=live,
        )
        state = ModelState(number, span, None, live, version.weights.shape[2])
        propagator = Propagator.build(
            graph.adjacency, manifest.spec.propagation, manifest.spec.self_loops, live=live, device=device
        )
        labels = one_hot(graph.labels, graph.train_mask & live, graph.num_classes)
        inputs = inputs_of(manifest.spec, features.rows, labels, propagator)
        return cls(
            features=features,
            labels=None,
            state=state,
            live_graph=LiveGraph(inputs, propagator, loss_of(manifest.spec.loss)),
            rows={graph.node_ids[row]: int(row) for row in np.flatnonzero(live)},
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
    span, classes = state.features, state.classes
    weights, B, T = (by_block(part, classes).cpu().numpy() for part in (span.W, span.B, span.T))
    return VersionState(weights=weights, B=B, T=T, live=state.live, rank=span.gram.rank)


def _forget(given: InputRows, rows: NDArray[np.int64]) -> None:
    given.rows.forget(rows)
    given.beta[torch.from_numpy(rows).to(given.beta.device)] = 0.0


def _joined(rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([*rows, np.empty(0, dtype=np.int64)])


def _on(array: NDArray[np.float64], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
