"""Choose which waiting requests form the next batch: claim them from the stream, then decide by a pure function."""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
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
    """Maximum size of a batch, and maximum wait of its first request."""

    #: Maximum nodes (edges, for edge requests) in one batch. A single larger request goes alone.
    max_nodes: int
    #: Maximum wait of the oldest request, in seconds.
    max_wait_s: float

    def __post_init__(self) -> None:
        """Raise ValueError for limits under which no request could go."""
        if self.max_nodes < 1 or self.max_wait_s < 0:
            raise ValueError(f"a batch needs room for at least one node and a wait of at least 0 s, not {self}")


@dataclass(frozen=True)
class QueuedWork:
    """A claimed request that waits for its batch."""

    request_id: UUID
    #: Number of nodes (or edges) in the request.
    nodes: int
    #: When it was received, in seconds of the clock passed to `decide`.
    arrived_at: float


@dataclass(frozen=True)
class Take:
    """The first `requests` waiting requests form the next batch."""

    requests: int


@dataclass(frozen=True)
class Wait:
    """No batch yet. Decide again after `seconds` or when more requests arrive; None if nothing waits."""

    seconds: float | None


def decide(waiting: Sequence[QueuedWork], limits: BatchLimits, now: float) -> Take | Wait:
    """Take the longest run of the oldest requests that fits `max_nodes`, once it is full or old enough.

    Args:
        waiting: claimed requests, oldest first. Requests never overtake each other.
        limits: maximum size and wait.
        now: current time, in seconds of the clock of `QueuedWork.arrived_at`.
    """
    if not waiting:
        return Wait(None)
    fitting = _fitting(waiting, limits.max_nodes)
    full = fitting < len(waiting) or _nodes(waiting) >= limits.max_nodes
    # A clock that was set back must not extend the wait beyond the limit.
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


#: Stream entries per claim.
_PAGE = 1000
#: Interval of the looks for more requests while a batch fills (seconds).
_LOOK_S = 0.02


@dataclass(frozen=True)
class _Held:
    """A queued request, and its stream entry once it was delivered."""

    request: QueuedRequest
    entry: Entry | None
    arrived_at: float


class Claims:
    """The requests that the unlearner has claimed."""

    def __init__(
        self, *, engine: Engine, stream: DeletionStream, model: str, consumer: str, limits: BatchLimits
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._model = model
        self._consumer = consumer
        self._limits = limits
        #: The outage that prevents claims, if any.
        self.outage = Outage("stream")
        self._held: list[_Held] = []
        #: Whether some delivered entries may have no holder.
        self._reclaim_due = True
        self._log = structlog.get_logger(__name__)

    @property
    def none(self) -> bool:
        """Whether no request waits for a batch."""
        return not self._held

    def start_again(self) -> None:
        """Start a session: forget all claims, so that earlier ones are reclaimed and checked again."""
        self._held, self._reclaim_due = [], True

    def decide(self) -> Take | Wait:
        """Decide whether a batch is due, and its number of requests."""
        waiting = [QueuedWork(each.request.id, each.request.count, each.arrived_at) for each in self._held]
        return decide(waiting, self._limits, time.monotonic())

    def first(self, count: int) -> list[QueuedRequest]:
        """Return the earliest requests, which stay claimed until `done`."""
        return [each.request for each in self._held[:count]]

    def traceparents(self, count: int) -> list[str]:
        """Return the traceparents of the earliest requests that have one."""
        entries = (each.entry for each in self._held[:count])
        return [entry.traceparent for entry in entries if entry is not None and entry.traceparent is not None]

    async def done(self, count: int, deferred: Collection[UUID]) -> None:
        """Acknowledge the first `count` requests, except `deferred`, which wait for the next batch."""
        batch = self._held[:count]
        self._held = [each for each in batch if each.request.id in deferred] + self._held[count:]
        done = [each.entry for each in batch if each.request.id not in deferred]
        await self._acknowledge([entry for entry in done if entry is not None])

    async def wait(self, seconds: float, stop: asyncio.Event) -> None:
        """Claim entries from the stream, waiting at most `seconds` and until `stop` is set.

        Keeps entries whose requests are still queued. All others are duplicates and leave the stream. Also takes
        earlier requests that were not delivered yet: several relays, and losses of the stream, deliver in any order,
        and no request may overtake another. A request has waited since its receipt.
        """
        in_hand = {each.entry.entry_id for each in self._held if each.entry is not None}
        entries = [entry for entry in await self._claim(seconds, stop) if entry.entry_id not in in_hand]
        if not entries:
            return
        failure_points.reached(FailurePoint.CLAIMED)
        known = {each.request.id for each in self._held}
        async with transaction(self._engine) as connection:
            requests = RequestRepository(connection)
            queued = await requests.queued(self._model, {entry.request_id for entry in entries} - known)
            if queued:
                there = known | {request.id for request in queued}
                queued = [*await requests.queued_before(self._model, queued[-1], without=there), *queued]
            at = await clock.now(connection)
        lacking = {each.request.id for each in self._held if each.entry is None}
        wanted = lacking | {request.id for request in queued}
        first = {entry.request_id: entry for entry in reversed(entries) if entry.request_id in wanted}
        await self._acknowledge([entry for entry in entries if first.get(entry.request_id) is not entry])
        now = time.monotonic()
        held = [replace(each, entry=each.entry or first.get(each.request.id)) for each in self._held]
        for request in queued:
            waited_s = (at - request.received_at).total_seconds()
            held.append(_Held(request, first.get(request.id), now - waited_s))
        self._held = sorted(held, key=lambda each: (each.request.received_at, each.request.id))

    async def _claim(self, seconds: float, stop: asyncio.Event) -> list[Entry]:
        """Claim new entries of the stream; none during a Redis outage or after `stop`.

        At the start of a session and after an outage, reclaim entries that were delivered but never acknowledged, to an
        earlier lease holder or over a broken connection.
        """
        entries: list[Entry] = []

        async def read() -> None:
            block_ms = round(seconds * 1000)
            if self._held or block_ms == 0:
                # Redis ends a blocked read only at its next tick, 100 ms apart by default, and a batch would be late.
                await asyncio.sleep(min(seconds, _LOOK_S))
                block_ms = 0
            entries.extend(await self._stream.claim(self._consumer, count=_PAGE, block_ms=block_ms))
            if entries:
                # The first entry of several wakes this read before the others are there.
                entries.extend(await self._stream.claim(self._consumer, count=_PAGE, block_ms=0))

        try:
            if self._reclaim_due:
                entries = await self._stream.reclaim(self._consumer, idle_ms=0)
            else:
                # Entries delivered to a read that `stop` interrupts are reclaimed at the next start.
                await run_until(stop, read())
        except Unavailable as error:
            self._reclaim_due = True
            await self.outage.pause(error)
            return []
        self._reclaim_due = False
        self.outage.over()
        return entries

    async def _acknowledge(self, entries: Sequence[Entry]) -> None:
        """Remove the entries. Those left by a Redis outage come back and are then recognized as not queued."""
        if not entries:
            return
        try:
            await self._stream.acknowledge(entries)
        except Unavailable as error:
            self._log.warning("stream.unacknowledged", entries=len(entries), reason=error.detail)
