"""Whether all that a deletion request names can be deleted, and how much of that each key may learn."""

from collections.abc import Sequence
from typing import ClassVar
from uuid import UUID

from service.deletions.deletions import Deletions
from service.deletions.public_nodes import is_public, refuse_public
from service.domain.kinds import Names, Part, RequestKind, Target, ends_of
from service.errors import NotFound, UnknownEdges, UnknownNodes


class UnknownTargets(NotFound):
    """Something that is named is not in the model, or is never deleted; which, the key may not know."""

    slug: ClassVar[str] = "unknown-targets"
    title: ClassVar[str] = "Unknown targets"


async def require_deletable(deletions: Deletions, kind: RequestKind, subjects: Sequence[Target]) -> None:
    """Raise UnknownTargets unless all of `subjects` are in the model, or were and are deleted; or Unavailable.

    For keys that may not know of deletions: no matter what is there and what is deleted, the same is looked up and the
    same is said. An edge that went with a node is unknown then: accepted, every pair with a deleted node would be, and
    so tell it from the others. Where no version can be read, everything passes: the unlearner finds out.
    """
    edges = [subject for subject in subjects if not isinstance(subject, str)]
    nodes = list(dict.fromkeys(node for subject in subjects for node in ends_of(subject)))
    # First of all: what the reader no longer has by now has its tombstone already.
    found = await deletions.look_up(nodes, edges)
    if found is None:
        return
    deleted = await deletions.tombstones.deleted_nodes(nodes)
    known: set[Target] = {*found.live, *deleted}
    if kind.rules.names is Names.EDGES:
        cut = await deletions.tombstones.find(kind.rules.removes, edges)
        known = {*cut, *(edge for edge, is_present in zip(edges, found.edges, strict=True) if is_present)}
    if not known.issuperset(subjects) or any(is_public(found.public, subject) for subject in subjects):
        raise UnknownTargets(
            f"Some of these ids are not in the model {deletions.model} or may not be deleted.",
            "Check the ids; keys with deletions:read see which. Nothing was accepted.",
        )


async def deleted_earlier(
    deletions: Deletions, kind: RequestKind, subjects: Sequence[Target]
) -> dict[Target, UUID | None]:
    """The subjects that are gone already, with the request that deleted each, None where the database has it not.

    For keys that may know of deletions. Where no version can be read, nothing is refused: the unlearner finds out.
    Raises UnknownNodes, UnknownEdges, PublicNodes and Unavailable.
    """
    edges = [subject for subject in subjects if not isinstance(subject, str)]
    ends = list(dict.fromkeys(node for subject in subjects for node in ends_of(subject)))
    # First of all: what the reader no longer has by now has its tombstone already.
    found = await deletions.look_up(ends, edges)
    missing = [node for node in ends if found is None or node not in found.live]
    deleted = await deletions.tombstones.deleted_nodes(missing)
    earlier: dict[Target, UUID | None] = {}
    if kind.rules.removes is not Part.NODES:
        earlier = await deletions.tombstones.find(kind.rules.removes, subjects)
    if found is not None:
        gone = {*missing, *earlier}
        absent = [
            edge
            for edge, is_present in zip(edges, found.edges, strict=True)
            if not is_present and gone.isdisjoint((edge, *edge))
        ]
        unknown = [node for node in missing if node not in deleted]
        _refuse_unknown(deletions.model, unknown, absent)
        refuse_public(found.public, deletions.model, subjects)
    for subject in subjects:
        for node in ends_of(subject):
            if node in deleted:
                earlier.setdefault(subject, deleted[node])
    return earlier


def _refuse_unknown(model: str, nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> None:
    """Raises UnknownNodes, UnknownEdges."""
    also: dict[str, Sequence[object]] = {"unknown_edges": edges} if edges else {}
    if nodes:
        raise UnknownNodes(
            f"{len(nodes)} of the nodes are not in the model {model}.",
            "Check the ids in `unknown`. Nothing was accepted.",
            unknown=nodes,
            **also,
        )
    if edges:
        raise UnknownEdges(
            f"{len(edges)} of the edges are not in the graph of the model {model}.",
            "Check the pairs in `unknown_edges`. Nothing was accepted.",
            **also,
        )
