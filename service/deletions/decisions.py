"""What people decide of a request: that one which failed is handled, or that one is due later.

A decision holds at once, and is an event of the log as soon as an unlearner has written it there (`follow_up`).
"""

import re
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.tables import DecisionRow
from service.deletions.moves import permitted
from service.deletions.requests import RequestRepository
from service.domain.records import DeletionRequest
from service.domain.states import EventType, RequestStatus
from service.errors import Conflict, InvalidRequest
from service.evidence.contents import Decided
from service.evidence.events import EventRepository
from service.evidence.log import LogRepository

#: Notified by every transaction that adds a decision.
DECISIONS_CHANNEL = "lethe_decisions"
#: Decisions written into the log in one transaction.
_PAGE = 100


class Decisions:
    """The table `decisions` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def handle(self, request_id: UUID, api_key_id: UUID, reason: str) -> DeletionRequest:
        """Settle a failed request for `reason`; what it names is then forgotten.

        Raises `NotFound`, `Conflict` unless it has failed and is not handled, `InvalidRequest` for a reason that the
        log must not contain, and `Unauthenticated` for a key without the right.
        """
        await self._require(request_id, reason)
        is_handled = permitted(await self._conn.scalar(select(func.request_handle(request_id, api_key_id, reason))))
        found = await self._require(request_id, reason)
        if is_handled:
            return found
        if found.status is RequestStatus.FAILED:
            raise Conflict(f"Request {request_id} is already handled.", "Nothing to do.")
        raise Conflict(f"Request {request_id} is {found.status}.", "Only a failed request can be handled.")

    async def extend(self, request_id: UUID, api_key_id: UUID, due_at: datetime, reason: str) -> DeletionRequest:
        """Give an open request until `due_at`, for `reason`. Raises as `handle`; `Conflict` too when it is late."""
        await self._require(request_id, reason)
        extending = select(func.request_extend(request_id, api_key_id, due_at, reason))
        is_extended = permitted(await self._conn.scalar(extending))
        found = await self._require(request_id, reason)
        if is_extended:
            return found
        if found.ended_at is not None:
            raise Conflict(f"Request {request_id} has ended.", "Only an open request can be extended.")
        if found.late:
            raise Conflict(f"Request {request_id} is past its deadline.", "Extend a request before its deadline.")
        raise Conflict(
            f"Request {request_id} is already due at {found.due_at:%Y-%m-%d %H:%M} UTC.", "Give a later time."
        )

    async def log(self) -> int:
        """Write decisions into the log that are not there yet, the oldest first; returns how many."""
        waiting = select(DecisionRow.__table__).where(DecisionRow.event_id.is_(None))
        waiting = waiting.order_by(DecisionRow.id).limit(_PAGE)
        if not (await self._conn.execute(waiting)).all():
            return 0
        # Others may write them too: asked for again once they are kept out.
        await LogRepository(self._conn).take_turn()
        rows = (await self._conn.execute(waiting)).all()
        for row in rows:
            content = Decided(row.reason, row.api_key_id, row.decided_at, row.due_at)
            [event] = await EventRepository(self._conn).append_many(EventType(row.type), {row.request_id: content})
            logged = update(DecisionRow).where(DecisionRow.id == row.id).values(event_id=event)
            await self._conn.execute(logged)
        return len(rows)

    async def _require(self, request_id: UUID, reason: str) -> DeletionRequest:
        request, _ = await RequestRepository(self._conn).require(request_id)
        reference = re.escape(request.reference or "")
        if reference and re.search(rf"(?<!\w){reference}(?!\w)", reason, re.IGNORECASE):
            raise InvalidRequest(
                "The reason contains the request's reference.",
                "The log keeps reasons forever: do not name a person.",
            )
        return request
