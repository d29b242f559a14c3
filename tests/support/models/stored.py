"""A model on disk and on the device, with deletions as in the service but without the service."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.base.erasure import Erasure
from model_store.build import BuiltModel, build_model
from model_store.datasets.load import default_data_dirs, load_dataset
from model_store.datasets.synthetic import DEFAULT_SYNTHETIC
from model_store.errors import DatasetNotFound
from model_store.manifest import InjectedChannel
from model_store.versions import VersionRef
from projector.forgetting.batch import ModelState, Removal
from projector.forgetting.injection import add_canaries, inject_channel
from projector.forgetting.preconditioner import FACTOR_AGE_S
from projector.forgetting.repair import RepairOutcome
from projector.graph.graph import Graph
from projector.network.spec import ModelSpec, PropagationKind
from service.domain.states import RepairPolicy
from service.unlearner.committed import Prepared, PreparedRepair, version_state
from service.unlearner.measurement import stored_span_residual
from service.unlearner.placement import Placement
from service.unlearner.resident import Resident
from tests.support.device import DEVICE
from tests.support.models.small_graphs import dense
from tests.support.stand_ins import stands_in

SMALL = "synthetic:n=300,d=120,classes=4,seed=3"


def real_graph(name: str) -> Graph:
    """Return the dataset, or a synthetic graph of Cora's size if its file is missing; only Cora is always available."""
    try:
        return load_dataset(name, data_dirs=default_data_dirs(os.environ), download=None)
    except DatasetNotFound:
        stands_in(name)
        return load_dataset(DEFAULT_SYNTHETIC, data_dirs=[])


def built(
    graph: Graph,
    spec: ModelSpec | None = None,
    channel: Sequence[str] = (),
    public: Sequence[str] = (),
    cohorts: int = 0,
) -> BuiltModel:
    """Train on `graph`, with cohorts of four canaries, and an injected column and class for the nodes `channel`."""
    canaries = None
    if cohorts:
        graph, canaries = add_canaries(graph, cohorts, nodes=4, seed=0, tag="t")
    channels: list[InjectedChannel] = []
    if channel:
        graph = inject_channel(graph, channel, extra_class=True)
        channels = [InjectedChannel(column=graph.num_features - 1, nodes=len(channel))]
    return build_model(
        graph,
        spec or ModelSpec(),
        name="test",
        dataset="test",
        split="full",
        injected_channels=channels,
        canaries=canaries,
        public=public,
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one batch, with its measured residual."""

    prepared: Prepared
    span_residual: float


class StoredModel:
    """Steps 4 to 10 of a batch, on the real store."""

    def __init__(
        self,
        path: Path,
        model: BuiltModel,
        policy: RepairPolicy = RepairPolicy.NEVER,
        factor_age_s: float = FACTOR_AGE_S,
    ) -> None:
        self.model = model
        self.placement = Placement(DEVICE, policy, factor_age_s=factor_age_s)
        self.store = model.write(path)
        self.ref = VersionRef(0, 0)
        self.resident = self.reloaded()

    def reloaded(self) -> Resident:
        """Load the committed version as a restart would."""
        version = self.store.read_version(self.ref)
        manifest, base = self.store.manifest, self.store.load_base()
        return Resident.load(manifest, base, version, self.ref.version, self.placement)

    def delete(self, *requests: Sequence[int]) -> Outcome:
        """Run one batch of these requests' nodes, up to the measurement from disk."""
        rows = [np.asarray(request, dtype=np.int64) for request in requests]
        return self.remove(*(Removal(nodes=request) for request in rows))

    def remove(self, *removals: Removal, budget_s: float = math.inf) -> Outcome:
        """Run one batch of requests of any kind, up to the measurement from disk."""
        prepared = self.resident.prepare(removals, budget_s=budget_s)
        self._write(prepared.state, prepared.outcome)
        self.resident.commit(prepared)
        self._write_coefficients(prepared.outcome)
        self.store.erase(Erasure(prepared.nodes, prepared.feature_rows, prepared.edges), fencing=1)
        self.store.remove_versions(keep=self.ref, below_fencing=1)
        return Outcome(prepared, stored_span_residual(self.store, self.store.read_version(self.ref)))

    def repair(self) -> PreparedRepair:
        """Finish the pending repair, as its own version."""
        prepared = None
        while prepared is None:
            prepared = self.resident.advance_repair(time.monotonic() + 0.01)
        self._write(prepared.state, prepared.outcome)
        self.resident.commit_repair(prepared)
        self._write_coefficients(prepared.outcome)
        return prepared

    def _write(self, state: ModelState, outcome: RepairOutcome) -> None:
        before, self.ref = self.ref, VersionRef(state.version, 1)
        rebuilt = outcome.coefficients is not None
        beta_version = state.version if rebuilt else self.store.beta_version(before)
        self.store.write_version(self.ref, version_state(state), beta_version=beta_version, edges=0)
        self.store.set_current(self.ref)

    def _write_coefficients(self, outcome: RepairOutcome) -> None:
        if outcome.coefficients is not None:
            beta, *labels = [each.numpy() for each in outcome.coefficients]
            label_beta = labels[0] if labels else np.zeros((0, *beta.shape[1:]))
            self.store.write_beta(beta, label_beta, fencing=1, version=self.ref.version)


class Oracle:
    """The same deletions from scratch: projection through the SVD, predictions on the remaining graph, both dense."""

    def __init__(self, model: BuiltModel) -> None:
        self.X = dense(model.graph.features)
        self.A: NDArray[np.float64] = model.graph.adjacency.toarray()
        self.spec = model.manifest.spec
        self.W = model.weights
        self.Y = np.eye(model.graph.num_classes)[model.graph.labels] * model.graph.train_mask[:, None]
        self.V = model.label_weights
        self.live = np.ones(len(self.X), dtype=np.bool_)
        self.cutoff = float(np.sqrt(model.manifest.rank_tolerance * model.manifest.sigma_ref_squared))
        self.rank = model.manifest.rank

    def delete(
        self, rows: Sequence[int], *, features: Sequence[int] = (), edges: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Remove nodes, nodes' features and edges, and project the weights on the remaining span."""
        self.live[list(rows)] = False
        self.X[[*rows, *features]] = 0.0
        self.Y[list(rows)] = 0.0
        for left, right in edges:
            self.A[left, right] = self.A[right, left] = 0.0
        basis = _row_space(self.X, self.cutoff)
        self.rank = len(basis)
        self.W = basis.T @ (basis @ self.W)
        classes = _row_space(self.Y, 0.5)
        self.V = classes.T @ (classes @ self.V)

    def probabilities(self) -> NDArray[np.float64]:
        """Return class probabilities of the live nodes, on the graph of the live nodes alone, (live, C)."""
        A = self.A[np.ix_(self.live, self.live)] + self.spec.self_loops * np.eye(int(self.live.sum()))
        degrees = A.sum(axis=1)
        scale = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
        P = scale[:, None] * A if self.spec.propagation is PropagationKind.ROW else A * np.sqrt(np.outer(scale, scale))
        logits = np.zeros((len(P), self.W.shape[2]))
        for hop, weights in zip(self.spec.block_hops, self.W, strict=True):
            logits += np.linalg.matrix_power(P, hop) @ (self.X[self.live] @ weights)
        for hop, weights in enumerate(self.V, start=1):
            power = np.linalg.matrix_power(P, hop)
            logits += (power - np.diag(np.diag(power))) @ (self.Y[self.live] @ weights)
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def _row_space(rows: NDArray[np.float64], cutoff: float) -> NDArray[np.float64]:
    """Return an orthonormal basis of the directions of `rows` (n, k) with a singular value above `cutoff`, (r, k)."""
    _, sigma, right = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(right[sigma > cutoff])
