"""Readiness: check each essential part separately, and name those that fail."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from service.access.key_disposal import enter
from service.access.keyring import Keyring
from service.db import clock, lease, schema
from service.db.engine import Connection, Engine
from service.db.locks import Lock
from service.db.refusal import damage_met
from service.db.transactions import Locked, transaction
from service.domain.figures import MOST_RESIDUAL
from service.domain.lease_report import Check, Holder, Phase
from service.errors import DatabaseDamaged, LetheError, Unavailable
from service.observability.metrics import most_span_residual
from service.predictions.version_rows import BatchRepository
from service.requests.delivery import MOST_UNCLAIMED_S
from service.requests.lookup import RequestRepository
from service.requests.tombstones import TombstoneRepository

#: Seconds for which a result is reused, so that frequent checks do not load the servers.
_FRESH_FOR_S = 0.5

#: Returns the state found; raises LetheError if it is bad.
Probe = Callable[[], Awaitable[str]]
#: Probes with their names, in reporting order.
Probes = Sequence[tuple[str, Probe]]


class NotReady(LetheError):
    """A probe found a problem."""


async def _none() -> tuple[Check, ...]:
    return ()


class Readiness:
    """Runs all probes concurrently, each within a time limit; simultaneous callers share one run.

    A result is reused for a while, but not after `state`, which is free to read, has changed. So callers that wait for
    the model to load learn of it immediately.
    """

    def __init__(
        self,
        probes: Probes,
        *,
        timeout_s: float,
        state: Callable[[], object],
        others: Callable[[], Awaitable[tuple[Check, ...]]] = _none,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others` returns the checks of another process, reported after those of the probes."""
        self._probes = tuple(probes)
        self._timeout_s = timeout_s
        self._state = state
        self._others = others
        self._clock = clock
        self._running = asyncio.Lock()
        self._checked_at = float("-inf")
        self._checked_in: object = None
        self._checks: tuple[Check, ...] = ()

    async def __call__(self) -> tuple[Check, ...]:
        """Return one check per probe, in their order, then those of the other process."""
        async with self._running:
            now = self._state()
            if now != self._checked_in or self._clock() - self._checked_at > _FRESH_FOR_S:
                own, others = await asyncio.gather(
                    asyncio.gather(*(self._check(*probe) for probe in self._probes)), self._others()
                )
                self._checks = (*own, *others)
                self._checked_at = self._clock()
                # The state before the probes ran: if it changed meanwhile, they run again.
                self._checked_in = now
            return self._checks

    async def _check(self, name: str, probe: Probe) -> Check:
        try:
            return Check(name, True, await asyncio.wait_for(probe(), self._timeout_s))
        except LetheError as error:
            return Check(name, False, error.detail, error.remedy)
        except TimeoutError:
            return Check(name, False, f"No answer within {self._timeout_s:g} s.", "Check whether it is overloaded.")
        except Exception as error:  # noqa: BLE001 - any error here means that this part is not ready
            return Check(name, False, f"It failed with {type(error).__name__}.", "Check the log of the service.")


#: Free bytes below which a new version, and with it the next deletion, might not fit.
MIN_FREE_BYTES = 256 << 20
#: Seconds without a serving unlearner before the check fails: restarts and takeovers are shorter.
MOST_AWAY_S = 60.0

#: The search for orphaned keys holds the lock briefly, after waiting for it for at most a second.
_INTAKE_PATIENCE = "1500ms"

_WAIT = "Wait. If this persists, check the log of the service."


def api_probes(
    *,
    home: Path,
    model: str,
    engine: Engine,
    redis: Callable[[], Awaitable[None]],
    keyring: Keyring,
    key_files: Callable[[], None],
    predictions: Callable[[], object],
    max_wait_s: float,
) -> Probes:
    """Return the checks that an API process makes by itself.

    `redis` pings Redis, `key_files` checks for the key files that the process uses, and `predictions` makes a
    prediction; each raises LetheError on failure. A batch has `max_wait_s` to fill.
    """

    #: `time.monotonic()` of the first of the consecutive checks that found damage.
    damaged_at: float | None = None

    async def postgres() -> str:
        nonlocal damaged_at
        async with _asking_postgres():
            async with transaction(engine) as connection:
                damaged = await damage_met(connection)
            if damaged is None:
                damaged_at = None
                return "answers"
            damaged_at = damaged_at or time.monotonic()
            if time.monotonic() - damaged_at > MOST_AWAY_S:
                raise damaged
            return f"answers. {damaged.detail}"

    async def migrations() -> str:
        async with _asking_postgres(), transaction(engine) as connection:
            found = await schema.revision_of(connection)
        needed = schema.head()
        if found != needed:
            raise NotReady(f"The database is at revision {found}; this version needs {needed}.", "Run ./lethe migrate.")
        return f"at revision {found}"

    async def intake_is_open() -> str:
        async with _asking_postgres():
            try:
                async with transaction(engine) as connection:
                    await connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_INTAKE_PATIENCE}'")
                    await enter(connection)
            except Locked:
                raise NotReady(
                    f"Another transaction holds {Lock.INTAKE}, so no deletion can be accepted.",
                    "Find it in Postgres' pg_locks and pg_stat_activity, and end it with pg_terminate_backend().",
                ) from None
        return "open"

    async def redis_answers() -> str:
        try:
            await redis()
        except Unavailable as error:
            raise NotReady(error.detail, error.remedy) from None
        return "answers"

    async def keys() -> str:
        async with _asking_postgres(), transaction(engine) as connection:
            registered = await TombstoneRepository(connection).key_fingerprints()
        keyring.check(registered)
        await asyncio.to_thread(key_files)
        return "complete"

    async def clocks() -> str:
        async with _asking_postgres(), transaction(engine) as connection:
            apart = await clock.apart(connection)
        if apart > clock.MOST_APART_S:
            raise NotReady(f"Postgres' clock is {apart:.1f} s from this machine's.", "Synchronise both (NTP).")
        return f"{apart:.3f} s from Postgres'"

    async def residuals() -> str:
        async with _asking_postgres(), transaction(engine) as connection:
            too_large = await residuals_too_large(connection, model)
        if too_large:
            # Only readers of the audit may know by how much, if weights are published with noise.
            raise NotReady(
                f"The {' and the '.join(too_large)} in the served weights, more than rounding explains. Deleted "
                "data may still be in them.",
                "Measure again with `./lethe audit recheck`. If this persists, import a newly trained model with "
                "--exclude-deleted and report the bug.",
            )
        # Do not reveal which, or whether any exist: that changes with deletions.
        return "no more than rounding explains"

    async def oldest_request() -> str:
        async with _asking_postgres(), transaction(engine) as connection:
            oldest = await RequestRepository(connection).oldest(model)
        if oldest is not None and oldest.is_stuck(MOST_UNCLAIMED_S + max_wait_s):
            raise NotReady(
                f"The oldest request has been stuck for {oldest.waits_s:.0f} s.",
                "Check `queue`, `lease` and `unlearner` here, and the unlearner's log. If they show nothing, "
                "make sure that no other program uses this Redis, and check the database for damage.",
            )
        return "no request is stuck"

    async def disk() -> str:
        free = (await asyncio.to_thread(shutil.disk_usage, home)).free
        if free < MIN_FREE_BYTES:
            raise NotReady(f"Only {free >> 20} MiB are free below {home}.", "Free space on that disk.")
        return f"{free >> 20} MiB free"

    async def predictions_are_answered() -> str:
        predictions()
        # Without the version: it would reveal whether a request found something to delete.
        return "answered"

    return [
        ("postgres", postgres),
        ("migrations", migrations),
        ("intake", intake_is_open),
        ("redis", redis_answers),
        ("keys", keys),
        ("clock", clocks),
        ("residuals", residuals),
        ("oldest_request", oldest_request),
        ("disk", disk),
        ("predictions", predictions_are_answered),
    ]


async def residuals_too_large(connection: Connection, model: str) -> list[str]:
    """Return the residuals of the served model that exceed rounding, as phrases with their limits."""
    measured, arithmetic = await BatchRepository(connection).newest_residuals(model)
    too_large = []
    if measured is not None and (measured.span_residual or 0.0) > (most := most_span_residual(measured.own_repair)):
        too_large.append(f"span residual is above {most:g}")
    if arithmetic is not None and arithmetic > MOST_RESIDUAL:
        too_large.append(f"coefficient residual is above {MOST_RESIDUAL:g}")
    return too_large


def holder_probes(engine: Engine, model: str) -> Probes:
    """Return checks of the lease that an unlearner works; one that restarts may take `MOST_AWAY_S`."""

    async def held() -> str:
        found = await _holder(engine, model)
        if found.is_held:
            return "held"
        text = f"No unlearner holds the lease.{_served(found)}"
        if _is_away(found):
            raise NotReady(text, "Start one, or check its log.")
        return text

    async def unlearns() -> str:
        found = await _holder(engine, model)
        phase, reason = found.report.condition.phase, found.report.condition.reason
        text = f"The unlearner is {phase.value}. {reason or ''}".rstrip()
        if not found.is_held:
            text = f"No unlearner is running.{_served(found)}"
        if found.failures > 1 and found.failing_s > MOST_AWAY_S:
            raise NotReady(
                f"The unlearner has failed {found.failures} times in {found.failing_s:.0f} s, and has not served for "
                f"{lease.STEADY_S:.0f} s since. {text}",
                "Check its log. This check passes once it has served for that long.",
            )
        if found.is_held and phase is Phase.SERVING:
            return phase.value if reason is None else f"{phase.value}. {reason}"
        if _is_away(found) or (found.is_held and phase in (Phase.FAILED, Phase.HELD_UP)):
            raise NotReady(text, _WAIT)
        return text

    return [("lease", held), ("unlearner", unlearns)]


async def reported_checks(engine: Engine, model: str) -> tuple[Check, ...]:
    """Return the unlearner's own checks; none if it is gone, or during an outage."""
    try:
        found = await _holder(engine, model)
    except NotReady:
        return ()
    return found.report.checks if found.is_held else ()


async def _holder(engine: Engine, model: str) -> Holder:
    async with _asking_postgres(), transaction(engine) as connection:
        found = await lease.holder(connection, model)
    if found is None:
        raise NotReady("No unlearner has ever held the lease.", "Start one, or wait for it to start.")
    return found


def _is_away(found: Holder) -> bool:
    return found.served_s is None or found.served_s > MOST_AWAY_S


def _served(found: Holder) -> str:
    return "" if found.served_s is None else f" One last served {found.served_s:.0f} s ago."


@asynccontextmanager
async def _asking_postgres() -> AsyncIterator[None]:
    """Report a Postgres outage as a failing check, without Postgres's own message: anybody may read the checks."""
    try:
        yield
    except DatabaseDamaged as error:
        raise NotReady(error.detail, error.remedy) from None
    except Unavailable as error:
        raise NotReady(error.detail, f"{error.remedy} Until then, deletions are refused with 503.") from None
