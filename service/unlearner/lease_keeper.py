"""Hold a model's lease, renew it in the background, and check after an unanswered commit whether it happened."""

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

#: Renewals per lease lifetime.
_RENEWALS = 4
#: Maximum delay before others read a changed condition of the holder (seconds).
_PUBLISH_WITHIN_S = 0.25


class RenewalFailed(Exception):
    """The lease renewal ended with an unexpected error, its `__cause__`, which is in the log."""


class LeaseKeeper:
    """The lease of one unlearner while it holds it; every write reads `lease` again."""

    def __init__(self, engine: Engine, lease: Lease, say: Callable[[], LeaseReport] | None = None) -> None:
        """`say` returns the holder's status, published with each renewal and soon after a change."""
        self._engine = engine
        self._lease = lease
        self._say = say
        self._woken = asyncio.Event()
        #: The report published last.
        self._reported: LeaseReport | None = None
        self._lost = False
        self._failure: Exception | None = None

    @property
    def lease(self) -> Lease:
        """The lease as last renewed.

        Raises LeaseLost once it is no longer safely held, and RenewalFailed once renewal has failed.
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

    @property
    def fencing(self) -> int:
        """The lease's fencing number, also after its loss."""
        return self._lease.fencing

    def check(self) -> None:
        """Raise LeaseLost once the lease is no longer safely held, and RenewalFailed once renewal has failed."""
        _ = self.lease

    @contextlib.contextmanager
    def blaming_loss(self) -> Iterator[None]:
        """Raise LeaseLost instead of an apparent damage or disk outage if the lease has been lost.

        Does the same for an unexpected version or key. A successor has caused these since.
        """
        try:
            yield
        except (ProjectorError, OSError, StateMismatch, KeyMissing):
            self.check()
            raise

    def wake(self) -> None:
        """Publish the holder's changed status now, because others wait for it."""
        self._woken.set()

    async def keep(self) -> None:
        """Renew until the lease is lost; outages are waited out while the lease lasts.

        Any other error ends the renewal and fails the next access to the lease.
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
            except Exception as error:  # noqa: BLE001 - nothing may continue unnoticed without renewal
                structlog.get_logger(__name__).exception("lease.renewal_failed", name=self._lease.name)
                self._failure = error

    async def _pause(self, seconds: float) -> None:
        """Wait until the next renewal is due or the status has changed."""
        until = boottime() + seconds
        while (left := until - boottime()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), min(left, _PUBLISH_WITHIN_S))
            self._woken.clear()
            if self._has_changed():
                return

    def _has_changed(self) -> bool:
        """Whether the holder's status differs from the last report, except for the progress of a repair."""
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
    """Keep `lease` renewed inside the block; `say` as for `LeaseKeeper`."""
    keeper = LeaseKeeper(engine, lease, say)
    renewal = asyncio.create_task(keeper.keep(), name="lease-renewal")
    try:
        yield keeper
    finally:
        renewal.cancel()
        await asyncio.wait({renewal})


async def give_back(engine: Engine, lease: Lease) -> None:
    """Release the lease for the next holder; if the database is unreachable, it expires by itself."""
    with contextlib.suppress(Unavailable):
        await leases.release(engine, lease)


def pointer_to(store: Store, ref: VersionRef, model: str) -> Pointer:
    """Build the pointer to a version of the store."""
    return Pointer(model, ref.version, ref.fencing, ref.folder, store.version_digest(ref), store.weights_sha256(ref))


async def pointer_moved(engine: Engine, keeper: LeaseKeeper, pointer: Pointer, outage: Outage) -> bool:
    """After an unanswered commit, return whether `pointer` is committed; waits until the database answers.

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
