"""A version that is to be committed: what its cause adds, what is published of it, and what it leaves to erase."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray

from model_store.base.erasure import Erasure
from model_store.manifest import Manifest
from model_store.versions import VersionRef, VersionState
from projector.certified.publication import Publication
from projector.forgetting.batch import ModelState
from projector.forgetting.certificate import Certificate
from projector.forgetting.repair import RepairOutcome
from service.db.engine import Connection
from service.domain.snapshot import Snapshot
from service.domain.states import Cause
from service.domain.versions import Version
from service.predictions.facts import ModelFacts, NoiseFacts, VersionFacts
from service.predictions.writer import PublishedModel
from service.unlearner.committed import Committed
from service.unlearner.context import PrivacyLedger

NO_EDGES = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class NewVersion:
    """A version computed beside the committed one, with what was measured of it."""

    id: UUID = field(default_factory=uuid4)
    state: ModelState
    #: Between its live nodes, each counted once.
    edges: int
    #: What the repair of its weights came to, or their bound without one.
    outcome: RepairOutcome
    #: Whether its span coefficients are those of its own weights, and not yet on the disk.
    rebuilt: bool
    requests: int = 0
    #: Nodes, nodes of which the features alone went, and edges by themselves.
    deleted: tuple[int, int, int] = (0, 0, 0)
    #: The latter, (k, 2), where they are still in the graph on the disk.
    deleted_edges: NDArray[np.int64] = field(default_factory=lambda: NO_EDGES)
    directions_removed: int = 0
    #: How it is published; None where it is as it is.
    publication: Publication | None
    #: What it predicts, for readers.
    snapshot: Snapshot
    #: Of a model that is not the one before: what all of its versions have in common.
    model: PublishedModel | None = None
    #: Makes it the state on the device.
    replace_state: Callable[[], None]


class CauseSteps:
    """What one cause adds to the steps that every version takes; nothing, unless it says otherwise."""

    cause: ClassVar[Cause]

    def written(self, ref: VersionRef) -> None:
        """At the end of step 5, on the executor."""

    async def record(self, connection: Connection, version: Version) -> None:
        """In step 6: the rows of its own beside the version's, in the same transaction."""

    async def apply(self, version: Version) -> None:
        """Step 8."""

    def erase(self) -> None:
        """In step 9, on the executor: what else leaves the disk."""

    async def complete(self, connection: Connection, version: Version) -> None:
        """In step 10: the rows of its own, in the transaction that finishes the version's."""

    async def done(self, version: Version) -> None:
        """After step 10."""


class ToErase:
    """What an erasure has to look for: at first all that was ever deleted, then what was since the last one."""

    def __init__(self, nodes: int, edges: NDArray[np.int64]) -> None:
        """Of a model of `nodes` nodes; `edges` (k, 2) are those deleted that may still be there."""
        self._nodes = np.ones(nodes, dtype=np.bool_)
        self._features = np.ones(nodes, dtype=np.bool_)
        self._edges = edges

    def add_edges(self, edges: NDArray[np.int64]) -> None:
        """Edges (k, 2) have been deleted. Nodes and features need no telling: a version says which are gone."""
        self._edges = np.concatenate([self._edges, edges])

    def erasure(self, committed: VersionState) -> Erasure:
        """What must go from the disk so that only what `committed` holds is left."""
        return Erasure(
            nodes=np.flatnonzero(self._nodes & ~committed.live),
            feature_rows=np.flatnonzero(self._features & committed.live & ~committed.featured),
            edges=self._edges,
        )

    def erased(self, committed: VersionState) -> None:
        """Only what `committed` holds is left."""
        self._nodes, self._features, self._edges = committed.live, committed.featured, self._edges[:0]


T = TypeVar("T")


@dataclass(frozen=True)
class Stopwatch:
    """Milliseconds by step."""

    durations_ms: dict[str, float] = field(default_factory=dict)

    async def time(self, step: str, work: Callable[[], T], executor: Executor) -> T:
        """Runs blocking `work` on the executor, off the event loop, and adds up how long it took."""
        started = time.perf_counter()
        result = await asyncio.get_running_loop().run_in_executor(executor, work)
        spent = (time.perf_counter() - started) * 1000
        self.durations_ms[step] = round(self.durations_ms.get(step, 0.0) + spent, 3)
        return result

    def split(self, step: str, part: str, seconds: float) -> None:
        """Of the time of `step`, the last `seconds` were spent on `part`."""
        milliseconds = round(seconds * 1000, 3)
        self.durations_ms[part] = self.durations_ms.get(part, 0.0) + milliseconds
        self.durations_ms[step] = round(max(0.0, self.durations_ms[step] - milliseconds), 3)


def model_facts(manifest: Manifest) -> ModelFacts:
    """What stays the same from one import to the next."""
    spec = manifest.spec
    return ModelFacts(
        name=manifest.name,
        nodes=manifest.nodes,
        features=manifest.features,
        classes=manifest.classes,
        hops=spec.hops,
        combine=spec.combine.value,
        propagation=spec.propagation.value,
        loss=spec.loss.value,
        regularization=spec.regularization,
        condition_number=manifest.condition_number,
    )


def published_model(manifest: Manifest, committed: Committed) -> PublishedModel:
    """What all versions of a model have in common."""
    return PublishedModel(model_facts(manifest), manifest.canaries, committed.node_ids, committed.public)


def committed_facts(committed: Committed, ledger: PrivacyLedger) -> VersionFacts:
    """Those of the committed version; its certificate is computed if it is not known."""
    edges, certificate = committed.live_graph.edges, committed.certificate
    return version_facts(committed.state, edges, certificate, committed.publication, ledger)


def version_facts(
    state: ModelState,
    edges: int,
    certificate: Certificate | None,
    publication: Publication | None,
    ledger: PrivacyLedger,
) -> VersionFacts:
    """Those of a version of which `certificate` bounds the distance to retraining; one with noise was counted."""
    shown = None if publication else certificate
    return VersionFacts(
        version=state.version,
        live_nodes=int(state.live.sum()),
        edges=edges,
        rank=state.features.gram.rank,
        distance_bound=None if shown is None else shown.bound,
        distance_bound_relative=None if shown is None else shown.relative,
        device=str(state.features.W.device),
        noise=None if publication is None else _noise_facts(publication, ledger),
    )


def _noise_facts(publication: Publication, ledger: PrivacyLedger) -> NoiseFacts:
    promise, spent = publication.promise, ledger.standing(publication)
    return NoiseFacts(
        epsilon=promise.epsilon,
        delta=promise.delta,
        planned=promise.publications,
        used=spent.share * promise.publications,
        mu=publication.mechanism.mu,
        sigma=publication.mechanism.sigma,
    )
