"""From the body of `POST /deletions` to an accepted request: what is known, what is gone already, what is left."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

import orjson

from service.api.deletion_schemas import DeletionBody, EdgeDeletion
from service.api.problems import MOST_FAULTS
from service.api.public import refuse_public
from service.api.services import Services, Subject
from service.db.intake import Accepted, NewRequest
from service.db.requests import RequestRepository
from service.db.transactions import transaction
from service.domain.drills import NewDrill
from service.domain.records import ApiKey, DeletionRequest, Targets
from service.domain.states import RequestKind
from service.errors import BodyTooLarge, InvalidRequest, Unavailable, UnknownEdges, UnknownNodes

#: What stands for the body of `POST /drills`, which has none: which cohort is next is not the caller's to say.
DRILL_BODY = b"POST /drills"
#: Bytes of randomness in a salt.
_SALT_BYTES = 16


class DuplicateTargets(InvalidRequest):
    """A list names a node or edge more than once; `extra["duplicates"]` lists the first of them."""

    slug: ClassVar[str] = "duplicate-targets"
    title: ClassVar[str] = "Duplicates in the list"


class SelfLoops(InvalidRequest):
    """An edge of the list joins a node to itself; `extra["self_loops"]` lists the first of the nodes."""

    slug: ClassVar[str] = "self-loops"
    title: ClassVar[str] = "Edges from a node to itself"


@dataclass(frozen=True)
class Submission:
    """What became of a body: the request, its targets while they are not forgotten, and what was gone already."""

    request: DeletionRequest
    #: None once the request is finished and its salts are erased.
    targets: Targets | None
    #: Node id, or `a|b` for an edge -> the earlier request that deleted it.
    already_deleted: Mapping[str, UUID]
    #: Whether the request is an earlier one with the same idempotency key.
    replayed: bool = False


async def submit(
    services: Services,
    body: DeletionBody,
    caller: ApiKey,
    idempotency_key: str | None,
    drill: NewDrill | None = None,
) -> Submission:
    """Accept `body` for `caller`, as a drill if it is one.

    Targets that an earlier request deleted are left out; when none is left, the request completes at once, or stays
    queued until the earlier ones have, if they are not erased yet.

    Raises:
        BodyTooLarge, DuplicateTargets, SelfLoops: the body cannot be taken.
        UnknownNodes, UnknownEdges: it names what the model does not have; nothing is accepted.
        PublicNodes: it names what is never deleted; nothing is accepted.
        Conflict: the idempotency key was used with another body.
        DrillOpen: it is a drill, and another one is under way; nothing is accepted.
        QueueFull, Unavailable: it cannot be taken now; nothing is accepted.
    """
    kind = RequestKind(body.kind)
    subjects = _subjects(body)
    _check(services, subjects)
    earlier = await _deleted_earlier(services, kind, subjects)
    refuse_public(services.reader, services.model, subjects)
    rest = [subject for subject in subjects if subject not in earlier]
    canonical = _canonical(body) if drill is None else DRILL_BODY
    accepted = await services.intake.accept(
        NewRequest(
            model=services.model,
            kind=kind,
            targets=_targets(rest or subjects, body.reference),
            reference=body.reference,
            api_key_id=caller.id,
            idempotency_key=idempotency_key,
            body_digest=None if idempotency_key is None else services.keyring.body_digest(canonical),
            drill=drill,
        )
    )
    if accepted.replayed:
        return _replay(accepted, earlier)
    already_deleted = {_label(subject): earlier[subject] for subject in subjects if subject in earlier}
    if rest:
        return Submission(accepted.request, accepted.targets, already_deleted)
    return await _complete_at_once(services, accepted, already_deleted)


def _subjects(body: DeletionBody) -> list[Subject]:
    if isinstance(body, EdgeDeletion):
        # Edges are undirected: both orders of a pair are the same edge.
        return [(min(edge), max(edge)) for edge in body.edges]
    return list(body.nodes)


def _ends(subject: Subject) -> tuple[str, ...]:
    return (subject,) if isinstance(subject, str) else subject


def _label(subject: Subject) -> str:
    return "|".join(_ends(subject))


def _check(services: Services, subjects: Sequence[Subject]) -> None:
    limit = services.settings.max_nodes_per_request
    if len(subjects) > limit:
        raise BodyTooLarge(
            f"{len(subjects)} targets are more than the {limit} that one request may name.",
            "Split the list into several requests.",
            max_nodes=limit,
        )
    edges = [subject for subject in subjects if not isinstance(subject, str)]
    loops = list(dict.fromkeys(first for first, second in edges if first == second))
    if loops:
        raise SelfLoops(
            f"{len(loops)} of the edges join a node to itself, which no edge of a graph here does.",
            f"Leave out such edges; `self_loops` lists the first {MOST_FAULTS} of their nodes. Nothing was accepted.",
            self_loops=loops[:MOST_FAULTS],
        )
    duplicates = [subject for subject, times in Counter(subjects).items() if times > 1]
    if duplicates:
        raise DuplicateTargets(
            f"{len(duplicates)} of the targets occur more than once.",
            f"Name each once; `duplicates` lists the first {MOST_FAULTS} of those that occur more often.",
            duplicates=duplicates[:MOST_FAULTS],
        )


async def _deleted_earlier(services: Services, kind: RequestKind, subjects: Sequence[Subject]) -> dict[Subject, UUID]:
    """The subjects that are gone already, with the request that deleted each. Raises UnknownNodes, UnknownEdges."""
    edges = [subject for subject in subjects if not isinstance(subject, str)]
    # First of all: what the reader no longer has by now has its tombstone already.
    present = services.reader.have_edges(edges)
    ends = dict.fromkeys(node for subject in subjects for node in _ends(subject))
    missing = [node for node in ends if not services.reader.knows(node)]
    deleted = await services.tombstones.deleted_nodes(missing)
    earlier: dict[Subject, UUID] = {}
    if kind is not RequestKind.NODE:
        earlier = await services.tombstones.find(kind, subjects)
    gone = {*missing, *earlier}
    absent = [
        edge
        for edge, is_present in zip(edges, present, strict=True)
        if not is_present and gone.isdisjoint((edge, *edge))
    ]
    unknown = [node for node in missing if node not in deleted]
    forgotten = services.tombstones.only_kept(RequestKind.NODE, unknown) | services.tombstones.only_kept(kind, absent)
    _refuse_unknown(services.model, unknown, forgotten, absent)
    for subject in subjects:
        for node in _ends(subject):
            if node in deleted:
                earlier.setdefault(subject, deleted[node])
    return earlier


def _refuse_unknown(
    model: str, nodes: Sequence[str], forgotten: AbstractSet[Subject], edges: Sequence[tuple[str, str]]
) -> None:
    """Raises UnknownNodes, UnknownEdges; `forgotten` are those of both that only the model knows to be deleted."""
    also: dict[str, Sequence[object]] = {"unknown_edges": edges} if edges else {}
    deleted = [node for node in nodes if node in forgotten]
    deleted_edges = [edge for edge in edges if edge in forgotten]
    if deleted_edges:
        also["deleted_edges"] = deleted_edges
    if deleted:
        raise UnknownNodes(
            f"{len(nodes)} of the nodes named are not in the model {model}; {len(deleted)} of them were deleted, by "
            "requests that the database, restored from an older backup, does not know.",
            "There is nothing left to do for those that `deleted` lists: send the request without them, and check the "
            "other ids that `unknown` lists. Nothing of this request was accepted.",
            unknown=nodes,
            deleted=deleted,
            **also,
        )
    if nodes:
        raise UnknownNodes(
            f"{len(nodes)} of the nodes named are not in the model {model}.",
            "Check the ids that `unknown` lists; nothing of this request was accepted.",
            unknown=nodes,
            **also,
        )
    if deleted_edges:
        raise UnknownEdges(
            f"{len(edges)} of the edges named are not in the graph of the model {model}; {len(deleted_edges)} of them "
            "were deleted, by requests that the database, restored from an older backup, does not know.",
            "There is nothing left to do for those that `deleted_edges` lists: send the request without them, and "
            "check the other pairs that `unknown_edges` lists. Nothing of this request was accepted.",
            **also,
        )
    if edges:
        raise UnknownEdges(
            f"{len(edges)} of the edges named are not in the graph of the model {model}.",
            "Check the pairs that `unknown_edges` lists; nothing of this request was accepted.",
            **also,
        )


def _targets(subjects: Sequence[Subject], reference: str | None) -> Targets:
    nodes = tuple(subject for subject in subjects if isinstance(subject, str))
    edges = tuple(subject for subject in subjects if not isinstance(subject, str))
    ends = dict.fromkeys(node for subject in subjects for node in _ends(subject))
    return Targets(
        nodes=nodes,
        edges=edges,
        node_salts={node: secrets.token_hex(_SALT_BYTES) for node in ends},
        reference_salt=None if reference is None else secrets.token_hex(_SALT_BYTES),
    )


def _canonical(body: DeletionBody) -> bytes:
    """One encoding for all bodies that mean the same, whatever their white space or order of members."""
    return orjson.dumps(body.model_dump(), option=orjson.OPT_SORT_KEYS)


def _replay(accepted: Accepted, earlier: Mapping[Subject, UUID]) -> Submission:
    """The answer of the first time: what this very request deleted is not `already_deleted`."""
    own = {*accepted.targets.nodes, *accepted.targets.edges} if accepted.targets is not None else set()
    already_deleted = {
        _label(subject): request_id
        for subject, request_id in earlier.items()
        if request_id != accepted.request.id and subject not in own
    }
    return Submission(accepted.request, accepted.targets, already_deleted, replayed=True)


async def _complete_at_once(services: Services, accepted: Accepted, already_deleted: Mapping[str, UUID]) -> Submission:
    """Complete a request that has nothing left to do, and forget its targets.

    `completed` promises that what it names is gone from the disk. While an earlier request that deleted it is still
    being erased, this one stays queued: the unlearner comes to it after that. So it does should Postgres fail here.
    """
    request = accepted.request
    requests = list(dict.fromkeys(already_deleted.values()))
    names = ", ".join(str(request_id) for request_id in requests)
    explanation = f"Everything this request names was deleted before, by {names}; nothing was left to do."
    try:
        async with transaction(services.engine) as connection:
            repository = RequestRepository(connection)
            if not await repository.are_completed(requests):
                return Submission(request, accepted.targets, already_deleted)
            await repository.mark_completed_without_work(
                request.id,
                already_deleted_by=requests[0],
                explanation=explanation,
                payload={"already_deleted_by": [str(request_id) for request_id in requests]},
            )
            found = await repository.get(request.id)
    except Unavailable:
        return Submission(request, accepted.targets, already_deleted)
    await asyncio.to_thread(services.request_keys.destroy, [request.id])
    return Submission(request if found is None else found[0], None, already_deleted)
