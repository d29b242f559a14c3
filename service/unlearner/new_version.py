"""A version to commit: the steps of its cause, its published facts, and what it leaves to erase."""

import asyncio
import contextvars
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from typing import ClassVar, TypeVar
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray

from model_store.base.edit import Edit
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
from service.domain.versions import Drift, Version
from service.predictions.facts import ModelFacts, NoiseFacts, VersionFacts
from service.predictions.writer import PublishedModel
from service.unlearner.committed import Committed
from service.unlearner.context import PrivacyLedger

NO_EDGES = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class NewVersion:
    """A version computed beside the committed one, with its measurements."""

    id: UUID = field(default_factory=uuid4)
    state: ModelState
    #: Edges between its live nodes, each counted once.
    edges: int
    #: Outcome of the repair of its weights, or their bound without one.
    outcome: RepairOutcome
    #: Whether its span coefficients belong to its own weights and are not on the disk yet.
    rebuilt: bool
    requests: int = 0
    #: Numbers of deleted nodes, of nodes that lost only their features, of edges deleted by themselves, and of nodes
    #: that lost only their labels.
    deleted: tuple[int, int, int, int] = (0, 0, 0, 0)
    #: The deleted edges, (k, 2), that are still in the graph on the disk.
    deleted_edges: NDArray[np.int64] = field(default_factory=lambda: NO_EDGES)
    directions_removed: int = 0
    #: What joins the graph and what it replaces on the disk; None if nothing does.
    edit: Edit | None = None
    #: How it is published with noise; None without.
    publication: Publication | None
    #: Its predictions, for readers.
    snapshot: Snapshot
    #: Facts shared by all versions of the model; set only if the model changed.
    model: PublishedModel | None = None
    #: Installs it as the state on the device.
    replace_state: Callable[[], None]

    @property
    def deletes(self) -> bool:
        """Whether it lacks something of the version before; replaced values count."""
        edit = self.edit
        replaces = edit is not None and (edit.label_rows.size > 0 or edit.feature_rows.size > len(edit.ids))
        return replaces or any(self.deleted)


class CauseSteps:
    """The steps that one cause adds to those of every version; none by default."""

    cause: ClassVar[Cause]

    def written(self, ref: VersionRef) -> None:
        """Do the cause's work at the end of step 5, on the executor."""

    async def record(self, connection: Connection, version: Version) -> None:
        """Insert the cause's rows in step 6, in the transaction that inserts the version's."""

    async def apply(self, version: Version) -> None:
        """Do the cause's work of step 8."""

    def erase(self) -> None:
        """Erase the cause's data from the disk in step 9, on the executor."""

    async def complete(self, connection: Connection, version: Version) -> None:
        """Complete the cause's rows in step 10, in the transaction that finishes the version's."""

    async def done(self, version: Version) -> None:
        """Do the cause's work after step 10."""


class ToErase:
    """The data that an erasure must look for: at first every deletion ever, then those since the last erasure."""

    def __init__(self, nodes: int, edges: NDArray[np.int64]) -> None:
        """`nodes` is the number of nodes; `edges` (k, 2) are deleted ones that may still be on the disk."""
        self._nodes = np.ones(nodes, dtype=np.bool_)
        self._features = np.ones(nodes, dtype=np.bool_)
        self._edges = edges

    def add_edges(self, edges: NDArray[np.int64]) -> None:
        """Add deleted edges (k, 2). The version itself records its deleted nodes and features."""
        self._edges = np.concatenate([self._edges, edges])

    def erasure(self, committed: VersionState) -> Erasure:
        """Return what to erase so that the disk holds only the data of `committed`."""
        # Nodes that joined since are not on the disk yet, and are live.
        live, featured = committed.live[: self._nodes.size], committed.featured[: self._nodes.size]
        return Erasure(
            nodes=np.flatnonzero(self._nodes & ~live),
            feature_rows=np.flatnonzero(self._features & live & ~featured),
            edges=self._edges,
        )

    def erased(self, committed: VersionState) -> None:
        """Record that the disk holds only the data of `committed`."""
        self._nodes, self._features, self._edges = committed.live, committed.featured, self._edges[:0]


T = TypeVar("T")


@dataclass(frozen=True)
class Stopwatch:
    """Milliseconds by step."""

    durations_ms: dict[str, float] = field(default_factory=dict)

    async def time(self, step: str, work: Callable[[], T], executor: Executor) -> T:
        """Run blocking `work` on the executor, off the event loop, and add its duration to `step`."""
        started = time.perf_counter()
        result = await asyncio.get_running_loop().run_in_executor(executor, contextvars.copy_context().run, work)
        spent = (time.perf_counter() - started) * 1000
        self.durations_ms[step] = round(self.durations_ms.get(step, 0.0) + spent, 3)
        return result

    def split(self, step: str, part: str, seconds: float) -> None:
        """Move the last `seconds` of `step` to `part`."""
        milliseconds = round(seconds * 1000, 3)
        self.durations_ms[part] = self.durations_ms.get(part, 0.0) + milliseconds
        self.durations_ms[step] = round(max(0.0, self.durations_ms[step] - milliseconds), 3)


def model_facts(manifest: Manifest, nodes: int, *, weighted: bool) -> ModelFacts:
    """Return the facts that stay the same between imports, of a graph of `nodes` rows."""
    spec = manifest.spec
    return ModelFacts(
        name=manifest.name,
        nodes=nodes,
        features=manifest.features,
        classes=manifest.classes,
        hops=spec.hops,
        combine=spec.combine.value,
        propagation=spec.propagation.value,
        loss=spec.loss.value,
        regularization=spec.regularization,
        condition_number=manifest.condition_number,
        columns=manifest.columns,
        accuracy=None if manifest.regression is not None else asdict(manifest.accuracy),
        regression=None if manifest.regression is None else asdict(manifest.regression),
        frozen_parts=manifest.frozen_parts,
        weighted=weighted,
    )


def published_model(manifest: Manifest, committed: Committed) -> PublishedModel:
    """Return the facts shared by all versions of a model."""
    facts = model_facts(manifest, len(committed.node_ids), weighted=committed.live_graph.weighted)
    return PublishedModel(facts, manifest.canaries, committed.node_ids, committed.public)


def grown_model(manifest: Manifest, committed: Committed, nodes: NDArray[np.int64], edit: Edit) -> PublishedModel:
    """Return the same of the next version, without `nodes` (m,) and with `edit`."""
    node_ids = committed.node_ids.without(nodes).followed_by(edit.ids)
    public = np.concatenate([committed.public, np.zeros(len(edit.ids), dtype=np.bool_)])
    facts = model_facts(manifest, len(node_ids), weighted=committed.live_graph.weighted)
    return PublishedModel(facts, manifest.canaries, node_ids, public)


def committed_facts(committed: Committed, ledger: PrivacyLedger) -> VersionFacts:
    """Return the facts of the committed version; computes its certificate if needed."""
    edges, certificate = committed.live_graph.edges, committed.certificate
    return version_facts(committed.state, edges, certificate, committed.publication, ledger, committed.drift)


def version_facts(
    state: ModelState,
    edges: int,
    certificate: Certificate | None,
    publication: Publication | None,
    ledger: PrivacyLedger,
    drift: Drift,
) -> VersionFacts:
    """Return the facts of a version with this `certificate`; the ledger must have counted one with noise."""
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
        **vars(drift),
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
