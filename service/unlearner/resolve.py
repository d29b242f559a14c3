"""Decide what each request of a batch changes: pure, from the graph, the tombstones and the order of requests.

Removals come first, then additions and corrections in the order of arrival. Two requests of one batch never change the
same: the second waits for the next batch, and nothing that joins overtakes it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from service.domain.kinds import Part, RequestKind, Target, ends_of, ordered
from service.unlearner.claims import Change, CommittedGraph, DecryptedRequest, DeletedBy, DeletedEarlier, Known
from service.unlearner.resolve_joining import JoiningRequests

_WIDEST_FIRST = tuple(Part)


@dataclass(frozen=True)
class Resolution:
    """What to do with each claimed request."""

    #: Earliest first.
    changes: tuple[Change, ...]
    #: Requests with nothing left to do.
    already_deleted: tuple[tuple[DecryptedRequest, DeletedEarlier], ...]
    #: Requests that share targets with others of this batch. They wait until it is applied: if the others were
    #: withdrawn, nobody would change the shared targets.
    deferred: tuple[DecryptedRequest, ...]
    #: Requests that name targets the model has never had, with their number.
    unknown: Mapping[UUID, int]
    #: Requests by which something would join that does not fit the graph, with the reason.
    unfit: Mapping[UUID, str]


def absent(claimed: Sequence[DecryptedRequest], present: CommittedGraph) -> dict[Part, set[Target]]:
    """Return the targets of `claimed` that do not exist, nodes and ends of edges included, for `resolve`."""
    missing: dict[Part, set[Target]] = {part: set() for part in Part}
    for each in claimed:
        if each.joins:
            ends = {end for target in each.named for end in ends_of(target)}
            missing[Part.NODES].update(end for end in ends if end not in present.rows)
            continue
        for target, there in zip(each.named, present.has(each.part, each.named), strict=True):
            if not there:
                missing[each.part].add(target)
                missing[Part.NODES].update(end for end in ends_of(target) if end not in present.rows)
    return missing


def resolve(claimed: Sequence[DecryptedRequest], present: CommittedGraph, known: Known) -> Resolution:
    """Sort `claimed`, earliest first, by what is left to do; `known` covers everything in `absent`."""
    taken: dict[Part, set[Target]] = {part: set() for part in Part}
    changes: dict[UUID, Change] = {}
    already: list[tuple[DecryptedRequest, DeletedEarlier]] = []
    deferred: list[DecryptedRequest] = []
    unknown: dict[UUID, int] = {}
    for each in sorted((one for one in claimed if not one.joins), key=lambda one: _WIDEST_FIRST.index(one.part)):
        there, gone = _sorted(each, present, known)
        own = tuple(target for target in there if not _goes_with_another(each.part, target, taken))
        if _is_joined_before(each, claimed):
            deferred.append(each)
        elif len(there) + len(gone) < len(each.named):
            unknown[each.request.id] = len(each.named) - len(there) - len(gone)
        elif own and len(own) == len(there):
            # All that it names: after a crash only the requests of a batch show which edges it deleted.
            taken[each.part].update(each.named)
            changes[each.request.id] = Change(each, own, present.removal(each.part, own))
        elif there:
            deferred.append(each)
        else:
            with_node = sum(target not in known.deleted_by[each.part] for target in gone)
            by = [request for request in gone.values() if request is not None]
            already.append((each, DeletedEarlier(tuple(dict.fromkeys(by)), with_node)))
    joining = JoiningRequests(present, known, taken)
    waiting = {each.request.id for each in deferred}
    # A node is never trained on between its own deletion and the batch that this waits for.
    taken[Part.NODES].update(node for each in deferred if each.part is Part.NODES for node in each.named)
    for each in claimed:
        if each.joins:
            joining.take(each)
        elif each.request.id in waiting:
            taken[each.part].update(each.named)
    changes |= joining.changes
    by_age = tuple(changes[each.request.id] for each in claimed if each.request.id in changes)
    return Resolution(by_age, (*already, *joining.beaten), (*deferred, *joining.deferred), unknown, joining.unfit)


def _sorted(
    each: DecryptedRequest, present: CommittedGraph, known: Known
) -> tuple[tuple[Target, ...], dict[Target, UUID | None]]:
    """Return a request's existing targets, and its deleted ones with the request that deleted them.

    A node of a queued addition counts as existing, also if it was deleted before and is to join again. So does the
    label of a node that is not trained on: the person objects to training, also by a later import.
    """
    there: list[Target] = []
    gone: dict[Target, UUID | None] = {}
    for target, is_there in zip(each.named, present.has(each.part, each.named), strict=True):
        if is_there or (each.part is Part.NODES and target in known.queued):
            there.append(target)
        elif by := list(_those_who_deleted(each.part, target, known.deleted_by)):
            gone[target] = by[0]
        elif each.part is Part.LABELS and target in present.rows:
            there.append(target)
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


def _is_joined_before(each: DecryptedRequest, claimed: Sequence[DecryptedRequest]) -> bool:
    """Return whether an earlier request of the batch adds or corrects what this one deletes, other than nodes.

    This one then deletes what has joined. A deletion of a node comes first, so that the node is never trained on.
    """
    if each.part is Part.NODES:
        return False
    named = set(each.named)
    for earlier in claimed:
        if earlier is each:
            return False
        if not earlier.joins:
            continue
        if each.part is Part.EDGES and not named.isdisjoint(map(ordered, earlier.targets.edges)):
            return True
        for node, content in earlier.targets.content.items():
            value = content.label if each.part is Part.LABELS else content.features
            if node in named and (value is not None or earlier.request.kind is RequestKind.ADDITION):
                return True
    return False


def refused_for_public(claimed: Sequence[DecryptedRequest], public: Collection[str]) -> dict[UUID, str]:
    """Return the requests that name public nodes or edges between two of them, with reasons; they delete nothing.

    An edge with one public end may be deleted for its other end. The API refuses such requests. One can still arrive
    here if it was queued for another model before this one was imported.
    """
    refused = {}
    for each in claimed:
        nodes = sum(node in public for node in each.targets.nodes)
        edges = 0 if each.joins else sum(left in public and right in public for left, right in each.targets.edges)
        if nodes or edges:
            named = f"{nodes} of its nodes are public" if nodes else f"{edges} of its edges join two public nodes"
            refused[each.request.id] = (
                f"{named}: the model's MLP was trained on public nodes, which can never be deleted. Nothing in "
                "this request was deleted."
            )
    return refused
