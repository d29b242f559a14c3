"""A version that is to be committed, and what its cause adds to the steps of all versions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID, uuid4

import numpy as np
from numpy.typing import NDArray

from model_store.versions import VersionRef
from projector.certified.publication import Publication
from projector.forgetting.batch import ModelState
from projector.forgetting.repair import RepairOutcome
from service.db.engine import Connection
from service.domain.snapshot import Snapshot
from service.domain.states import Cause
from service.domain.versions import Version
from service.publication.writer import PublishedModel

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
