"""The model resident on the device: the arrays that stay, and the committed state that each batch replaces."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.base_store import Base
from model_store.features import FeatureMatrix
from model_store.gram import factorise
from model_store.manifest import Manifest
from model_store.propagation import Propagator
from model_store.versions import VersionState
from service.unlearning.live_graph import LiveGraph
from service.unlearning.projection import ModelState, Projection, by_block, project, side_by_side
from service.unlearning.snapshot import Snapshot


class NotFinite(ArithmeticError):
    """A batch led to weights, coefficients or predictions that are not finite numbers; nothing was changed."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch computed beside the committed state: what would be committed, and what was measured."""

    rows: NDArray[np.int64]
    projection: Projection
    live_graph: LiveGraph
    snapshot: Snapshot


class Resident:
    """One model on one device. `prepare` changes nothing; `commit` makes what was prepared the committed state."""

    def __init__(
        self,
        features: FeatureMatrix,
        beta: Tensor,
        state: ModelState,
        live_graph: LiveGraph,
        rows: dict[str, int],
        channels: Sequence[int],
    ) -> None:
        self.features = features
        #: Span coefficients (n, blocks * C) float64 on the device; rows of deleted nodes are zero.
        self.beta = beta
        self.state = state
        self.live_graph = live_graph
        #: External id -> row, live nodes only.
        self.rows = rows
        self._channels = tuple(channels)

    @classmethod
    def load(
        cls, manifest: Manifest, base: Base, version: VersionState, number: int, device: torch.device | str
    ) -> "Resident":
        """Puts version `number` of a stored model on the device and factorises its Gram matrix."""
        live = version.live
        features = FeatureMatrix(base.graph.features, device)
        gram = factorise(
            features, live, sigma_ref_squared=manifest.sigma_ref_squared, rank_tolerance=manifest.rank_tolerance
        )
        state = ModelState(
            version=number,
            W=side_by_side(_on(version.weights, device)),
            B=side_by_side(_on(version.B, device)),
            T=side_by_side(_on(version.T, device)),
            gram=gram,
            live=live,
            classes=version.weights.shape[2],
        )
        propagator = Propagator.build(
            base.graph.adjacency, manifest.spec.propagation, manifest.spec.self_loops, live=live, device=device
        )
        node_ids = base.graph.node_ids
        return cls(
            features=features,
            beta=side_by_side(_on(base.beta, device)),
            state=state,
            live_graph=LiveGraph(manifest.spec, features, propagator),
            rows={node_ids[row]: int(row) for row in np.flatnonzero(live)},
            channels=[channel.column for channel in manifest.injected_channels],
        )

    def predictions(self) -> Snapshot:
        """The predictions of the committed state."""
        return self.live_graph.predictions(by_block(self.state.W, self.state.classes), self.state.version)

    def prepare(self, requests: Sequence[NDArray[np.int64]]) -> Prepared:
        """Computes the deletion of every request's rows at once, beside the committed state.

        Raises NotFinite when the result is not made of finite numbers.
        """
        rows = np.concatenate(requests)
        surviving = self.state.live.copy()
        surviving[rows] = False
        projection = project(self.state, self.features, self.beta, requests, surviving, self._channels)
        live_graph = self.live_graph.without_nodes(rows)
        state = projection.state
        snapshot = live_graph.predictions(by_block(state.W, state.classes), state.version)
        finite = all(bool(part.isfinite().all()) for part in (state.W, state.B, state.T))
        if not (finite and np.isfinite(snapshot.probabilities).all()):
            raise NotFinite("The batch leads to weights or predictions that are not finite; it was not applied.")
        return Prepared(rows, projection, live_graph, snapshot)

    def commit(self, prepared: Prepared) -> None:
        """Makes `prepared` the committed state and forgets the deleted nodes' rows in memory."""
        self.state = prepared.projection.state
        self.live_graph = prepared.live_graph
        self.features.forget(prepared.rows)
        self.beta[torch.from_numpy(prepared.rows).to(self.beta.device)] = 0.0
        deleted = set(prepared.rows.tolist())
        self.rows = {node: row for node, row in self.rows.items() if row not in deleted}


def _on(array: NDArray[np.float64], device: torch.device | str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
