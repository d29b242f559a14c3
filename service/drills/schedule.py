"""Drills that run by themselves, where the lease is held."""

import asyncio
import secrets
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import structlog

from service.access.api_keys import ApiKeyRepository
from service.db.clock import now
from service.db.engine import Connection
from service.db.transactions import transaction
from service.domain.drills import Drill, DrillTrigger
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.drills.repository import DrillOpen, DrillRepository
from service.drills.starting import Drills
from service.errors import Conflict, KeyMissing, LetheError, Unavailable
from service.queue.outage import Outage, run_until

#: Longest time between two looks at the clock (seconds).
_LOOK_S = 10.0
#: The key under which scheduled drills are asked for. It is revoked from the beginning, and nobody has its text.
_KEY_ID = UUID("6472696c-6c73-4000-8000-000000000000")
_KEY_NAME = "drills on schedule"


class DrillSchedule:
    """Starts the next drill when the newest is older than an interval, by Postgres' clock; the first at once.

    The first of every model that is imported, too: drills of the one before it show nothing of it.
    A drill that anybody started counts, and one that was cancelled too. What keeps drills from running is told once
    in the log, and again when it is something else.
    """

    def __init__(self, drills: Drills, interval: timedelta, holds_lease: Callable[[], bool]) -> None:
        self._drills = drills
        self._interval = interval
        self._holds_lease = holds_lease
        self._outage = Outage("drills")
        self._logged: str | None = None
        self._log = structlog.get_logger(__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """Look whether a drill is due until `stop` is set, through any outage of Postgres."""
        await run_until(stop, self._run())

    async def look(self) -> Drill | None:
        """Start a drill if this process holds the lease and one is due; returns it. Raises Unavailable."""
        if not self._holds_lease():
            return None
        async with transaction(self._drills.engine) as connection:
            newest = await DrillRepository(connection).newest(self._drills.model)
            is_of_served = newest is not None and newest.model_replaced_at is None
            if newest is not None and is_of_served and await now(connection) - newest.requested_at < self._interval:
                return None
        try:
            caller = await self._caller()
            started = await self._drills.start(caller, DrillTrigger.SCHEDULED, newest=newest)
        except Unavailable:
            raise
        except LetheError as error:
            self._log_once(error)
            return None
        self._logged = None
        self._log.info("drill.started", cohort=started.drill.cohort)
        return started.drill

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
                self._outage.over()
                await asyncio.sleep(min(_LOOK_S, self._interval.total_seconds()))
            except Unavailable as error:
                await self._outage.pause(error)

    async def _caller(self) -> ApiKey:
        async with transaction(self._drills.engine) as connection:
            found = await ApiKeyRepository(connection).get(_KEY_ID)
        if found is None:
            raise KeyMissing("The API key for drills is missing.", "Start Lethe again, or run `./lethe migrate`.")
        return found

    def _log_once(self, error: LetheError) -> None:
        # One that is under way, somebody else's perhaps, is nothing to worry about: the next look comes after it.
        if isinstance(error, DrillOpen) or error.detail == self._logged:
            return
        self._logged = error.detail
        self._log.warning("drill.not_started", reason=error.detail, remedy=error.remedy)


async def ensure_schedule_key(connection: Connection) -> None:
    """See to the schedule's key, which is revoked from the beginning; with the rights of the tables' owner.

    Raises Conflict when somebody has given its name to a key of their own.
    """
    keys = ApiKeyRepository(connection)
    if await keys.get(_KEY_ID) is not None:
        return
    try:
        await keys.create(_KEY_ID, _KEY_NAME, [Scope.DELETIONS_WRITE], secrets.token_bytes(32))
    except Conflict:
        if await keys.get(_KEY_ID) is None:
            raise
        # Another process that started at the same moment has made it.
        return
    await keys.revoke(_KEY_ID)
