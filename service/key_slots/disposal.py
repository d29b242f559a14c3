"""Keys of id lists that nothing needs any more, destroyed by the unlearner alone.

Those of requests whose ciphertexts were dropped: completed, or cancelled by the api. And those of no request: reserved
by a process of the api that died, or whose commit turned out not to have happened.
"""

import asyncio

import structlog

from service import failure_points
from service.db.engine import Engine
from service.db.notifications import listen
from service.db.transactions import transaction
from service.errors import Unavailable
from service.failure_points import FailurePoint
from service.key_slots.repository import KEYS_CHANNEL, ORPHANED, RequestKeyRepository, orphaned
from service.queue.outage import Outage, run_until
from service.vault.request_keys import RequestKeys

#: Longest time a key that is not needed waits should a notification get lost (seconds).
_POLL_S = 1.0
#: Keys destroyed at a time, and so with one sync.
_PAGE = 10_000


class UnneededKeys:
    """Destroys them; what it does bears to be repeated, also by two at a time."""

    def __init__(self, engine: Engine, request_keys: RequestKeys) -> None:
        self._engine = engine
        self._keys = request_keys
        #: The batch that has just ended and the one that its commit has woken are not both to sync the same files.
        self._turn = asyncio.Lock()
        #: Set once the database is known to be the one that belongs to these keys.
        self._is_ours = asyncio.Event()
        self._outage = Outage("keys of id lists")
        self._log = structlog.get_logger(__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """Destroy all there are, from `begin` on, and others as they come, until `stop` is set, through any outage."""
        await run_until(stop, self._run())

    async def begin(self) -> None:
        """Destroy those of dropped ciphertexts, and from now on all. Raises `Unavailable` and `OSError`.

        For whoever has found that database and store belong together: of an older backup of the database, not even the
        keys of requests that it does not know must go.
        """
        await self.destroy_dropped()
        self._is_ours.set()

    async def destroy_dropped(self) -> int:
        """Destroy those of requests whose ciphertexts were dropped; returns how many. Raises as `begin`."""
        destroyed = 0
        async with self._turn:
            while True:
                async with transaction(self._engine) as connection:
                    dropped = await RequestKeyRepository(connection).dropped(limit=_PAGE)
                if not dropped:
                    return destroyed
                await asyncio.to_thread(self._keys.destroy, dropped)
                failure_points.reached(FailurePoint.KEYS_EMPTIED)
                async with transaction(self._engine) as connection:
                    await RequestKeyRepository(connection).forget(dropped)
                destroyed += len(dropped)
                if len(dropped) < _PAGE:
                    return destroyed

    async def destroy_orphaned(self) -> int:
        """Destroy those of no request, and what a crash left of others; returns how many. Raises as `begin`."""
        destroyed = await asyncio.to_thread(self._keys.clear_torn)
        pages = self._keys.held()
        while page := await asyncio.to_thread(next, pages, None):
            orphans = await orphaned(self._engine, page)
            await asyncio.to_thread(self._keys.destroy, orphans)
            destroyed += len(orphans)
        if destroyed:
            self._log.info("keys.orphaned", destroyed=destroyed)
        return destroyed

    async def _run(self) -> None:
        await self._is_ours.wait()
        while True:
            try:
                # Listening comes first, and after it all there are: what was said before is not told again.
                async with listen(self._engine, KEYS_CHANNEL) as wakeup:
                    said = {ORPHANED}
                    while True:
                        await self.destroy_dropped()
                        if ORPHANED in said:
                            await self.destroy_orphaned()
                        self._outage.over()
                        await wakeup.wait(_POLL_S)
                        said = wakeup.payloads()
            except (Unavailable, OSError) as error:
                await self._outage.pause(error)
