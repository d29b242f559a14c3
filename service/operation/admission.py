"""Admits a reader once Postgres confirms its home, and disowns it if the model is served in another."""

import asyncio
import contextlib
from pathlib import Path

from service.db import lease
from service.db.engine import Engine
from service.db.transactions import transaction
from service.errors import Unavailable
from service.home_id import known_id
from service.publication.reader import Reader
from service.queue.backoff import Backoff
from service.queue.outage import Outage
from service.versions.pointers import PointerRepository

#: Seconds between two looks.
_LOOK_S = 5.0
#: The same until the reader may answer, and at most after a failure.
_SOON_S = 0.2


class Admission:
    """Admits the reader of one model in one LETHE_HOME, and disowns it where the model is served in another.

    An outage of Postgres changes nothing for a reader that was admitted.
    """

    def __init__(self, engine: Engine, reader: Reader, home: Path, model: str) -> None:
        self._engine = engine
        self._reader = reader
        self._home = home
        self._model = model
        #: What keeps it from asking, while something does.
        self.outage = Outage("reader", Backoff(cap_s=_SOON_S))

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop` is set, through any outage; a look that is under way is finished."""
        while not stop.is_set():
            wait_s = _SOON_S
            try:
                if await self.look():
                    wait_s = _LOOK_S
            except (Unavailable, OSError) as error:
                await self.outage.pause(error)
            else:
                self.outage.over()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait_s)

    async def look(self) -> bool:
        """Admit, suspend or disown the reader, and return whether it was admitted. Raises Unavailable."""
        async with transaction(self._engine) as connection:
            pointer = await PointerRepository(connection).read(self._model)
            served_in = await lease.home_of(connection, self._model)
        if pointer is None or served_in is None:
            self._reader.suspend("no version of the model has been committed yet")
            return False
        if served_in != await asyncio.to_thread(known_id, self._home):
            self._reader.disown()
            return False
        self._reader.admit(pointer.version)
        return True
