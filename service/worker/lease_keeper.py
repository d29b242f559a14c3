"""Holds a model's lease and renews it in the background until it is lost or given back."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import structlog

from service.db import lease as leases
from service.db.engine import Engine
from service.domain.records import Lease
from service.errors import LeaseLost, Unavailable

#: Renewals per life of the lease.
_RENEWALS = 4


class LeaseKeeper:
    """The lease of one unlearner while it holds it; every write asks for `lease` anew."""

    def __init__(self, engine: Engine, lease: Lease) -> None:
        self._engine = engine
        self._lease = lease
        self._lost = False

    @property
    def lease(self) -> Lease:
        """The lease as last renewed; raises LeaseLost once it is not safely held any more."""
        if self._lost or time.monotonic() >= self._lease.give_up_at:
            self._lost = True
            raise LeaseLost(
                f"The lease on model {self._lease.name!r} was not renewed in time or was taken over.",
                "Nothing was written. This unlearner waits for the lease and loads the committed version again.",
            )
        return self._lease

    def check(self) -> None:
        """Raises LeaseLost once the lease is not safely held any more."""
        _ = self.lease

    async def keep(self) -> None:
        """Renews until the lease is lost; outages are waited out as long as the lease lasts."""
        while not self._lost:
            await asyncio.sleep(self._lease.ttl_seconds / _RENEWALS)
            try:
                self._lease = await leases.renew(self._engine, self.lease)
            except LeaseLost:
                self._lost = True
            except Unavailable as error:
                structlog.get_logger(__name__).warning("lease.renewal_failed", reason=error.detail)


@contextlib.asynccontextmanager
async def holding(engine: Engine, lease: Lease) -> AsyncIterator[LeaseKeeper]:
    """Keeps `lease` renewed inside the block and gives it back at its end."""
    keeper = LeaseKeeper(engine, lease)
    renewal = asyncio.create_task(keeper.keep(), name="lease-renewal")
    try:
        yield keeper
    finally:
        renewal.cancel()
        await asyncio.wait({renewal})
        # An unreachable database lets the lease lapse by itself.
        with contextlib.suppress(Unavailable):
            await leases.release(engine, lease)
