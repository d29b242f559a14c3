"""Move deletion requests from one state to the next."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Text, Uuid, bindparam, func, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from projector.forgetting.status import RepairStatus
from service.db.notifications import OUTBOX_CHANNEL
from service.db.rows import any_given, any_of, given, given_rows
from service.db.tables import RequestRow
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest
from service.domain.states import AUDITED, EventType, Guarantee, RequestStatus
from service.errors import Conflict, Unauthenticated
from service.log.events import EventRepository, LogRepository
from service.log.leaves import AlreadyDeleted, Content, Failed, HandledByDeletion
from service.requests.lookup import NOT_HELD, RequestRepository

#: Remedy for a failed request whose ids are unreadable, since no later request is known to delete the same data.
SEND_ANEW = "send a new request for the same data, then mark this one as handled. Lethe cannot match the two."


@dataclass(frozen=True)
class AppliedOutcome:
    """The outcome to record for one request when its batch is applied."""

    request_id: UUID
    guarantee: Guarantee
    repair: RepairStatus
    explanation: str
    #: Content of its `applied` event, and of the `repaired` event too if the batch's repair has converged.
    content: Content


def _apply() -> ReturningUpdate[UUID]:
    """Build the move of `RequestMoves.mark_applied`."""
    rows = given_rows("outcome", request_id=Uuid(), guarantee=Text(), repair=Text(), explanation=Text())
    return (
        update(RequestRow)
        .where(RequestRow.id == rows.c.request_id, RequestRow.batch_id == bindparam("batch"))
        .where(RequestRow.status == RequestStatus.QUEUED)
        .values(
            status=RequestStatus.APPLIED,
            applied_at=func.now(),
            guarantee=rows.c.guarantee,
            repair=rows.c.repair,
            explanation=rows.c.explanation,
        )
        .returning(RequestRow.id)
    )


#: Built once, because deletions wait for them.
_APPLY = _apply()
_TAKE = (
    update(RequestRow)
    .where(RequestRow.id == any_given("ids"), RequestRow.status == RequestStatus.QUEUED)
    .where(RequestRow.batch_id.is_(None), *NOT_HELD)
    .values(taken_at=func.now())
    .returning(RequestRow.id, func.set_config("synchronous_commit", "off", True))
)


def permitted(answer: bool | None) -> bool:
    """Return the answer of a database function that acts for an API key; raises `Unauthenticated` if it may not."""
    if answer is None:
        raise Unauthenticated("This API key was revoked or lacks a scope.", "Use another key.")
    return answer


class RequestMoves:
    """Moves of requests in the caller's transaction.

    Each `mark_*` writes the move's event. Repeating a committed move changes and writes nothing, so that recovery at
    startup may repeat it. A move that `TRANSITIONS` forbids raises `Conflict`. If others may end the requests at the
    same time, the move takes its turn at the log before it locks the request.
    """

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def take(self, ids: Collection[UUID]) -> set[UUID]:
        """Protect those of `ids` that are still queued and not held from cancellation and holds, and return them.

        A crash of Postgres may undo this, without harm: they are claimed again.
        """
        return await self._moved(_TAKE, {"ids": list(ids)})

    async def mark_applied(self, batch_id: UUID, outcomes: Sequence[AppliedOutcome]) -> list[UUID]:
        """Move requests of a batch to `applied`; returns those that moved now.

        Raises `Conflict` if one is neither queued in this batch nor past it.
        """
        rows = given(
            "outcome",
            request_id=[outcome.request_id for outcome in outcomes],
            guarantee=[outcome.guarantee.value for outcome in outcomes],
            repair=[outcome.repair.value for outcome in outcomes],
            explanation=[outcome.explanation for outcome in outcomes],
        )
        moved = await self._moved(_APPLY, {"batch": batch_id, **rows})
        others = {outcome.request_id for outcome in outcomes} - moved
        await self._require(others, RequestStatus.APPLIED, AUDITED, batch_id)
        new = [one for one in outcomes if one.request_id in moved]
        repaired = [one for one in new if one.repair is RepairStatus.CONVERGED]
        await EventRepository(self._conn).append(
            [
                *((EventType.APPLIED, one.request_id, one.content) for one in new),
                *((EventType.REPAIRED, one.request_id, one.content) for one in repaired),
            ]
        )
        return [one.request_id for one in new]

    async def mark_completed(self, contents: Mapping[UUID, Content]) -> list[UUID]:
        """Move applied requests to `completed` and drop their ciphertexts; returns those that moved now.

        The caller destroys their keys after the commit. Raises `Conflict` if one is neither applied nor completed.
        """
        moved = await self._moved(
            update(RequestRow)
            .where(RequestRow.id == any_of(contents), RequestRow.status == RequestStatus.APPLIED)
            .values(status=RequestStatus.COMPLETED, completed_at=func.now(), ciphertext=null())
            .returning(RequestRow.id)
        )
        await self._require(contents.keys() - moved, RequestStatus.COMPLETED, (RequestStatus.COMPLETED,))
        return await self._record(EventType.COMPLETED, contents, moved)

    async def mark_completed_without_work(self, request_id: UUID, content: AlreadyDeleted, explanation: str) -> bool:
        """Complete a queued request whose targets are all deleted already; False if it was completed before.

        The caller destroys its key after the commit. Raises `Conflict` if it is in a batch, failed or cancelled.
        """
        await LogRepository(self._conn).take_turn()
        moved = await self._moved(
            update(RequestRow)
            .where(RequestRow.id == request_id, RequestRow.batch_id.is_(None), *NOT_HELD)
            .where(RequestRow.status == RequestStatus.QUEUED)
            .values(
                status=RequestStatus.COMPLETED,
                completed_at=func.now(),
                ciphertext=null(),
                already_deleted_by=content.by[0] if content.by else None,
                explanation=explanation,
            )
            .returning(RequestRow.id)
        )
        await self._require({request_id} - moved, RequestStatus.COMPLETED, (RequestStatus.COMPLETED,))
        return bool(await self._record(EventType.COMPLETED, {request_id: content}, moved))

    async def mark_failed(self, request_id: UUID, failure: str, *, even_held: bool = False) -> bool:
        """Fail a queued request because of its own data, with the reason; False if it had failed before.

        Its ciphertext stays for a retry. Raises `Conflict` if it is in a batch or finished, or, unless `even_held`, if
        it is held or waits behind one that is.
        """
        await LogRepository(self._conn).take_turn()
        moved = await self._moved(
            update(RequestRow)
            .where(RequestRow.id == request_id, RequestRow.batch_id.is_(None), *(() if even_held else NOT_HELD))
            .where(RequestRow.status == RequestStatus.QUEUED)
            .values(status=RequestStatus.FAILED, failed_at=func.now(), failure=failure)
            .returning(RequestRow.id)
        )
        await self._require({request_id} - moved, RequestStatus.FAILED, (RequestStatus.FAILED,))
        return bool(await self._record(EventType.FAILED, {request_id: Failed()}, moved))

    async def mark_handled(self, request_id: UUID, by: tuple[UUID, ...]) -> bool:
        """Settle a failed request whose targets the requests `by`, latest end first, have deleted.

        False if it was settled or retried meanwhile. The caller destroys its key after the commit.
        """
        await LogRepository(self._conn).take_turn()
        moved = await self._moved(
            update(RequestRow)
            .where(RequestRow.id == request_id, RequestRow.status == RequestStatus.FAILED)
            .where(RequestRow.handled_at.is_(None))
            .values(handled_at=func.now(), handled_by=by[0] if by else None, ciphertext=null())
            .returning(RequestRow.id)
        )
        return bool(await self._record(EventType.HANDLED, {request_id: HandledByDeletion(by)}, moved))

    async def cancel(
        self, request_id: UUID, api_key_id: UUID, *, own_only: bool = False, kind: RequestKind | None = None
    ) -> DeletionRequest:
        """Cancel a queued request that nobody has taken; use `Intake.cancel`, which also destroys its key.

        `own_only` is for an API key that sees only its own requests. Raises `NotFound` if the request is unknown,
        hidden from the key or not of this `kind`, `Conflict` if it is too late, and `Unauthenticated` if the key may
        not cancel.
        """
        await RequestRepository(self._conn).require(request_id, api_key_id if own_only else None, kind)
        cancelled = permitted(await self._conn.scalar(select(func.request_cancel(request_id, api_key_id))))
        found, _ = await RequestRepository(self._conn).require(request_id, api_key_id if own_only else None)
        if cancelled:
            return found
        if found.status is RequestStatus.QUEUED:
            raise Conflict(
                f"Request {request_id} is being applied.", "It can no longer be cancelled; wait for it to complete."
            )
        raise Conflict(f"Request {request_id} is {found.status}.", "Only a queued request can be cancelled.")

    async def retry(self, request_id: UUID, api_key_id: UUID) -> DeletionRequest:
        """Queue a failed request again, as if just accepted; use `Intake.retry`, which checks for its key.

        Raises `NotFound` if it is unknown, `Conflict` if it has not failed, `Unauthenticated` if the key may not retry.
        """
        queued = permitted(await self._conn.scalar(select(func.request_retry(request_id, api_key_id))))
        found, _ = await RequestRepository(self._conn).require(request_id)
        if not queued and found.status is RequestStatus.FAILED:
            raise Conflict(
                f"The ids that request {request_id} names are no longer kept: it was handled, or failed too long ago.",
                f"If it is still open: {SEND_ANEW}",
            )
        if not queued:
            raise Conflict(f"Request {request_id} is {found.status}.", "Only a failed request can be retried.")
        await self._conn.execute(select(func.pg_notify(OUTBOX_CHANNEL, "")))
        return found

    async def _moved(self, move: ReturningUpdate[Any], values: Mapping[str, Any] | None = None) -> set[UUID]:
        return set((await self._conn.execute(move, values)).scalars())

    async def _require(
        self,
        ids: Collection[UUID],
        target: RequestStatus,
        allowed: tuple[RequestStatus, ...],
        batch_id: UUID | None = None,
    ) -> None:
        """Raise `Conflict` unless each of `ids` has an allowed status and, if given, the batch."""
        if not ids:
            return
        query = select(RequestRow.id, RequestRow.status, RequestRow.batch_id).where(RequestRow.id == any_of(ids))
        found = {row.id: row for row in await self._conn.execute(query)}
        for request_id in ids:
            row = found.get(request_id)
            if row is None:
                raise Conflict(f"Unknown request {request_id}.", "Database and caller disagree; restart Lethe.")
            if row.status not in allowed or (batch_id is not None and row.batch_id != batch_id):
                raise Conflict(
                    f"Request {request_id} is {row.status} (batch {row.batch_id}) and cannot become {target}.",
                    "Read its state again.",
                )

    async def _record(
        self, event_type: EventType, contents: Mapping[UUID, Content], moved: Collection[UUID]
    ) -> list[UUID]:
        """Append an event for each moved request, in the order of `contents`, and return them in that order."""
        new = {request_id: content for request_id, content in contents.items() if request_id in moved}
        await EventRepository(self._conn).append_many(event_type, new)
        return list(new)
