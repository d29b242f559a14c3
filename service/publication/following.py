"""Keeps a reader on the committed version, under a lease that says until when it may answer."""

import asyncio
import contextlib
import errno
import math
import os
from pathlib import Path
from uuid import uuid4

from service.boottime import boottime
from service.db import reader_leases
from service.db.engine import Engine
from service.db.notifications import Listening, listen
from service.errors import Unavailable
from service.publication.layout import LIFE_S, Layout, OtherPublicationFormat, lock_reader
from service.publication.mapped import View, open_view
from service.publication.reader import Reader
from service.queue.backoff import Backoff
from service.queue.outage import Outage, run_until

#: Renewals per life of the lease.
_RENEWALS = 4
#: The share of its life for which a reader answers.
_USABLE_SHARE = 2 / 3
#: Longest wait after a failure: what was not there may be there at once.
_CAP_S = 0.5
#: How often to look for a publication while there is none, which is no failure (seconds).
_LOOK_S = 0.1


class Follower:
    """One reader's lease on one model."""

    def __init__(self, engine: Engine, reader: Reader, home: Path, model: str) -> None:
        self._engine = engine
        self._reader = reader
        self._home = home
        self._model = model
        self._id = uuid4()
        self._layout: Layout | None = None
        #: Holds the lock that says that this reader lives.
        self._lock: int | None = None
        #: What keeps it, while something does.
        self.outage = Outage("reader", Backoff(cap_s=_CAP_S))

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until `stop` is set, through any outage; what cannot be read is named to those who ask."""
        try:
            await run_until(stop, self._run())
        finally:
            # In this order: the unlearner goes on as soon as it sees either of the other two.
            self._reader.extend(-math.inf)
            self._reader.explain("this process is ending")
            await self._end()

    async def follow(self, connection: Listening) -> None:
        """Serve the committed version and renew the lease on it.

        Raises FileNotFoundError while the unlearner has published nothing, Unavailable, OSError and
        OtherPublicationFormat.
        """
        while True:
            view, asked_at = self._reader.view, boottime()
            served = None if view is None else view.folder
            pointed = await reader_leases.renew(connection, self._id, self._model, served)
            if pointed is None:
                raise FileNotFoundError(errno.ENOENT, "No version of the model is committed yet")
            if view is not None and pointed == served:
                self._reader.extend(asked_at + LIFE_S * _USABLE_SHARE)
                await self._serve_again(view)
                return
            layout = self._find()
            # Served before its lease is asked for: once that is there, no answer is of an earlier version.
            self._reader.serve(await self._open(layout, pointed, view))

    async def _run(self) -> None:
        while True:
            try:
                # Listening comes first: a pointer that moves after the renewal below still wakes the wait.
                async with listen(self._engine, reader_leases.POINTERS_CHANNEL) as connection:
                    while True:
                        try:
                            await self.follow(connection)
                        except FileNotFoundError:
                            self._reader.explain("the unlearner has not published the model (yet)")
                            await connection.wait(_LOOK_S)
                        else:
                            self.outage.over()
                            await connection.wait(LIFE_S / _RENEWALS)
            except OtherPublicationFormat as error:
                await self._pause(Unavailable(error.detail, error.remedy))
            except (Unavailable, OSError) as error:
                await self._pause(error)

    async def _pause(self, error: Unavailable | OSError) -> None:
        self._reader.explain(error.detail.rstrip(".") if isinstance(error, Unavailable) else str(error))
        await self.outage.pause(error)

    async def _serve_again(self, view: View) -> None:
        """Serve the same version from where it was written again, if it was: what was there before it may go."""
        with contextlib.suppress(FileNotFoundError):
            layout = self._find()
            if layout.version(view.folder) != view.path:
                self._reader.serve(await self._open(layout, view.folder, view))

    async def _open(self, layout: Layout, folder: str, before: View | None) -> View:
        # In a thread, because checking every byte would delay other answers.
        return await asyncio.to_thread(open_view, layout, folder, before)

    def _find(self) -> Layout:
        """The publication as it is now, locked; a new one has taken its place if that was lost or moved."""
        layout = Layout.find(self._home)
        if layout is None:
            raise FileNotFoundError
        if layout != self._layout:
            before, self._lock = self._lock, lock_reader(layout, self._id)
            self._layout = layout
            if before is not None:
                os.close(before)
        return layout

    async def _end(self) -> None:
        with contextlib.suppress(Unavailable):
            async with listen(self._engine, reader_leases.POINTERS_CHANNEL) as connection:
                await reader_leases.end(connection, self._id)
        if self._lock is not None:
            os.close(self._lock)
