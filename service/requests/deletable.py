"""Check whether the targets of a request may be deleted, and limit what each key learns about them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from service.access.keyring import Keyring
from service.access.limits import RateLimits
from service.db.engine import Engine
from service.domain.formats import plural
from service.domain.kinds import Names, Part, RequestKind, Target, ends_of
from service.errors import Conflict, NotFound, UnknownEdges, UnknownNodes
from service.observability.metrics import IntakeMetrics
from service.predictions.reader import Found, Reader, offload
from service.requests.intake import Intake
from service.requests.tombstones import TombstoneLookup


@dataclass(frozen=True)
class Deletions:
    """Dependencies of the deletion routes, built once by the composition root."""

    #: Name of the served model, which requests and tombstones belong to.
    model: str
    engine: Engine
    reader: Reader
    tombstones: TombstoneLookup
    keyring: Keyring
    intake: Intake
    limits: RateLimits
    metrics: IntakeMetrics
    #: Maximum targets per request, and maximum nodes per search.
    most_targets: int
    #: Whether each batch is followed by a repair.
    repairs: bool

    async def look_up(self, nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> Found | None:
        """Look these up in the published version; None if none can be read."""
        return await offload(len(nodes), lambda: self.reader.look_up(nodes, edges))


class PublicNodes(Conflict):
    """The model's MLP was trained on these targets; `extra["public"]` or `extra["public_edges"]` lists all of them."""

    slug: ClassVar[str] = "public-nodes"
    title: ClassVar[str] = "Public nodes are never deleted"


def is_public(public: Collection[str], subject: Target) -> bool:
    """Return whether this is one of the `public` nodes, or an edge between two of them.

    An edge with one public end may be deleted, because it belongs to the other end as well.
    """
    return all(end in public for end in ends_of(subject))


def refuse_public(named_public: Collection[str], model: str, subjects: Sequence[Target]) -> None:
    """Raise PublicNodes if any of `subjects` is one of the nodes `named_public`, or an edge between two of them."""
    public = [subject for subject in subjects if is_public(named_public, subject)]
    nodes = [subject for subject in public if isinstance(subject, str)]
    edges = [subject for subject in public if not isinstance(subject, str)]
    reason = f"the MLP of the model {model} was trained on public nodes and can never forget them."
    instead = "nothing was accepted. To forget them, train and import a model without them."
    if nodes:
        raise PublicNodes(
            f"{plural(len(nodes), 'node is', 'nodes are')} public: {reason}",
            f"Remove the nodes listed in `public`; {instead}",
            public=nodes,
        )
    if edges:
        raise PublicNodes(
            f"{plural(len(edges), 'edge joins', 'edges join')} two public nodes: {reason}",
            f"Remove the edges listed in `public_edges`; {instead}",
            public_edges=edges,
        )


class NeedsRepair(Conflict):
    """Only the repair unlearns labels, and this model is not repaired."""

    slug: ClassVar[str] = "needs-repair"
    title: ClassVar[str] = "Labels need the repair"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"Labels leave a model only by its repair, and the model {model} is served without one.",
            "Serve it with `--repair always`, or delete the nodes. Nothing was accepted.",
        )


class NoEdges(Conflict):
    """The model uses no edges and stores none."""

    slug: ClassVar[str] = "no-edges"
    title: ClassVar[str] = "The model has no edges"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model {model} was trained with 0 hops: it uses no edges and stores none.",
            "Leave out edges and neighbours: there is nothing of them to forget or to learn.",
        )


class UnknownTargets(NotFound):
    """A target is not in the model or is never deleted; the key may not know which."""

    slug: ClassVar[str] = "unknown-targets"
    title: ClassVar[str] = "Unknown targets"


async def require_deletable(deletions: Deletions, kind: RequestKind, subjects: Sequence[Target]) -> set[str]:
    """Return which of `subjects` are queued to join.

    Raises UnknownTargets unless each is in the model, was deleted from it, or is queued to join it. Raises Unavailable.

    For keys that may not know of deletions: lookups and answer are the same whatever exists and whatever is deleted. An
    edge that went with a node counts as unknown. Otherwise every pair with a deleted node would be accepted, which
    would reveal that node. If no version can be read, everything passes: the unlearner checks later.
    """
    edges = [subject for subject in subjects if not isinstance(subject, str)]
    nodes = list(dict.fromkeys(node for subject in subjects for node in ends_of(subject)))
    # First: whatever the reader no longer has by now already has its tombstone.
    found = await deletions.look_up(nodes, edges)
    if found is None:
        return set()
    deleted, joining = await deletions.tombstones.states(nodes)
    known: set[Target] = {*found.live, *deleted, *joining}
    if kind.rules.names is Names.EDGES:
        cut = await deletions.tombstones.find(kind.rules.deletes, edges)
        known = {*cut, *(edge for edge, is_present in zip(edges, found.edges, strict=True) if is_present)}
    if not known.issuperset(subjects) or any(is_public(found.public, subject) for subject in subjects):
        raise UnknownTargets(
            f"Some of these ids are not in the model {deletions.model} or may not be deleted.",
            "Check the ids; keys with deletions:read see which. Nothing was accepted.",
        )
    return {node for node in nodes if node in joining and node not in found.live}


async def deleted_earlier(
    deletions: Deletions, kind: RequestKind, subjects: Sequence[Target]
) -> tuple[dict[Target, UUID | None], set[str]]:
    """Return the already deleted subjects, each with its request, and those that are queued to join.

    The request is None if the database lacks it.

    For keys that may know of deletions. A node that is queued to join, for the first time or again, is not deleted yet.
    If no version can be read, nothing is refused: the unlearner checks later.

    Raises UnknownNodes, UnknownEdges, PublicNodes and Unavailable.
    """
    edges = [subject for subject in subjects if not isinstance(subject, str)]
    ends = list(dict.fromkeys(node for subject in subjects for node in ends_of(subject)))
    # First: whatever the reader no longer has by now already has its tombstone.
    found = await deletions.look_up(ends, edges)
    missing = [node for node in ends if found is None or node not in found.live]
    deleted, joining = await deletions.tombstones.states(missing)
    if kind.rules.names is Names.NODES:
        # Accepted: nodes are kept from joining, and features and labels are deleted once they have joined.
        missing = [node for node in missing if node not in joining]
        deleted = {node: request_id for node, request_id in deleted.items() if node not in joining}
    earlier: dict[Target, UUID | None] = {}
    if kind.rules.removes is not Part.NODES:
        found_earlier = await deletions.tombstones.find(kind.rules.deletes, subjects)
        earlier = {subject: request_id for subject, request_id in found_earlier.items() if subject not in joining}
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
    return earlier, {node for node in ends if node in joining}


def _refuse_unknown(model: str, nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> None:
    """Raise UnknownNodes or UnknownEdges if any are given."""
    also: dict[str, Sequence[object]] = {"unknown_edges": edges} if edges else {}
    if nodes:
        raise UnknownNodes(
            f"{plural(len(nodes), 'node is', 'nodes are')} not in the model {model}.",
            "Check the ids in `unknown`. Nothing was accepted.",
            unknown=nodes,
            **also,
        )
    if edges:
        raise UnknownEdges(
            f"{plural(len(edges), 'edge is', 'edges are')} not in the graph of the model {model}.",
            "Check the pairs in `unknown_edges`. Nothing was accepted.",
            **also,
        )
