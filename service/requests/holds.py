"""Requests on hold, and those that wait behind them: what is queued for the same nodes or edges."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Uuid, bindparam, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.rows import QUEUED_COLUMNS, any_of, queued_request, unnested
from service.db.tables import RequestRow
from service.domain.kinds import Target, ends_of
from service.domain.records import QueuedRequest, Targets
from service.domain.states import RequestStatus


@dataclass(frozen=True)
class Waiting:
    """A queued request, and the held one that it waits for: itself if it is held, None if it does not wait."""

    request: QueuedRequest
    targets: Targets
    held: UUID | None = None

    @property
    def order(self) -> tuple[datetime, UUID]:
        """Place in the order of arrival."""
        return self.request.received_at, self.request.id


class Behind(NamedTuple):
    """What a request waits for."""

    #: The held request.
    held: UUID
    #: The request that names the same: the held one, or one that waits for it.
    by: UUID


def behind(claimed: Iterable[Waiting], obstacles: Iterable[Waiting]) -> dict[UUID, Behind]:
    """Return which of `claimed` wait for a held one among `obstacles`, and behind which request.

    A request waits if it names a node or an edge that the held one names, an edge at such a node, or an end of an edge
    that the held one deletes. It also waits if it arrived after one that waits and names the same in this sense: the
    order of changes to a node is that of arrival.
    """
    by_target: dict[Target, list[Waiting]] = {}
    by_end: dict[str, list[Waiting]] = {}

    def stand(each: Waiting) -> None:
        for target in each.targets.named:
            by_target.setdefault(target, []).append(each)
            # An edge that is still to join protects neither end.
            if not isinstance(target, str) and not each.request.kind.rules.joins:
                for end in target:
                    by_end.setdefault(end, []).append(each)

    for each in obstacles:
        stand(each)
    found: dict[UUID, Behind] = {}
    for each in sorted(claimed, key=lambda one: one.order):
        for target in each.targets.named:
            near = [by_target.get(one, ()) for one in (target, *ends_of(target))]
            near += [by_end.get(target, ())] if isinstance(target, str) else []
            ahead = (one for those in near for one in those if one.held == one.request.id or one.order < each.order)
            if (first := next(ahead, None)) is not None and first.held is not None:
                found[each.request.id] = Behind(first.held, first.request.id)
                stand(replace(each, held=first.held))
                break
    return found


#: A request that is held or waits.
_STANDS = or_(RequestRow.held_at.is_not(None), RequestRow.waits_for.is_not(None))
#: Built once, because deletions wait for it.
_OBSTACLES = select(*QUEUED_COLUMNS, RequestRow.waits_for).where(RequestRow.model == bindparam("of"), _STANDS)


class Holds:
    """The columns `held_at` and `waits_for` of requests, in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def obstacles(self, model: str) -> list[tuple[QueuedRequest, UUID]]:
        """Return the requests of a model that are held or wait, each with the held one."""
        found = (await self._conn.execute(_OBSTACLES, {"of": model})).all()
        return [(queued_request(row), row.waits_for or row.id) for row in found]

    async def wait(self, waits: Mapping[UUID, Behind]) -> set[UUID]:
        """Let taken requests wait, given in order of arrival; return those that do, until a trigger frees them.

        None waits for a request that was released or cancelled meanwhile. Locks first what is held, as a release does.
        """
        held = await self._locked({each.held for each in waits.values()}, RequestRow.held_at.is_not(None))
        by = await self._locked({each.by for each in waits.values()} - held - waits.keys(), _STANDS)
        left: dict[UUID, UUID] = {}
        # One that does not wait keeps no later one waiting.
        for one, each in waits.items():
            if each.held in held and (each.by in held or each.by in by or each.by in left):
                left[one] = each.held
        rows = unnested("wait", id=(Uuid(), list(left)), held=(Uuid(), list(left.values())))
        waiting = (
            update(RequestRow)
            .where(RequestRow.id == rows.c.id, RequestRow.status == RequestStatus.QUEUED)
            .where(RequestRow.batch_id.is_(None), RequestRow.held_at.is_(None))
            .values(waits_for=rows.c.held)
        )
        return set((await self._conn.execute(waiting.returning(RequestRow.id))).scalars())

    async def _locked(self, ids: Collection[UUID], condition: ColumnElement[bool]) -> set[UUID]:
        """Keep those of `ids` that meet `condition` from changing, and return them."""
        query = select(RequestRow.id).where(RequestRow.id == any_of(ids), condition).order_by(RequestRow.id)
        return set((await self._conn.execute(query.with_for_update(read=True))).scalars())
