"""The served model: admission of a reader once Postgres confirms its home, and the model's figures."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from projector.forgetting.status import RepairProgress, RepairStatus
from service.db import lease
from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.lease_report import Holder
from service.domain.states import Guarantee
from service.errors import Unavailable
from service.home_id import known_id
from service.predictions.facts import Facts
from service.predictions.reader import Reader
from service.predictions.version_rows import PointerRepository, VersionRepository
from service.queue.outage import Backoff, Outage

#: Seconds between two checks.
_LOOK_S = 5.0
#: Seconds between checks before the reader is admitted, and maximum after a failure.
_SOON_S = 0.2


class Admission:
    """Admits the reader of one model in one LETHE_HOME, and disowns it if another home serves the model.

    A Postgres outage changes nothing for an admitted reader.
    """

    def __init__(self, engine: Engine, reader: Reader, home: Path, model: str) -> None:
        self._engine = engine
        self._reader = reader
        self._home = home
        self._model = model
        #: The outage that prevents the check, if any.
        self.outage = Outage("reader", Backoff(cap_s=_SOON_S))

    async def run(self, stop: asyncio.Event) -> None:
        """Repeat the check until `stop` is set, through any outage; a running check is finished."""
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
        """Admit, suspend or disown the reader; return whether it was admitted. Raises Unavailable."""
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


@dataclass(frozen=True)
class ModelInfo:
    """The figures of the committed model; see `ModelAnswer` for their meaning."""

    facts: Facts
    #: The latest measurement; None before the first, and for a version published with noise.
    span_residual: float | None
    repair: RepairStatus
    #: Only while `repair` is pending.
    repair_progress: RepairProgress | None
    guarantee: Guarantee
    weights_sha256: str


async def model_description(engine: Engine, model: str, facts: Callable[[], Facts | None]) -> ModelInfo:
    """Describe the version with these `facts`. Raises Unavailable without facts."""
    async with transaction(engine) as connection:
        pointer = await PointerRepository(connection).read(model)
        # The newest may not have been measured yet, and its predecessor may be the one served.
        made = await VersionRepository(connection).latest(model, limit=3)
        holder = await lease.holder(connection, model)
    known = facts()
    if pointer is None or known is None:
        raise Unavailable("The model is loading.", "Try again in a moment; /readyz shows when it is ready.")
    served = known.served
    # A version committed during these reads is not served yet.
    after = next((one for one in made if one.number_before == served.version), None)
    weights = pointer.weights_sha256 if after is None else after.weights_sha256_before
    made = [one for one in made if one.number <= served.version]
    repair = made[0].repair if made else RepairStatus.NONE
    measured = next((one for one in made if one.span_residual is not None), None)
    return ModelInfo(
        facts=known,
        span_residual=None if measured is None or measured.publication_mu is not None else measured.span_residual,
        repair=repair,
        repair_progress=_progress(holder) if repair is RepairStatus.PENDING else None,
        guarantee=Guarantee.RETRAINED if repair is RepairStatus.CONVERGED else Guarantee.SPAN,
        weights_sha256=weights,
    )


def _progress(holder: Holder | None) -> RepairProgress:
    """Return the repair progress that the unlearner last reported; zero before its first report."""
    known = None if holder is None else holder.report.repair
    return RepairProgress(0, 0, None) if known is None else known
