"""Which waiting requests go into the next batch: claimed from the stream, decided by a pure function."""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog

from service import failure_points
from service.db import clock
from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.records import QueuedRequest
from service.errors import Unavailable
from service.failure_points import FailurePoint
from service.queue.outage import Outage, run_until
from service.queue.stream import DeletionStream, Entry
from service.requests.lookup import RequestRepository


@dataclass(frozen=True)
class BatchLimits:
    """How large a batch may grow, and how long its first request waits for others."""

    #: Most nodes (for edge requests, edges) in one batch. One larger request still goes, alone.
    max_nodes: int
    #: Longest wait of the oldest request, in seconds.
    max_wait_s: float

    def __post_init__(self) -> None:
        """Raise ValueError for limits under which no request would ever go."""
        if self.max_nodes < 1 or self.max_wait_s < 0:
            raise ValueError(f"a batch needs room for at least one node and a wait of at least 0 s, not {self}")


@dataclass(frozen=True)
class QueuedWork:
    """A request that has been claimed and waits for its batch."""

    request_id: UUID
    #: How many nodes (or edges) the request names.
    nodes: int
    #: When it was claimed, in seconds of the clock that `decide` is given.
    arrived_at: float


@dataclass(frozen=True)
class Take:
    """The first `requests` of those waiting make the next batch."""

    requests: int


@dataclass(frozen=True)
class Wait:
    """No batch yet: ask again after `seconds`, or when more arrives. None: nothing waits at all."""

    seconds: float | None


def decide(waiting: Sequence[QueuedWork], limits: BatchLimits, now: float) -> Take | Wait:
    """Take the longest run of the oldest requests that fits `max_nodes`, once it is full or old enough.

    Args:
        waiting: claimed requests, the oldest first. Their order is kept: a request is never overtaken.
        limits: work and wait allowed.
        now: the present, in seconds of the clock of `QueuedWork.arrived_at`.
    """
    if not waiting:
        return Wait(None)
    fitting = _fitting(waiting, limits.max_nodes)
    full = fitting < len(waiting) or _nodes(waiting) >= limits.max_nodes
    # A clock that was set back must not make anyone wait longer than the limit again.
    remaining = min(waiting[0].arrived_at + limits.max_wait_s - now, limits.max_wait_s)
    if full or remaining <= 0:
        return Take(fitting)
    return Wait(remaining)


def _fitting(waiting: Sequence[QueuedWork], max_nodes: int) -> int:
    nodes = 0
    for taken, request in enumerate(waiting):
        nodes += request.nodes
        if nodes > max_nodes:
            return max(taken, 1)
    return len(waiting)


def _nodes(waiting: Sequence[QueuedWork]) -> int:
    return sum(request.nodes for request in waiting)


#: Stream entries claimed at once.
_PAGE = 1000


@dataclass(frozen=True)
class _Held:
    """A queued request, with the stream entry that brought it."""

    request: QueuedRequest
    entry: Entry
    arrived_at: float


class Claims:
    """The requests in the unlearner's hands."""

    def __init__(
        self, *, engine: Engine, stream: DeletionStream, model: str, consumer: str, limits: BatchLimits
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._model = model
        self._consumer = consumer
        self._limits = limits
        #: What keeps requests from being claimed, while something does.
        self.outage = Outage("stream")
        self._held: list[_Held] = []
        #: `time.monotonic()` at the end of a batch, until something was claimed after it.
        self._ended_at: float | None = None
        #: Whether entries may have been delivered that nobody holds.
        self._reclaim_due = True
        self._log = structlog.get_logger(__name__)

    @property
    def none(self) -> bool:
        """Whether nothing waits for a batch."""
        return not self._held

    def start_again(self) -> None:
        """At the start of a session: what an earlier one held is claimed and looked at anew."""
        self._held, self._reclaim_due, self._ended_at = [], True, None

    def decide(self) -> Take | Wait:
        """Whether there is a batch by now, and of how many requests."""
        waiting = [QueuedWork(each.request.id, each.request.count, each.arrived_at) for each in self._held]
        return decide(waiting, self._limits, time.monotonic())

    def first(self, count: int) -> list[QueuedRequest]:
        """The earliest requests, which stay claimed until they are `done`."""
        return [each.request for each in self._held[:count]]

    async def done(self, count: int, deferred: Collection[UUID]) -> None:
        """The first `count` are acknowledged, but for those `deferred`, which wait for the next batch."""
        batch, self._ended_at = self._held[:count], time.monotonic()
        self._held = [each for each in batch if each.request.id in deferred] + self._held[count:]
        await self._acknowledge([each.entry for each in batch if each.request.id not in deferred])

    async def wait(self, seconds: float, stop: asyncio.Event) -> None:
        """Takes in what the stream has, or gets within `seconds` and before `stop` is set.

        Of its entries those for requests that are still queued; all others are duplicates and leave the stream. What
        was received while a batch was under way has waited for others since then.
        """
        in_hand = {each.entry.entry_id for each in self._held}
        entries = [entry for entry in await self._claim(seconds, stop) if entry.entry_id not in in_hand]
        if not entries:
            return
        failure_points.reached(FailurePoint.CLAIMED)
        known = {each.request.id for each in self._held}
        async with transaction(self._engine) as connection:
            queued = await RequestRepository(connection).queued(
                self._model, {entry.request_id for entry in entries} - known
            )
            there = None if self._ended_at is None else await clock.now(connection)
        new = {request.id for request in queued}
        first = {entry.request_id: entry for entry in reversed(entries) if entry.request_id in new}
        await self._acknowledge([entry for entry in entries if first.get(entry.request_id) is not entry])
        now, ended_at, self._ended_at = time.monotonic(), self._ended_at, None
        for request in queued:
            arrived_at = now
            if there is not None and ended_at is not None:
                received_at = now - (there - request.received_at).total_seconds()
                arrived_at = received_at if received_at < ended_at else now
            self._held.append(_Held(request, first[request.id], arrived_at))

    async def _claim(self, seconds: float, stop: asyncio.Event) -> list[Entry]:
        """New entries of the stream; none while Redis is away, which costs nothing but time, and none after `stop`.

        At the start of a session, and after an outage, those that were delivered before and never acknowledged: to an
        earlier holder of the lease, or into a connection that broke.
        """
        entries: list[Entry] = []

        async def read() -> None:
            # 1 ms at least: 0 would not wait at all, and spin.
            block_ms = max(1, round(seconds * 1000))
            entries.extend(await self._stream.claim(self._consumer, count=_PAGE, block_ms=block_ms))

        try:
            if self._reclaim_due:
                entries = await self._stream.reclaim(self._consumer, idle_ms=0)
            else:
                # What a read that `stop` cuts short had been given is delivered, and so reclaimed at the next start.
                await run_until(stop, read())
        except Unavailable as error:
            self._reclaim_due = True
            await self.outage.pause(error)
            return []
        self._reclaim_due = False
        self.outage.over()
        return entries

    async def _acknowledge(self, entries: Sequence[Entry]) -> None:
        """Removes the entries; what Redis keeps because it is away comes again and is then known not to be queued."""
        if not entries:
            return
        try:
            await self._stream.acknowledge(entries)
        except Unavailable as error:
            self._log.warning("stream.unacknowledged", entries=len(entries), reason=error.detail)
