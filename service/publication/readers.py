"""Waiting, as the unlearner, until no reader answers from anything older than the committed version."""

import contextlib
from types import TracebackType
from typing import Self

import structlog

from service.boottime import boottime
from service.db.engine import Engine
from service.db.notifications import Listening, listen
from service.db.reader_leases import READERS_CHANNEL, ReaderLeaseRepository
from service.db.transactions import transaction
from service.domain.records import Pointer
from service.publication.layout import LIFE_S, Layout

#: How often readers that say nothing are looked at (seconds); those that move say so.
_LOOK_S = 0.05


class Readers:
    """The readers of one publication, on one connection that listens to them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open = contextlib.AsyncExitStack()
        self._connection: Listening | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._forget_connection()

    async def moved(self, pointer: Pointer, layout: Layout) -> None:
        """Step 7: return when every reader answers from `pointer`'s version, or from none.

        One that has not moved has gone when its lock is free, and has lapsed when a life has passed by this process's
        own clock: it asked for its lease before the pointer moved, or not at all. Takes 2 s at most. Raises
        Unavailable; it may be repeated, and begins again then.
        """
        deadline = boottime() + LIFE_S
        try:
            connection = await self._listening()
            while await self._elsewhere(pointer, layout, lapsed=boottime() >= deadline):
                await connection.wait(_LOOK_S)
        except BaseException:
            await self._forget_connection()
            raise

    async def _elsewhere(self, pointer: Pointer, layout: Layout, *, lapsed: bool) -> bool:
        """Whether to wait for any reader; rows of those not waited for are removed."""
        gone = layout.remove_gone_readers()
        async with transaction(self._engine) as connection:
            repository = ReaderLeaseRepository(connection)
            if gone:
                await repository.remove(gone)
            elsewhere = await repository.elsewhere(pointer.model, pointer.version)
            if lapsed and elsewhere:
                await repository.remove(elsewhere, unless=pointer.version)
                structlog.get_logger(__name__).warning("readers.lapsed", count=len(elsewhere), version=pointer.version)
        return bool(elsewhere) and not lapsed

    async def _listening(self) -> Listening:
        if self._connection is None:
            self._connection = await self._open.enter_async_context(listen(self._engine, READERS_CHANNEL))
        return self._connection

    async def _forget_connection(self) -> None:
        self._connection = None
        await self._open.aclose()
