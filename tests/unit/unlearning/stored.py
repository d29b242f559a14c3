"""A model on disk and on the device, deleted from as the service does it, without the service."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.build import BuiltModel, build_model
from model_store.coefficients import span_residual
from model_store.datasets import inject_channel, load_dataset
from model_store.erasure import Erasure
from model_store.graph import Graph
from model_store.manifest import InjectedChannel
from model_store.spec import ModelSpec, PropagationKind
from model_store.store import Store
from model_store.versions import VersionRef
from service.domain.states import RequestKind
from service.unlearning.batch import Removal
from service.unlearning.resident import Prepared, Resident, version_state

SMALL = "synthetic:n=300,d=120,classes=4,seed=3"


def cora_or_small(data_dir: Path | None) -> Graph:
    """Cora where it is found, a small made-up citation graph otherwise."""
    if data_dir is None:
        return load_dataset(SMALL, data_dirs=[])
    return load_dataset("cora", data_dirs=[data_dir])


def built(graph: Graph, spec: ModelSpec | None = None, channel: Sequence[str] = ()) -> BuiltModel:
    """`graph` trained on, with the nodes `channel` carrying an injected column and an extra class."""
    channels: list[InjectedChannel] = []
    if channel:
        graph = inject_channel(graph, channel, extra_class=True)
        channels = [InjectedChannel(column=graph.num_features - 1, nodes=len(channel))]
    return build_model(
        graph, spec or ModelSpec(), name="test", dataset="test", split="full", injected_channels=channels
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one batch did and measured."""

    prepared: Prepared
    span_residual: float


class StoredModel:
    """Steps 4 to 10 of a batch, on the real store."""

    def __init__(self, path: Path, model: BuiltModel) -> None:
        self.model = model
        self.store = Store.create(
            path, manifest=model.manifest, graph=model.graph, beta=model.beta, weights=model.weights
        )
        self.ref = VersionRef(0, 0)
        self.resident = self.reloaded()

    def reloaded(self) -> Resident:
        """The committed version as a restart would load it."""
        version = self.store.read_version(self.ref)
        return Resident.load(self.store.manifest, self.store.load_base(), version, self.ref.version, "cpu")

    def delete(self, *requests: Sequence[int]) -> Outcome:
        """One batch of these requests' rows, through to the measurement from disk."""
        rows = [np.asarray(request, dtype=np.int64) for request in requests]
        prepared = self.resident.prepare([Removal(RequestKind.NODE, nodes=request) for request in rows])
        state = prepared.projection.state
        self.ref = VersionRef(state.version, 1)
        self.store.write_version(self.ref, version_state(state))
        self.store.set_current(self.ref)
        self.resident.commit(prepared)
        self.store.erase(Erasure(nodes=np.concatenate(rows)), fencing=1)
        self.store.remove_versions(keep=self.ref, below_fencing=1)
        version = self.store.read_version(self.ref)
        return Outcome(prepared, span_residual(version.weights, version.T, self.store.span_chunks(version.live)))


class Oracle:
    """The same deletions from scratch: projection through the SVD, predictions on the remaining graph, both dense."""

    def __init__(self, model: BuiltModel) -> None:
        features = model.graph.features
        dense = features.toarray() if sp.issparse(features) else features
        self.X: NDArray[np.float64] = np.asarray(dense, dtype=np.float64)
        self.A: NDArray[np.float64] = model.graph.adjacency.toarray()
        self.spec = model.manifest.spec
        self.W = model.weights
        self.live = np.ones(len(self.X), dtype=np.bool_)
        self.cutoff = float(np.sqrt(model.manifest.rank_tolerance * model.manifest.sigma_ref_squared))
        self.rank = model.manifest.rank

    def delete(self, rows: Sequence[int]) -> None:
        """Removes rows, and projects the weights on the span of what remains."""
        self.live[list(rows)] = False
        _, sigma, right = np.linalg.svd(self.X[self.live], full_matrices=False)
        basis = right[sigma > self.cutoff]
        self.rank = len(basis)
        self.W = basis.T @ (basis @ self.W)

    def probabilities(self) -> NDArray[np.float64]:
        """Class probabilities of the live nodes, on the graph of the live nodes alone, (live, C)."""
        A = self.A[np.ix_(self.live, self.live)] + self.spec.self_loops * np.eye(int(self.live.sum()))
        degrees = A.sum(axis=1)
        scale = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
        P = scale[:, None] * A if self.spec.propagation is PropagationKind.ROW else A * np.sqrt(np.outer(scale, scale))
        logits = np.zeros((len(P), self.W.shape[2]))
        for hop, weights in zip(self.spec.block_hops, self.W, strict=True):
            logits += np.linalg.matrix_power(P, hop) @ (self.X[self.live] @ weights)
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))
