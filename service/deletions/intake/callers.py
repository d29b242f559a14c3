"""The callers of the intake: what each asks for, and telling it what became of that."""

import asyncio
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from service.deletions.intake.refusals import reused_key
from service.deletions.intake.statements import IdempotencyKey, Received
from service.domain.drills import NewDrill
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, Targets
from service.domain.states import RequestStatus
from service.errors import Conflict


@dataclass(frozen=True)
class NewRequest:
    """What a caller asks for; `targets` carry the salts."""

    model: str
    kind: RequestKind
    targets: Targets
    reference: str | None
    api_key_id: UUID
    idempotency_key: str | None = None
    #: `Keyring.body_digest` of the body, exactly when there is an idempotency key.
    body_digest: bytes | None = None
    #: What is recorded beside the request when it is a drill.
    drill: NewDrill | None = None
    #: `Keyring.salt_hash` of each salt that the caller gave.
    salt_hashes: frozenset[bytes] = frozenset()


@dataclass(frozen=True)
class Accepted:
    """A request that is in the database."""

    request: DeletionRequest
    #: What it names, with its salts; None for an earlier request that has been forgotten since.
    targets: Targets | None
    #: Whether an earlier request with the same idempotency key and body answered.
    replayed: bool


@dataclass(eq=False)
class PendingCall:
    """One call of `accept`, with the id its request gets if it is new."""

    new: NewRequest
    id: UUID
    answer: asyncio.Future[Accepted]

    @property
    def key(self) -> IdempotencyKey | None:
        """Under what it is stored, so that its repetition is recognised."""
        if self.new.idempotency_key is None:
            return None
        return IdempotencyKey(self.new.api_key_id, self.new.idempotency_key)


def request_of(waiting: PendingCall, received: Received) -> DeletionRequest:
    """Return the request as it was stored."""
    new = waiting.new
    return DeletionRequest(
        id=waiting.id,
        model=new.model,
        kind=new.kind,
        status=RequestStatus.QUEUED,
        count=new.targets.count,
        reference=new.reference,
        api_key_id=new.api_key_id,
        received_at=received.at,
        due_at=received.due_at,
    )


def answer(waiting: PendingCall, accepted: Accepted) -> None:
    """Answer a caller, if it still waits."""
    # A caller that has gone away has cancelled its future.
    if not waiting.answer.done():
        waiting.answer.set_result(accepted)


def repeat(waiting: PendingCall, first_digest: bytes | None, accepted: Accepted) -> None:
    """Answer a repeated idempotency key, if the body is the one it came with first."""
    try:
        check_body(accepted.request.id, first_digest, waiting.new.body_digest)
    except Conflict as error:
        refuse([waiting], error)
    else:
        answer(waiting, accepted)


def check_body(first: UUID, first_digest: bytes | None, digest: bytes | None) -> None:
    """Raise `Conflict` when an idempotency key came with another body before."""
    if not hmac.compare_digest(first_digest or b"", digest or b""):
        raise reused_key(first)


def refuse(group: Iterable[PendingCall], error: Exception) -> None:
    """Raise `error` for those of `group` that still wait."""
    for waiting in group:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
