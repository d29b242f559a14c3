"""The requests of a batch with their targets, the graph that they are resolved against, and what each changes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from projector.forgetting.batch import Removal
from projector.graph.edges import Edges
from service.domain.kinds import Part, Target, ends_of
from service.domain.records import QueuedRequest, Targets

#: The requests that deleted something, by part and then by target; None for a request that the database, restored from
#: an older backup, lacks.
DeletedBy = Mapping[Part, Mapping[Target, UUID | None]]


@dataclass(frozen=True)
class DecryptedRequest:
    """A queued request with its targets decrypted."""

    request: QueuedRequest
    targets: Targets

    @property
    def joins(self) -> bool:
        """Whether something joins the graph."""
        return self.request.kind.rules.joins

    @property
    def part(self) -> Part:
        """The part of its targets to delete. Raises ValueError for a request by which something joins."""
        return self.request.kind.rules.deletes

    @property
    def named(self) -> tuple[Target, ...]:
        """Its nodes, then its edges with their ends in order."""
        return self.targets.named


@dataclass(frozen=True, eq=False)
class CommittedGraph:
    """The contents of the committed version."""

    #: External id -> row, of the live nodes that the batch names.
    rows: Mapping[str, int]
    #: Nodes that still have their features, (n,) bool.
    featured: NDArray[np.bool_]
    #: Nodes that are trained on, (n,) bool.
    trained: NDArray[np.bool_]
    edges: Edges

    def has(self, part: Part, targets: Sequence[Target]) -> list[bool]:
        """Return for each of `targets` whether this part of it exists."""
        live = [all(end in self.rows for end in ends_of(target)) for target in targets]
        rows = self._rows(part, [target for target, is_live in zip(targets, live, strict=True) if is_live])
        match part:
            case Part.NODES:
                return live
            case Part.FEATURES:
                found = iter(self.featured[rows[:, 0]].tolist())
            case Part.LABELS:
                found = iter(self.trained[rows[:, 0]].tolist())
            case Part.EDGES:
                found = iter(self.edges.contain(rows).tolist())
        return [is_live and next(found) for is_live in live]

    def removal(self, part: Part, targets: Sequence[Target]) -> Removal:
        """Build the numerical core's removal of this part of `targets`, as far as it is there."""
        there = [target for target, has in zip(targets, self.has(part, targets), strict=True) if has]
        rows = self._rows(part, there)
        match part:
            case Part.NODES:
                return Removal(nodes=rows[:, 0])
            case Part.FEATURES:
                return Removal(features=rows[:, 0])
            case Part.LABELS:
                return Removal(labels=rows[:, 0])
            case Part.EDGES:
                return Removal(edges=rows)

    def replaced(self, features: Sequence[str], labels: Sequence[str]) -> Removal:
        """Build the removal of the present features and labels of live nodes that get new ones."""
        return Removal(
            features=self.removal(Part.FEATURES, features).features, labels=self.removal(Part.LABELS, labels).labels
        )

    def _rows(self, part: Part, targets: Sequence[Target]) -> NDArray[np.int64]:
        rows = [[self.rows[end] for end in ends_of(target)] for target in targets]
        return np.array(rows, dtype=np.int64).reshape(-1, 2 if part is Part.EDGES else 1)


@dataclass(frozen=True)
class Joins:
    """What joins for one request, by external id."""

    #: New nodes, in the order asked, and edges with their ends in order.
    nodes: tuple[str, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    #: Nodes that get features or a label in place of what they have.
    corrected: tuple[str, ...] = ()
    #: What joins again if an earlier request had deleted it.
    lifted: tuple[tuple[Part, Target], ...] = ()
    #: How many of the new nodes an earlier request had deleted.
    rejoined: int = 0

    @property
    def count(self) -> int:
        """Number of nodes and edges."""
        return len(self.nodes) + len(self.edges) + len(self.corrected)

    def __bool__(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, eq=False)
class Change:
    """A request with something to do in this batch."""

    claimed: DecryptedRequest
    #: Targets that it deletes, in no other change of the batch: external ids of nodes, or pairs of them.
    targets: tuple[Target, ...]
    #: The same targets for the numerical core, or what is replaced by what joins.
    removal: Removal
    #: What joins for it, in no other change of the batch.
    joins: Joins = field(default_factory=Joins)


@dataclass(frozen=True)
class DeletedEarlier:
    """Why a request has nothing left to do."""

    #: The known requests that deleted its targets, in the order of the targets.
    by: tuple[UUID, ...]
    #: Number of its features or edges that were deleted with a node.
    with_node: int


@dataclass(frozen=True)
class Known:
    """What the database knows of what is not in the graph."""

    deleted_by: DeletedBy
    #: Nodes that queued additions name.
    queued: Collection[Target] = frozenset()
    #: When the requests were received that deleted nodes which are to join again, or to get edges.
    received: Mapping[UUID, datetime] = field(default_factory=dict)
