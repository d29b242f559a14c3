"""Decide what each request of a batch deletes: pure, from the graph, the tombstones and the order of requests."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

_WIDEST_FIRST = tuple(Part)


@dataclass(frozen=True)
class DecryptedRequest:
    """A queued request with its targets decrypted."""

    request: QueuedRequest
    targets: Targets

    @property
    def part(self) -> Part:
        """The part of its targets to delete."""
        return self.request.kind.rules.deletes

    @property
    def named(self) -> tuple[Target, ...]:
        """Its nodes, or its edges with their ends in order."""
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
        """Build the numerical core's removal of this part of `targets`; KeyError for a node or end that is not live."""
        rows = self._rows(part, targets)
        match part:
            case Part.NODES:
                return Removal(nodes=rows[:, 0])
            case Part.FEATURES:
                return Removal(features=rows[:, 0])
            case Part.LABELS:
                return Removal(labels=rows[:, 0])
            case Part.EDGES:
                return Removal(edges=rows)

    def _rows(self, part: Part, targets: Sequence[Target]) -> NDArray[np.int64]:
        rows = [[self.rows[end] for end in ends_of(target)] for target in targets]
        return np.array(rows, dtype=np.int64).reshape(-1, 2 if part is Part.EDGES else 1)


@dataclass(frozen=True, eq=False)
class Deletion:
    """A request with something to delete in this batch."""

    claimed: DecryptedRequest
    #: Targets that it deletes, in no other deletion of the batch: external ids of nodes, or pairs of them.
    targets: tuple[Target, ...]
    #: The same targets for the numerical core.
    removal: Removal


@dataclass(frozen=True)
class DeletedEarlier:
    """Why a request has nothing left to do."""

    #: The known requests that deleted its targets, in the order of the targets.
    by: tuple[UUID, ...]
    #: Number of its features or edges that were deleted with a node.
    with_node: int


@dataclass(frozen=True)
class Resolution:
    """What to do with each claimed request."""

    #: Earliest first.
    deletions: tuple[Deletion, ...]
    #: Requests with nothing left to do.
    already_deleted: tuple[tuple[DecryptedRequest, DeletedEarlier], ...]
    #: Requests that share targets with others of this batch. They wait until it is applied: if the others were
    #: withdrawn, nobody would delete the shared targets.
    deferred: tuple[DecryptedRequest, ...]
    #: Requests that name targets the model has never had, with their number.
    unknown: Mapping[UUID, int]


def absent(claimed: Sequence[DecryptedRequest], present: CommittedGraph) -> dict[Part, set[Target]]:
    """Return the targets of `claimed` that do not exist, nodes and ends of edges included, for `resolve`."""
    missing: dict[Part, set[Target]] = {part: set() for part in Part}
    for each in claimed:
        for target, there in zip(each.named, present.has(each.part, each.named), strict=True):
            if not there:
                missing[each.part].add(target)
                missing[Part.NODES].update(end for end in ends_of(target) if end not in present.rows)
    return missing


def resolve(claimed: Sequence[DecryptedRequest], present: CommittedGraph, deleted_by: DeletedBy) -> Resolution:
    """Sort `claimed`, earliest first, by what is left to do; `deleted_by` covers everything in `absent`."""
    taken: dict[Part, set[Target]] = {part: set() for part in Part}
    deletions: dict[UUID, Deletion] = {}
    already: list[tuple[DecryptedRequest, DeletedEarlier]] = []
    deferred: list[DecryptedRequest] = []
    unknown: dict[UUID, int] = {}
    for each in sorted(claimed, key=lambda one: _WIDEST_FIRST.index(one.part)):
        there, gone = _sorted(each, present, deleted_by)
        own = tuple(target for target in there if not _goes_with_another(each.part, target, taken))
        if len(there) + len(gone) < len(each.named):
            unknown[each.request.id] = len(each.named) - len(there) - len(gone)
        elif own and len(own) == len(there):
            taken[each.part].update(own)
            deletions[each.request.id] = Deletion(each, own, present.removal(each.part, own))
        elif there:
            deferred.append(each)
        else:
            with_node = sum(target not in deleted_by[each.part] for target in gone)
            by = [request for request in gone.values() if request is not None]
            already.append((each, DeletedEarlier(tuple(dict.fromkeys(by)), with_node)))
    by_age = tuple(deletions[each.request.id] for each in claimed if each.request.id in deletions)
    return Resolution(by_age, tuple(already), tuple(deferred), unknown)


def _sorted(
    each: DecryptedRequest, present: CommittedGraph, deleted_by: DeletedBy
) -> tuple[tuple[Target, ...], dict[Target, UUID | None]]:
    """Return a request's existing targets, and its deleted ones with the request that deleted them."""
    there: list[Target] = []
    gone: dict[Target, UUID | None] = {}
    for target, is_there in zip(each.named, present.has(each.part, each.named), strict=True):
        if is_there:
            there.append(target)
        elif by := list(_those_who_deleted(each.part, target, deleted_by)):
            gone[target] = by[0]
    return tuple(there), gone


def _those_who_deleted(part: Part, target: Target, deleted_by: DeletedBy) -> Iterator[UUID | None]:
    """Yield the requests that deleted this part of `target`, by itself or with a node."""
    if target in deleted_by[part]:
        yield deleted_by[part][target]
    for end in ends_of(target):
        if end in deleted_by[Part.NODES]:
            yield deleted_by[Part.NODES][end]


def _goes_with_another(part: Part, target: Target, taken: Mapping[Part, Collection[Target]]) -> bool:
    return target in taken[part] or any(end in taken[Part.NODES] for end in ends_of(target))


def refused_for_public(claimed: Sequence[DecryptedRequest], public: Collection[str]) -> dict[UUID, str]:
    """Return the requests that name public nodes or edges between two of them, with reasons; they delete nothing.

    An edge with one public end may be deleted for its other end. The API refuses such requests. One can still arrive
    here if it was queued for another model before this one was imported.
    """
    refused = {}
    for each in claimed:
        nodes = sum(node in public for node in each.targets.nodes)
        edges = sum(left in public and right in public for left, right in each.targets.edges)
        if nodes or edges:
            named = f"{nodes} of its nodes are public" if nodes else f"{edges} of its edges join two public nodes"
            refused[each.request.id] = (
                f"{named}: the model's MLP was trained on public nodes, which can never be deleted. Nothing in "
                "this request was deleted."
            )
    return refused
