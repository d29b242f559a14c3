"""What must work for Lethe to be ready, each looked at for itself and named when it does not."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import torch

from service.api.services import Check
from service.db import clock, migrate
from service.db.batches import BatchRepository
from service.db.engine import Engine
from service.db.tombstones import TombstoneRepository
from service.db.transactions import transaction
from service.db.versions import VersionRepository
from service.domain.states import Cause
from service.errors import LetheError, Unavailable
from service.observability.metrics import MOST_RESIDUAL, most_span_residual
from service.queue.unclaimed import Queue
from service.reader.predictions import Reader
from service.vault.keyring import Keyring
from service.vault.log_keys import LogKeys
from service.vault.own_slots import OwnSlots
from service.worker.unlearner import Condition, Phase

#: Free bytes below which a new version, and with it the next deletion, might not fit.
MIN_FREE_BYTES = 256 << 20
#: Seconds for which the queue may be unusable: restarts and failovers of Redis are shorter.
MOST_STALL_S = 60.0
#: Seconds an answer is good for, so that those who ask often do not keep the servers busy.
_FRESH_FOR_S = 0.5

#: What was found to be in order; raises LetheError, or answers a failing Check, when it is not.
Probe = Callable[[], Awaitable[str]]


class Readiness:
    """Runs all probes at once, each within a time limit; callers at the same moment share one run.

    An answer is given again for a while, but not once `condition`, which costs nothing to ask for, has changed: whoever
    waits for the model to be loaded is told at once.
    """

    def __init__(
        self,
        probes: Sequence[tuple[str, Probe]],
        *,
        timeout_s: float,
        condition: Callable[[], Condition],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probes = tuple(probes)
        self._timeout_s = timeout_s
        self._condition = condition
        self._clock = clock
        self._running = asyncio.Lock()
        self._checked_at = float("-inf")
        self._checked_in: Condition | None = None
        self._checks: tuple[Check, ...] = ()

    async def __call__(self) -> tuple[Check, ...]:
        """One check per probe, in their order."""
        async with self._running:
            now = self._condition()
            if now != self._checked_in or self._clock() - self._checked_at > _FRESH_FOR_S:
                self._checks = tuple(await asyncio.gather(*(self._check(*probe) for probe in self._probes)))
                self._checked_at = self._clock()
                # As it was before the probes looked: one that changed amid them is looked at again.
                self._checked_in = now
            return self._checks

    async def _check(self, name: str, probe: Probe) -> Check:
        try:
            return Check(name, True, await asyncio.wait_for(probe(), self._timeout_s))
        except LetheError as error:
            return Check(name, False, error.detail, error.remedy)
        except TimeoutError:
            return Check(name, False, f"No answer within {self._timeout_s:g} s.", "See whether it is overloaded.")
        except Exception as error:  # noqa: BLE001 - whatever is wrong, it is this that is not ready
            return Check(name, False, f"It failed with {type(error).__name__}.", "See the log of the service.")


class NotReady(LetheError):
    """A probe found something that is not as it must be."""


def probes(
    *,
    home: Path,
    model: str,
    engine: Engine,
    queue: Queue,
    keyring: Keyring,
    log_keys: LogKeys,
    own_slots: OwnSlots,
    reader: Reader,
    condition: Callable[[], Condition],
    device: torch.device,
) -> list[tuple[str, Probe]]:
    """The probes of a service that runs."""

    async def postgres() -> str:
        async with _asking_postgres(), transaction(engine):
            return "answers"

    async def migrations() -> str:
        async with _asking_postgres(), transaction(engine) as connection:
            found = await connection.run_sync(migrate.revision_of)
        needed = await asyncio.to_thread(migrate.head)
        if found != needed:
            raise NotReady(f"The database is at revision {found}, this version needs {needed}.", "Run ./lethe migrate.")
        return f"at revision {found}"

    async def redis_answers() -> str:
        try:
            await queue.ping()
        except Unavailable as error:
            raise NotReady(error.detail, error.remedy) from None
        return "answers"

    async def queue_is_usable() -> str:
        async with _asking_postgres():
            stall = await queue.stall()
        if stall is None:
            return "usable"
        waits = f"The oldest request waits for {stall.oldest_s:.0f} s." if stall.oldest_s else "No request waits."
        told = f"For {stall.lasts_s:.0f} s nobody could claim a request. {waits} {stall.reason}"
        if stall.lasts_s > MOST_STALL_S:
            raise NotReady(told, stall.remedy)
        return told

    async def keys() -> str:
        async with _asking_postgres(), transaction(engine) as connection:
            registered = await TombstoneRepository(connection).key_fingerprints()
        keyring.check(registered)
        await asyncio.to_thread(key_files_are_there)
        return "complete"

    async def clocks() -> str:
        async with _asking_postgres(), transaction(engine) as connection:
            apart = await clock.apart(connection)
        if apart > clock.MOST_APART_S:
            raise NotReady(f"Postgres' clock is {apart:.1f} s from this machine's.", "Synchronise both (NTP).")
        return f"{apart:.3f} s from Postgres'"

    async def residuals() -> str:
        async with _asking_postgres(), transaction(engine) as connection:
            # Two, because the newest may not have been measured yet.
            made = await VersionRepository(connection).latest(model, limit=2)
            arithmetic = 0.0
            if made and made[0].cause is Cause.BATCH:
                arithmetic = (await BatchRepository(connection).details(made[0].id)).coefficient_residual
        measured = next((one for one in made if one.span_residual is not None), None)
        too_large = []
        if measured is not None and (measured.span_residual or 0.0) > (most := most_span_residual(measured.own_repair)):
            too_large.append(f"span residual {measured.span_residual:.1e} (at most {most:g})")
        if arithmetic > MOST_RESIDUAL:
            too_large.append(f"coefficient residual {arithmetic:.1e} (at most {MOST_RESIDUAL:g})")
        if too_large:
            raise NotReady(
                f"The {' and the '.join(too_large)} of the served weights are more than rounding explains: what was "
                "deleted may still be in them.",
                "Measure again with `./lethe audit recheck`. If it stays so, import a newly trained model with "
                "--exclude-deleted, and report it.",
            )
        # Not which, nor whether there are any yet: that changes with what is deleted.
        return "no more than rounding explains"

    def key_files_are_there() -> None:
        keyring.check_files()
        log_keys.check_files(home / "keys")
        own_slots.check_file()

    async def lease() -> str:
        if condition().phase is Phase.WAITING_FOR_LEASE:
            raise NotReady("Another unlearner holds the lease.", "Stop the other one, or wait until its lease ends.")
        return "held"

    async def unlearner() -> str:
        now = condition()
        if now.phase is not Phase.SERVING:
            raise NotReady(f"The unlearner is {now.phase.value}. {now.reason or ''}".rstrip(), _WAIT)
        return now.phase.value if now.reason is None else f"{now.phase.value}. {now.reason}"

    async def predictions() -> str:
        reader.predict_many(())
        # Not of which version: whoever asks, it would tell whether a request found something to delete.
        return "answered"

    async def device_computes() -> str:
        await asyncio.to_thread(lambda: torch.ones(1, device=device).sum().item())
        return str(device)

    return [
        ("postgres", postgres),
        ("migrations", migrations),
        ("redis", redis_answers),
        ("queue", queue_is_usable),
        ("keys", keys),
        ("clock", clocks),
        ("residuals", residuals),
        ("disk", disk_probe(home)),
        ("device", device_computes),
        ("lease", lease),
        ("unlearner", unlearner),
        ("predictions", predictions),
    ]


_WAIT = "Wait for it; when it stays so, see the log of the service."


@asynccontextmanager
async def _asking_postgres() -> AsyncIterator[None]:
    """Says to the operator what to do when Postgres does not answer; what callers are told is meant for callers."""
    try:
        yield
    except Unavailable as error:
        raise NotReady(
            error.detail, "Start it, and see that DATABASE_URL is right; until then deletions are refused with 503."
        ) from None


def disk_probe(home: Path) -> Probe:
    """Finds out whether `home` has room for what is written next."""

    async def disk() -> str:
        free = (await asyncio.to_thread(shutil.disk_usage, home)).free
        if free < MIN_FREE_BYTES:
            raise NotReady(f"Only {free >> 20} MiB are free below {home}.", "Make room on that disk.")
        return f"{free >> 20} MiB free"

    return disk
