"""Requests that failed: settled once later ones have deleted what they name, and forgotten after a time."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, literal, null, select, update

from service.db.arrays import any_of
from service.db.engine import Engine
from service.db.rows import QUEUED_COLUMNS, queued_request
from service.db.tables import RequestRow
from service.db.transactions import transaction
from service.deletions.moves import RequestMoves
from service.domain.kinds import Part, Target, ends_of
from service.domain.records import QueuedRequest
from service.domain.states import RequestStatus
from service.tombstones.lookup import TombstoneLookup
from service.vault.decrypt import decrypt_targets
from service.vault.request_keys import RequestKeys

#: Requests read at a time.
_PAGE = 100


class FailedRequests:
    """Those of one model that are not handled; what it does bears to be repeated, also by two at a time."""

    def __init__(self, engine: Engine, model: str, request_keys: RequestKeys, tombstones: TombstoneLookup) -> None:
        self._engine = engine
        self._model = model
        self._keys = request_keys
        self._tombstones = tombstones
        #: When a request last ended or failed, as of the last look through all: nothing is new until another does.
        self._seen: tuple[datetime | None, ...] | None = None

    async def settle(self) -> int:
        """Settle those that name nothing any more that is not deleted; returns how many. Raises `Unavailable`."""
        async with transaction(self._engine) as connection:
            of_model = RequestRow.model == self._model
            ended = select(func.max(RequestRow.completed_at)).where(of_model).scalar_subquery()
            failed = select(func.max(RequestRow.failed_at)).where(of_model).scalar_subquery()
            newest = tuple((await connection.execute(select(ended, failed))).one())
        if newest == self._seen:
            return 0
        settled, after = 0, None
        while page := await self._page(after):
            settled += await self._settle(page)
            after = page[-1].id
        self._seen = newest
        return settled

    async def forget(self, older_than: timedelta) -> int:
        """Drop the encrypted ids of those that failed so long ago; returns of how many. Raises `Unavailable`."""
        async with transaction(self._engine) as connection:
            dropped = (
                update(RequestRow)
                .where(RequestRow.model == self._model, RequestRow.status == RequestStatus.FAILED)
                .where(RequestRow.ciphertext.is_not(None), RequestRow.failed_at < func.now() - literal(older_than))
                .values(ciphertext=null())
            )
            return (await connection.execute(dropped)).rowcount

    async def _page(self, after: UUID | None) -> Sequence[QueuedRequest]:
        query = select(*QUEUED_COLUMNS).where(RequestRow.model == self._model, RequestRow.ciphertext.is_not(None))
        query = query.where(RequestRow.status == RequestStatus.FAILED).order_by(RequestRow.id).limit(_PAGE)
        if after is not None:
            query = query.where(RequestRow.id > after)
        async with transaction(self._engine) as connection:
            return [queued_request(row) for row in await connection.execute(query)]

    async def _settle(self, page: Sequence[QueuedRequest]) -> int:
        opened = await asyncio.to_thread(lambda: [(one, decrypt_targets(one, self._keys)) for one in page])
        # Without its key nobody can tell what one named: somebody has to say what became of it.
        named = [(one.id, one.kind.rules.removes, targets.named) for one, targets in opened if targets is not None]
        deleted_by = {
            part: await self._deleted_by(part, {target for _, of, targets in named if of is part for target in targets})
            for part in Part
        }
        by = {
            request_id: {deleted_by[part][target] for target in targets} - {None}
            for request_id, part, targets in named
            if all(target in deleted_by[part] for target in targets)
        }
        completed = await self._completed({one for ids in by.values() for one in ids if one is not None})
        settled = 0
        for request_id, ids in by.items():
            if ids <= completed.keys():
                last_first = sorted((one for one in completed if one in ids), key=completed.__getitem__, reverse=True)
                async with transaction(self._engine) as connection:
                    settled += await RequestMoves(connection).mark_handled(request_id, tuple(last_first))
        return settled

    async def _deleted_by(self, part: Part, named: Collection[Target]) -> Mapping[Target, UUID | None]:
        """Those of `named` that are deleted, by themselves or with a node, and by which request."""
        found = await self._tombstones.find(part, list(named))
        others = {target: ends_of(target) for target in named if target not in found}
        nodes = await self._tombstones.deleted_nodes(list({end for ends in others.values() for end in ends}))
        with_node = {target: nodes[end] for target, ends in others.items() for end in ends if end in nodes}
        return found | with_node

    async def _completed(self, ids: Collection[UUID]) -> Mapping[UUID, datetime]:
        """Those of `ids` that are completed, and when they were."""
        query = select(RequestRow.id, RequestRow.completed_at).where(RequestRow.id == any_of(ids))
        async with transaction(self._engine) as connection:
            found = await connection.execute(query.where(RequestRow.completed_at.is_not(None)))
            return {row.id: row.completed_at for row in found}
