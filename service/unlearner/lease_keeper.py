"""Holds a model's lease and renews it in the background, and commits a version while it is held."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import structlog

from model_store.store import Store
from model_store.versions import VersionRef
from projector.errors import ProjectorError
from service.db import lease as leases
from service.db.clock import boottime
from service.db.engine import Engine
from service.db.transactions import transaction, wait_for_writers
from service.domain.lease_report import LeaseReport
from service.domain.records import Lease, Pointer
from service.errors import KeyMissing, LeaseLost, StateMismatch, Unavailable
from service.predictions.version_rows import PointerRepository
from service.queue.outage import Outage

#: Renewals per life of the lease.
_RENEWALS = 4
#: Longest time until others read that the holder's condition has changed (seconds).
_TELL_WITHIN_S = 0.25


class RenewalFailed(Exception):
    """The renewal of the lease ended with an error that was not foreseen, its `__cause__`; the log has it."""


class LeaseKeeper:
    """The lease of one unlearner while it holds it; every write asks for `lease` anew."""

    def __init__(self, engine: Engine, lease: Lease, say: Callable[[], LeaseReport] | None = None) -> None:
        """`say` is asked what the holder is at, which is told to others with each renewal, and soon when it changes."""
        self._engine = engine
        self._lease = lease
        self._say = say
        self._woken = asyncio.Event()
        #: What was told last.
        self._reported: LeaseReport | None = None
        self._lost = False
        self._failure: Exception | None = None

    @property
    def lease(self) -> Lease:
        """The lease as last renewed.

        Raises LeaseLost once it is not safely held any more, and RenewalFailed once nothing renews it.
        """
        if self._failure is not None:
            raise RenewalFailed(
                f"The renewal of the lease on model {self._lease.name!r} has failed."
            ) from self._failure
        if self._lost or boottime() >= self._lease.give_up_at:
            self._lost = True
            raise LeaseLost(
                f"The lease on model {self._lease.name!r} was not renewed in time or was taken over.",
                "Nothing was written. This unlearner waits for the lease and loads the committed version again.",
            )
        return self._lease

    def check(self) -> None:
        """Raises LeaseLost once the lease is not safely held any more, and RenewalFailed once nothing renews it."""
        _ = self.lease

    @contextlib.contextmanager
    def blaming_loss(self) -> Iterator[None]:
        """LeaseLost in place of what looks like damage, or a disk that is away, to one that was stopped past its lease.

        So does a version or a key that is not the expected one. It is what a successor has done since.
        """
        try:
            yield
        except (ProjectorError, OSError, StateMismatch, KeyMissing):
            self.check()
            raise

    def wake(self) -> None:
        """What the holder is at has changed, and others wait for it: it is told at once."""
        self._woken.set()

    async def keep(self) -> None:
        """Renews until the lease is lost; outages are waited out as long as the lease lasts.

        Any other error ends the renewal, and with it whatever asks for the lease next.
        """
        while not self._lost and self._failure is None:
            await self._pause(self._lease.ttl_seconds / _RENEWALS)
            try:
                report = None if self._say is None else self._say()
                self._lease = await leases.renew(self._engine, self.lease, report)
                self._reported = report
            except LeaseLost:
                self._lost = True
            except Unavailable as error:
                structlog.get_logger(__name__).warning("lease.renewal_failed", reason=error.detail)
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing may go on without renewal unseen
                structlog.get_logger(__name__).exception("lease.renewal_failed", name=self._lease.name)
                self._failure = error

    async def _pause(self, seconds: float) -> None:
        """Until the next renewal is due, or something is to be told that others wait for."""
        until = boottime() + seconds
        while (left := until - boottime()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), min(left, _TELL_WITHIN_S))
            self._woken.clear()
            if self._has_changed():
                return

    def _has_changed(self) -> bool:
        """Whether the holder is at something else than was told; how far a repair has come can wait."""
        if self._say is None:
            return False
        now, before = self._say(), self._reported
        if before is None or (now.repair is None) != (before.repair is None):
            return True
        return (now.condition, now.checks) != (before.condition, before.checks)


@contextlib.asynccontextmanager
async def holding(
    engine: Engine, lease: Lease, say: Callable[[], LeaseReport] | None = None
) -> AsyncIterator[LeaseKeeper]:
    """Keeps `lease` renewed inside the block; `say` as for `LeaseKeeper`."""
    keeper = LeaseKeeper(engine, lease, say)
    renewal = asyncio.create_task(keeper.keep(), name="lease-renewal")
    try:
        yield keeper
    finally:
        renewal.cancel()
        await asyncio.wait({renewal})


async def give_back(engine: Engine, lease: Lease) -> None:
    """Lets another holder take the lease at once; an unreachable database lets it lapse by itself."""
    with contextlib.suppress(Unavailable):
        await leases.release(engine, lease)


def pointer_to(store: Store, ref: VersionRef, model: str) -> Pointer:
    """A version of the store, as a pointer names it."""
    return Pointer(model, ref.version, ref.fencing, ref.folder, store.version_digest(ref), store.weights_sha256(ref))


async def pointer_moved(engine: Engine, keeper: LeaseKeeper, pointer: Pointer, outage: Outage) -> bool:
    """After an unanswered commit: whether `pointer` is the committed one, however long it takes to learn that.

    Raises LeaseLost.
    """
    while True:
        try:
            async with transaction(engine) as connection:
                await wait_for_writers(connection, keeper.lease)
                found = await PointerRepository(connection).read(pointer.model)
        except Unavailable as error:
            await outage.pause(error)
        else:
            outage.reason = None
            return found == pointer
