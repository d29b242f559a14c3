"""Turn the body of a request into an accepted request or a recorded refusal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar
from uuid import UUID

import orjson
from sqlalchemy import BigInteger, ForeignKey, Identity, func, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from service.access.key_memory import require_kind
from service.access.keyring import Keyring
from service.access.limits import PROBES
from service.db.tables import Base
from service.db.transactions import transaction
from service.domain.kinds import RequestKind, Target, ends_of, ordered
from service.domain.records import ApiKey, DeletionRequest, NodeContent, Targets
from service.domain.scopes import Scope
from service.domain.states import RequestStatus
from service.errors import (
    MOST_FAULTS,
    BodyTooLarge,
    InvalidRequest,
    QueueFull,
    Unavailable,
    UnknownEdges,
    UnknownNodes,
)
from service.log.commitments import GivenSalts, nodes_of, salted
from service.predictions.facts import ModelFacts
from service.requests.callers import SaltUsed
from service.requests.deletable import (
    Deletions,
    NeedsRepair,
    NoEdges,
    PublicNodes,
    UnknownTargets,
    deleted_earlier,
    require_deletable,
)
from service.requests.intake import Accepted, NewRequest
from service.requests.joinable import (
    DeletedNodes,
    KnownEdges,
    KnownNodes,
    require_fitting,
    require_joinable,
    require_weights,
)
from service.requests.schemas import RequestBody


class RefusedRequestRow(Base):
    """One refusal; the view `audit_refusals` shows it with the key's name."""

    __tablename__ = "refused_requests"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    model: Mapped[str]
    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"))
    kind: Mapped[str]
    #: Number of nodes or edges that it named.
    named: Mapped[int]
    #: Slug of the problem in the answer.
    reason: Mapped[str]
    refused_at: Mapped[datetime] = mapped_column(server_default=func.now())


@dataclass(frozen=True)
class Refusal:
    """A refusal to record."""

    model: str
    api_key_id: UUID
    kind: RequestKind
    named: int
    #: Slug of the problem in the answer.
    reason: str


async def record(conn: AsyncConnection, refusal: Refusal) -> None:
    """Record a refusal in the caller's transaction."""
    await conn.execute(
        insert(RefusedRequestRow).values(
            model=refusal.model,
            api_key_id=refusal.api_key_id,
            kind=refusal.kind.value,
            named=refusal.named,
            reason=refusal.reason,
        )
    )


class DuplicateTargets(InvalidRequest):
    """A list names a node or edge more than once; `extra["duplicates"]` lists the first of them."""

    slug: ClassVar[str] = "duplicate-targets"
    title: ClassVar[str] = "Duplicates in the list"


class SelfLoops(InvalidRequest):
    """An edge joins a node to itself; `extra["self_loops"]` lists the first of the nodes."""

    slug: ClassVar[str] = "self-loops"
    title: ClassVar[str] = "Edges from a node to itself"


class UnfitSalts(InvalidRequest):
    """The salts do not match the named nodes and the reference one to one; `extra` lists the first of the nodes."""

    slug: ClassVar[str] = "unfit-salts"
    title: ClassVar[str] = "Salts do not fit"


@dataclass(frozen=True)
class Submission:
    """The result of a body: the request, its targets unless erased, and its already deleted targets."""

    request: DeletionRequest
    #: None once the request is finished and its salts are erased.
    targets: Targets | None
    #: Node id, or `a|b` for an edge -> the earlier request that deleted it.
    already_deleted: Mapping[str, UUID | None]
    #: Whether the request is an earlier one with the same idempotency key.
    replayed: bool = False


async def submit(
    deletions: Deletions,
    body: RequestBody,
    caller: ApiKey,
    idempotency_key: str | None,
) -> Submission:
    """Accept `body` for `caller`.

    For a key with deletions:read, already deleted targets of a deletion are left out. If none is left, all are accepted
    like those of any other key: only the unlearner marks a request as done, and when it reaches this one, the targets
    are gone from the disk. Other keys do not learn what is already deleted, nor whether what they add or correct is in
    the graph: the unlearner finds out.

    Raises:
        KindNotAllowed: the key may not make requests of this kind.
        BodyTooLarge, DuplicateTargets, SelfLoops, UnfitSalts, UnfitFeatures, UnfitLabels, UnfitWeights: the body is
            invalid.
        SaltUsed: a salt was used before; nothing is accepted.
        UnknownNodes, UnknownEdges: a target is not in the model; nothing is accepted.
        PublicNodes: a target is never deleted; nothing is accepted.
        NoEdges: the model has no edges; nothing is accepted.
        NeedsRepair: nothing would unlearn the labels; nothing is accepted.
        UnknownTargets: replaces UnknownNodes, UnknownEdges and PublicNodes for a key without deletions:read.
        KnownNodes, KnownEdges, DeletedNodes: something cannot join; nothing is accepted.
        Conflict: the idempotency key was used with another body.
        TooManyAttempts: too many requests of a key without deletions:read were refused recently.
        QueueFull, Unavailable: it cannot be accepted now; nothing is accepted.
    """
    kind = body.asked
    require_kind(caller, kind)
    subjects = body.named
    content, weights = body.content, body.weights
    _check(deletions, subjects)
    if kind is RequestKind.LABEL and not deletions.repairs:
        raise NeedsRepair(deletions.model)
    given = None if body.salts is None else GivenSalts(body.salts.nodes, body.salts.reference)
    if given is not None:
        _check_salts(subjects, body.reference, given)
    may_know = Scope.DELETIONS_READ in caller.scopes
    digest = None if idempotency_key is None else deletions.keyring.body_digest(_canonical(body))
    if idempotency_key is not None and digest is not None:
        # Before the checks: its targets may be gone by now, through this or another request.
        first = await deletions.intake.find(caller.id, idempotency_key, digest)
        if first is not None:
            return await _replay(deletions, first, kind, subjects, may_know=may_know)
    earlier: Mapping[Target, UUID | None] = {}
    joining: set[str] = set()
    try:
        _require_edges(deletions, subjects)
        if kind.rules.joins:
            _require_fitting(deletions, content, weights)
            if may_know:
                await require_joinable(deletions, kind, subjects, content)
        elif may_know:
            earlier, joining = await deleted_earlier(deletions, kind, subjects)
        else:
            async with deletions.limits.attempt(PROBES, str(caller.id), UnknownTargets):
                joining = await require_deletable(deletions, kind, subjects)
        rest = [subject for subject in subjects if subject not in earlier]
        targets = salted(rest or subjects, body.reference, deletions.keyring.new_salt, given)
        edge_weight = tuple(weights.get(ordered(edge), 1.0) for edge in targets.edges) if weights else ()
        accepted = await deletions.intake.accept(
            NewRequest(
                model=deletions.model,
                kind=kind,
                targets=replace(targets, content=content, edge_weight=edge_weight),
                reference=body.reference,
                api_key_id=caller.id,
                idempotency_key=idempotency_key,
                body_digest=digest,
                salt_hashes=frozenset() if given is None else _hashes(deletions.keyring, targets),
                joining=joining if kind is RequestKind.NODE else (),
            )
        )
    except _RECORDED as refusal:
        await _record(deletions, Refusal(deletions.model, caller.id, kind, len(subjects), refusal.slug))
        raise
    except (SaltUsed, QueueFull) as refusal:
        # Only existing targets of deletions get this far. A used salt would reveal them at no risk, so it counts as an
        # attempt.
        if not may_know and not kind.rules.joins:
            await deletions.limits.failed(PROBES, str(caller.id))
            await _record(deletions, Refusal(deletions.model, caller.id, kind, len(subjects), refusal.slug))
        raise
    if accepted.replayed:
        # The same request was sent twice at the same moment.
        return await _replay(deletions, accepted, kind, subjects, may_know=may_know)
    already_deleted = {_label(subject): earlier[subject] for subject in subjects if subject in earlier}
    return Submission(accepted.request, accepted.targets, already_deleted)


#: Refusals for what a request names.
_RECORDED = (UnknownNodes, UnknownEdges, NoEdges, PublicNodes, UnknownTargets, KnownNodes, KnownEdges, DeletedNodes)


def _require_edges(deletions: Deletions, subjects: Sequence[Target]) -> None:
    """Raise NoEdges if one of `subjects` is an edge and the model has none."""
    model = _model(deletions)
    if model is not None and not model.hops and not all(isinstance(subject, str) for subject in subjects):
        raise NoEdges(deletions.model)


def _require_fitting(
    deletions: Deletions, content: Mapping[str, NodeContent], weights: Mapping[tuple[str, str], float]
) -> None:
    """Raise UnfitFeatures, UnfitLabels or UnfitWeights."""
    model = _model(deletions)
    if model is not None:
        require_fitting(content, model)
        require_weights(weights, model)


def _model(deletions: Deletions) -> ModelFacts | None:
    """Return the facts of the model; None if no version can be read, and then the unlearner checks later."""
    try:
        return deletions.reader.facts.model
    except Unavailable:
        return None


async def _record(deletions: Deletions, refusal: Refusal) -> None:
    """Record and count a refusal before it is answered. Raises Unavailable."""
    async with transaction(deletions.engine) as connection:
        await record(connection, refusal)
    deletions.metrics.refused(refusal.kind)


def _label(subject: Target) -> str:
    return "|".join(ends_of(subject))


def _check(deletions: Deletions, subjects: Sequence[Target]) -> None:
    limit = deletions.most_targets
    if len(subjects) > limit:
        raise BodyTooLarge(
            f"{len(subjects)} targets exceed the limit of {limit} per request.",
            "Split the list into several requests.",
            max_nodes=limit,
        )
    edges = [subject for subject in subjects if not isinstance(subject, str)]
    loops = list(dict.fromkeys(first for first, second in edges if first == second))
    if loops:
        raise SelfLoops(
            f"{len(loops)} of the edges join a node to itself; graphs have no self loops here.",
            f"Remove these edges; `self_loops` lists the first {MOST_FAULTS} of their nodes. Nothing was accepted.",
            self_loops=loops[:MOST_FAULTS],
        )
    duplicates = [subject for subject, times in Counter(subjects).items() if times > 1]
    if duplicates:
        raise DuplicateTargets(
            f"{len(duplicates)} of the targets occur more than once.",
            f"Give each once; `duplicates` lists the first {MOST_FAULTS} duplicates.",
            duplicates=duplicates[:MOST_FAULTS],
        )


def _check_salts(subjects: Sequence[Target], reference: str | None, given: GivenSalts) -> None:
    """Raise UnfitSalts unless each node and the reference has its own salt."""
    named = set(nodes_of(subjects))
    missing, unknown = sorted(named - given.nodes.keys()), sorted(given.nodes.keys() - named)
    if missing or unknown:
        raise UnfitSalts(
            f"{len(missing)} of the nodes have no salt, and {len(unknown)} salts belong to other nodes.",
            f"Give one for each; `without_salt` and `not_named` list the first {MOST_FAULTS}.",
            without_salt=missing[:MOST_FAULTS],
            not_named=unknown[:MOST_FAULTS],
        )
    if (reference is None) != (given.reference is None):
        raise UnfitSalts("A reference and its salt must be given together.", "Give both, or neither.")
    if len(set(given)) < len(list(given)):
        raise UnfitSalts("Two of the salts are the same.", "Draw each salt independently.")


def _hashes(keyring: Keyring, targets: Targets) -> frozenset[bytes]:
    """Return the hashes that identify the caller's salts. Raises SaltUsed for a salt that Lethe itself issued."""
    used = list(GivenSalts(targets.node_salts or {}, targets.reference_salt))
    if any(map(keyring.has_made, used)):
        raise SaltUsed
    return frozenset(map(keyring.salt_hash, used))


def _canonical(body: RequestBody) -> bytes:
    """Encode equal bodies equally, whatever their white space or order of members."""
    return orjson.dumps({"kind": body.asked.value, **body.model_dump()}, option=orjson.OPT_SORT_KEYS)


async def _replay(
    deletions: Deletions, accepted: Accepted, kind: RequestKind, subjects: Sequence[Target], *, may_know: bool
) -> Submission:
    """Repeat the first answer; targets that this very request deleted are not `already_deleted`.

    Only a key with deletions:read learns the request's later state and other deletions.
    """
    if not may_know:
        asked = replace(accepted.request, status=RequestStatus.QUEUED)
        # Salts last longer if the request fails, which would reveal that what it adds is in the graph.
        targets = None if kind.rules.joins and accepted.is_taken else accepted.targets
        return Submission(asked, targets, {}, replayed=True)
    earlier = {} if kind.rules.joins else (await deleted_earlier(deletions, kind, subjects))[0]
    own = {*accepted.targets.nodes, *accepted.targets.edges} if accepted.targets is not None else set()
    already_deleted = {
        _label(subject): request_id
        for subject, request_id in earlier.items()
        if request_id != accepted.request.id and subject not in own
    }
    return Submission(accepted.request, accepted.targets, already_deleted, replayed=True)
