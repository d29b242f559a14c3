"""Decide what joins by the requests of a batch: pure, from the graph, the tombstones and the order of requests."""

from collections.abc import Collection, Mapping
from uuid import UUID

from projector.forgetting.batch import Removal
from service.domain.kinds import Part, RequestKind, Target, ordered
from service.unlearner.claims import Change, CommittedGraph, DecryptedRequest, DeletedEarlier, Joins, Known


class _Unfit(Exception):
    """Something of a request cannot join; the message says what, and names no node, since everybody may read it."""


class JoiningRequests:
    """The requests of a batch by which something joins, in the order of arrival."""

    def __init__(self, present: CommittedGraph, known: Known, taken: Mapping[Part, Collection[Target]]) -> None:
        self._present = present
        self._known = known
        self._taken = taken
        #: What earlier requests of the batch add, now or in a later batch: nodes, corrected nodes and edges.
        self._nodes: set[str] = set()
        self._corrected: set[str] = set()
        self._edges: set[tuple[str, str]] = set()
        self.changes: dict[UUID, Change] = {}
        self.beaten: list[tuple[DecryptedRequest, DeletedEarlier]] = []
        self.deferred: list[DecryptedRequest] = []
        self.unfit: dict[UUID, str] = {}

    def take(self, each: DecryptedRequest) -> None:
        """Decide what of `each` joins."""
        gone = self._left_out(each)
        try:
            is_addition = each.request.kind is RequestKind.ADDITION
            found = self._addition(each, gone) if is_addition else self._correction(each, gone)
        except _Unfit as reason:
            self.unfit[each.request.id] = f"{reason} Nothing of this request joined."
            return
        if found is None:
            # Later requests must not overtake it.
            self.deferred.append(each)
            self._count(each.targets.nodes, each.targets.edges, is_addition=is_addition)
        elif found.joins:
            self.changes[each.request.id] = found
            self._count(found.joins.nodes + found.joins.corrected, found.joins.edges, is_addition=is_addition)
        else:
            by = [request for request in gone.values() if request is not None]
            self.beaten.append((each, DeletedEarlier(tuple(dict.fromkeys(by)), 0)))

    def _count(self, nodes: Collection[str], edges: Collection[tuple[str, str]], *, is_addition: bool) -> None:
        (self._nodes if is_addition else self._corrected).update(nodes)
        self._edges.update(map(ordered, edges))

    def _left_out(self, each: DecryptedRequest) -> dict[str, UUID | None]:
        """Return the nodes that were deleted and do not join again, with the request that deleted them.

        One joins again if the caller says so and asked after the deletion. A correction waits for that. Also returns
        the ends of its edges that were there when it was asked for, and were deleted since.
        """
        deleted = self._known.deleted_by[Part.NODES]
        gone: dict[str, UUID | None] = {}
        for end in {end for edge in each.targets.edges for end in edge} - {*each.targets.nodes, *self._nodes}:
            by = None if end in self._present.rows else deleted.get(end)
            if by is not None and self._known.received[by] > each.request.received_at:
                gone[end] = by
        for node in each.targets.nodes:
            if node in self._present.rows or node not in deleted:
                continue
            if node in self._nodes and each.request.kind is RequestKind.CORRECTION:
                continue
            by, content = deleted[node], each.targets.content[node]
            came_before = by is None or self._known.received[by] < each.request.received_at
            if not (each.request.kind is RequestKind.ADDITION and content.rejoin and came_before):
                gone[node] = by
        return gone

    def _addition(self, each: DecryptedRequest, gone: Collection[str]) -> Change | None:
        """Return what of an addition joins; None if it has to wait. Raises _Unfit."""
        rows, taken, waits = self._present.rows, self._taken, False
        new = tuple(node for node in each.targets.nodes if node not in gone)
        for node in new:
            if node in taken[Part.NODES] or node in self._nodes:
                waits = True
            elif node in rows:
                raise _Unfit("A node that it adds is in the graph already.")
        edges = [ordered(edge) for edge in each.targets.edges if not any(end in gone for end in edge)]
        for edge in edges:
            for end in edge:
                if end in taken[Part.NODES] or end in self._nodes:
                    waits = True
                elif end not in rows and end not in new:
                    was = "was deleted" if end in self._known.deleted_by[Part.NODES] else "is not in the graph"
                    raise _Unfit(f"An edge ends at a node that {was}.")
            if edge in taken[Part.EDGES] or edge in self._edges:
                waits = True
            elif all(self._present.has(Part.EDGES, [edge])):
                raise _Unfit("An edge that it adds is in the graph already.")
        if len(set(edges)) < len(edges):
            raise _Unfit("An edge is named twice.")
        if waits:
            return None
        rejoined = [node for node in new if node in self._known.deleted_by[Part.NODES]]
        lifted: list[tuple[Part, Target]] = [(part, node) for node in rejoined for part in (Part.NODES, Part.FEATURES)]
        # Who objected to training and comes back without a label has not consented to it.
        labelled = [node for node in rejoined if each.targets.content[node].label is not None]
        lifted += [(Part.LABELS, node) for node in labelled]
        lifted += [(Part.EDGES, edge) for edge in edges]
        joins = Joins(nodes=new, edges=tuple(edges), lifted=tuple(lifted), rejoined=len(rejoined))
        return Change(each, (), Removal(), joins)

    def _correction(self, each: DecryptedRequest, gone: Collection[str]) -> Change | None:
        """Return what of a correction joins; None if it has to wait. Raises _Unfit."""
        taken, waits = self._taken, False
        nodes = tuple(node for node in each.targets.nodes if node not in gone)
        lifted: list[tuple[Part, Target]] = []
        for node in nodes:
            content = each.targets.content[node]
            given = [(Part.FEATURES, content.features), (Part.LABELS, content.label)]
            parts = [part for part, value in given if value is not None]
            lifted += [(part, node) for part in parts]
            if any(node in taken[part] for part in (Part.NODES, *parts)) or node in self._nodes | self._corrected:
                waits = True
            elif node not in self._present.rows:
                raise _Unfit("A node that it corrects is not in the graph.")
        if waits:
            return None
        features = [node for part, node in lifted if part is Part.FEATURES and isinstance(node, str)]
        labels = [node for part, node in lifted if part is Part.LABELS and isinstance(node, str)]
        joins = Joins(corrected=nodes, lifted=tuple(lifted))
        return Change(each, (), self._present.replaced(features, labels), joins)
