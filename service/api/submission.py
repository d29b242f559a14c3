"""From the body of `POST /deletions` to an accepted request: what is known, what is gone already, what is left."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

import orjson

from service.api.deletion_schemas import DeletionBody, EdgeDeletion
from service.api.services import Services, Subject
from service.db.intake import Accepted, NewRequest
from service.db.requests import RequestRepository
from service.db.transactions import transaction
from service.domain.records import ApiKey, DeletionRequest, Targets
from service.domain.states import RequestKind
from service.errors import BodyTooLarge, InvalidRequest, Unavailable, UnknownNodes

#: Bytes of randomness in a salt.
_SALT_BYTES = 16


class DuplicateTargets(InvalidRequest):
    """A list names a node or edge more than once; `extra["duplicates"]` lists them."""

    slug: ClassVar[str] = "duplicate-targets"
    title: ClassVar[str] = "Duplicates in the list"


class UnsupportedKind(InvalidRequest):
    """The served model cannot forget this kind of thing."""

    slug: ClassVar[str] = "unsupported-kind"
    title: ClassVar[str] = "Kind of deletion not supported"


@dataclass(frozen=True)
class Submission:
    """What became of a body: the request, its targets while they are not forgotten, and what was gone already."""

    request: DeletionRequest
    #: None once the request is finished and its salts are erased.
    targets: Targets | None
    #: Node id, or `a|b` for an edge -> the earlier request that deleted it.
    already_deleted: Mapping[str, UUID]


async def submit(services: Services, body: DeletionBody, caller: ApiKey, idempotency_key: str | None) -> Submission:
    """Accept `body` for `caller`.

    Targets that an earlier request deleted are left out; when none is left, the request completes at once.

    Raises:
        UnsupportedKind, BodyTooLarge, DuplicateTargets: the body cannot be taken.
        UnknownNodes: it names ids of no node; nothing is accepted.
        Conflict: the idempotency key was used with another body.
        QueueFull, Unavailable: it cannot be taken now; nothing is accepted.
    """
    kind = RequestKind(body.kind)
    subjects = _subjects(body)
    _check(services, kind, subjects)
    earlier = await _deleted_earlier(services, kind, subjects)
    rest = [subject for subject in subjects if subject not in earlier]
    accepted = await services.intake.accept(
        NewRequest(
            model=services.model,
            kind=kind,
            targets=_targets(rest or subjects, body.reference),
            reference=body.reference,
            api_key_id=caller.id,
            idempotency_key=idempotency_key,
            body_digest=None if idempotency_key is None else services.keyring.body_digest(_canonical(body)),
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


def _check(services: Services, kind: RequestKind, subjects: Sequence[Subject]) -> None:
    if kind not in services.supported_kinds:
        supported = ", ".join(sorted(services.supported_kinds))
        raise UnsupportedKind(
            f"The model {services.model} cannot forget by kind `{kind.value}`.",
            f"Use one of the kinds: {supported}.",
            supported=sorted(services.supported_kinds),
        )
    limit = services.settings.max_nodes_per_request
    if len(subjects) > limit:
        raise BodyTooLarge(
            f"{len(subjects)} targets are more than the {limit} that one request may name.",
            "Split the list into several requests.",
            max_nodes=limit,
        )
    duplicates = [subject for subject, times in Counter(subjects).items() if times > 1]
    if duplicates:
        raise DuplicateTargets(
            f"{len(duplicates)} of the targets occur more than once.",
            "Name each once; `duplicates` lists those that occur more often.",
            duplicates=duplicates,
        )


async def _deleted_earlier(services: Services, kind: RequestKind, subjects: Sequence[Subject]) -> dict[Subject, UUID]:
    """The subjects that are gone already, with the request that deleted each. Raises UnknownNodes."""
    ends = dict.fromkeys(node for subject in subjects for node in _ends(subject))
    missing = [node for node in ends if not services.reader.knows(node)]
    deleted = await services.tombstones.deleted_nodes(missing)
    unknown = [node for node in missing if node not in deleted]
    if unknown:
        raise UnknownNodes(
            f"{len(unknown)} of the nodes named are not in the model {services.model}.",
            "Check the ids that `unknown` lists; nothing of this request was accepted.",
            unknown=unknown,
        )
    earlier: dict[Subject, UUID] = {}
    if kind is not RequestKind.NODE:
        earlier = await services.tombstones.find(kind, subjects)
    for subject in subjects:
        for node in _ends(subject):
            if node in deleted:
                earlier.setdefault(subject, deleted[node])
    return earlier


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
    return Submission(accepted.request, accepted.targets, already_deleted)


async def _complete_at_once(services: Services, accepted: Accepted, already_deleted: Mapping[str, UUID]) -> Submission:
    """Complete a request that has nothing left to do, and forget its targets.

    Should Postgres fail here, the request stays accepted and the unlearner completes it.
    """
    request = accepted.request
    requests = list(dict.fromkeys(already_deleted.values()))
    names = ", ".join(str(request_id) for request_id in requests)
    explanation = f"Everything this request names was deleted before, by {names}; nothing was left to do."
    try:
        async with transaction(services.engine) as connection:
            repository = RequestRepository(connection)
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
