"""What each request of a batch deletes: pure, from what there is, what is tombstoned and who came first.

Where requests of one batch overlap, the widest deletion does the work, because it takes the others' along: a node goes
with its features and its edges. So nodes are given out first, then features, then edges; within a kind the earliest
request comes first. A request that is left with nothing of its own is deferred, and settled as already gone once the
batch is applied; one that keeps a part deletes that part.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from projector.forgetting.batch import Removal
from projector.graph.edges import Edges
from service.domain.records import QueuedRequest, Targets
from service.domain.states import RequestKind
from service.vault.keyring import Subject, ends_of

#: From the widest deletion to the narrowest.
_PRECEDENCE = (RequestKind.NODE, RequestKind.FEATURES, RequestKind.EDGE)

#: The requests that deleted something, by kind and then by what they deleted; None for one that the database, restored
#: from an older backup, does not have.
Tombstones = Mapping[RequestKind, Mapping[Subject, UUID | None]]


@dataclass(frozen=True)
class Claimed:
    """A queued request with its targets opened."""

    request: QueuedRequest
    targets: Targets

    @property
    def kind(self) -> RequestKind:
        """What is to be forgotten."""
        return self.request.kind

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """The nodes, or the edges with their ends in order."""
        if self.kind is RequestKind.EDGE:
            return tuple((min(pair), max(pair)) for pair in self.targets.edges)
        return self.targets.nodes


@dataclass(frozen=True, eq=False)
class Present:
    """What the committed version has."""

    #: External id -> row, live nodes only.
    rows: Mapping[str, int]
    #: Nodes that have their features still, (n,) bool.
    featured: NDArray[np.bool_]
    edges: Edges

    def has(self, kind: RequestKind, subjects: Sequence[Subject]) -> list[bool]:
        """Whether there is something of this kind to delete of each of `subjects`."""
        if kind is RequestKind.EDGE:
            live = [all(end in self.rows for end in ends_of(edge)) for edge in subjects]
            known = self.pairs([edge for edge, ends_live in zip(subjects, live, strict=True) if ends_live])
            found = iter(self.edges.contain(known).tolist())
            return [ends_live and next(found) for ends_live in live]
        nodes = [str(node) for node in subjects]
        if kind is RequestKind.NODE:
            return [node in self.rows for node in nodes]
        return [node in self.rows and bool(self.featured[self.rows[node]]) for node in nodes]

    def pairs(self, edges: Sequence[Subject]) -> NDArray[np.int64]:
        """The rows of the ends of each of `edges`, (k, 2); KeyError for an end that is not live."""
        rows = [[self.rows[end] for end in ends_of(edge)] for edge in edges]
        return np.array(rows, dtype=np.int64).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class Deletion:
    """A request that has something to delete in this batch."""

    claimed: Claimed
    #: What it deletes, in no other deletion of the batch: external ids of nodes, or pairs of them.
    subjects: tuple[Subject, ...]
    #: Rows of the nodes to delete, or to take the features of, (m,).
    nodes: NDArray[np.int64]
    #: Rows of the ends of the edges to delete, (k, 2).
    edges: NDArray[np.int64]

    @property
    def kind(self) -> RequestKind:
        """What is deleted."""
        return self.claimed.kind

    @property
    def removal(self) -> Removal:
        """The same for the numerical core."""
        if self.kind is RequestKind.FEATURES:
            return Removal(features=self.nodes)
        return Removal(nodes=self.nodes, edges=self.edges)


@dataclass(frozen=True)
class Gone:
    """Why a request has nothing left to do."""

    #: The requests that deleted what it names, in the order of what it names, as far as they are known.
    by: tuple[UUID, ...]
    #: How many of its features or edges went with a node.
    with_node: int


@dataclass(frozen=True)
class Resolution:
    """What is to be done with each claimed request."""

    #: The earliest first.
    deletions: tuple[Deletion, ...]
    #: Requests with nothing left to do.
    already_deleted: tuple[tuple[Claimed, Gone], ...]
    #: Requests of which something goes with others of this batch. They wait until that is applied: were the others
    #: withdrawn instead, what was left to them would be deleted by nobody.
    deferred: tuple[Claimed, ...]
    #: Requests that name what this model has never had, with how much of it.
    unknown: Mapping[UUID, int]


def absent(claimed: Sequence[Claimed], present: Present) -> dict[RequestKind, set[Subject]]:
    """What `claimed` name that is not there, nodes and ends of edges included: `resolve` needs their tombstones."""
    missing: dict[RequestKind, set[Subject]] = {kind: set() for kind in RequestKind}
    for each in claimed:
        for subject, there in zip(each.subjects, present.has(each.kind, each.subjects), strict=True):
            if not there:
                missing[each.kind].add(subject)
                missing[RequestKind.NODE].update(end for end in ends_of(subject) if end not in present.rows)
    return missing


def resolve(claimed: Sequence[Claimed], present: Present, tombstones: Tombstones) -> Resolution:
    """Sorts `claimed`, the earliest first, by what there is to do; `tombstones` are those of all that is `absent`."""
    taken: dict[RequestKind, set[Subject]] = {kind: set() for kind in RequestKind}
    deletions: dict[UUID, Deletion] = {}
    already: list[tuple[Claimed, Gone]] = []
    deferred: list[Claimed] = []
    unknown: dict[UUID, int] = {}
    for each in sorted(claimed, key=lambda one: _PRECEDENCE.index(one.kind)):
        there, gone = _sorted(each, present, tombstones)
        own = tuple(subject for subject in there if not _goes_with_another(each.kind, subject, taken))
        if len(there) + len(gone) < len(each.subjects):
            unknown[each.request.id] = len(each.subjects) - len(there) - len(gone)
        elif own and len(own) == len(there):
            taken[each.kind].update(own)
            deletions[each.request.id] = _deletion(each, own, present)
        elif there:
            deferred.append(each)
        else:
            with_node = sum(subject not in tombstones[each.kind] for subject in gone)
            by = [request for request in gone.values() if request is not None]
            already.append((each, Gone(tuple(dict.fromkeys(by)), with_node)))
    by_age = tuple(deletions[each.request.id] for each in claimed if each.request.id in deletions)
    return Resolution(by_age, tuple(already), tuple(deferred), unknown)


def _sorted(
    each: Claimed, present: Present, tombstones: Tombstones
) -> tuple[tuple[Subject, ...], dict[Subject, UUID | None]]:
    """What a request names that is there, and what is gone with the request that deleted it."""
    there: list[Subject] = []
    gone: dict[Subject, UUID | None] = {}
    for subject, is_there in zip(each.subjects, present.has(each.kind, each.subjects), strict=True):
        if is_there:
            there.append(subject)
        elif by := list(_deleted_by(each.kind, subject, tombstones)):
            gone[subject] = by[0]
    return tuple(there), gone


def _deleted_by(kind: RequestKind, subject: Subject, tombstones: Tombstones) -> Iterator[UUID | None]:
    """The requests that deleted `subject`: itself, or a node that took it along."""
    if subject in tombstones[kind]:
        yield tombstones[kind][subject]
    for end in ends_of(subject):
        if end in tombstones[RequestKind.NODE]:
            yield tombstones[RequestKind.NODE][end]


def _goes_with_another(kind: RequestKind, subject: Subject, taken: Mapping[RequestKind, Collection[Subject]]) -> bool:
    return subject in taken[kind] or any(end in taken[RequestKind.NODE] for end in ends_of(subject))


def _deletion(claimed: Claimed, subjects: tuple[Subject, ...], present: Present) -> Deletion:
    edges = subjects if claimed.kind is RequestKind.EDGE else ()
    nodes = () if claimed.kind is RequestKind.EDGE else subjects
    rows = np.array([present.rows[str(node)] for node in nodes], dtype=np.int64)
    return Deletion(claimed, subjects, rows, present.pairs(edges))
