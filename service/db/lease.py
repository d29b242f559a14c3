"""The right to write one model: a row timed by Postgres's clock, with a number that grows at each acquisition.

The holder publishes its status in the row for other processes.
"""

import math
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, literal, not_, null, or_, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from projector.forgetting.status import RepairProgress
from service.db.clock import boottime
from service.db.tables import LeaseRow
from service.db.transactions import fenced_transaction, held, lost, transaction
from service.domain.lease_report import Check, Condition, Holder, LeaseReport, Phase
from service.domain.records import Lease
from service.errors import StateMismatch

#: Share of a lease's time after which its holder must not start a write.
_USABLE_SHARE = 2 / 3
#: Seconds that a holder must serve before the count of failures is reset.
STEADY_S = 60.0
#: Maximum stored characters of a text; it is meant for people.
_LONGEST = 2_000


class AnotherHome(StateMismatch):
    """The model is served in another LETHE_HOME."""

    def __init__(self) -> None:
        super().__init__(
            "The database belongs to another LETHE_HOME. This one may be a copy of it, or was restored from a backup. "
            "Processes in the other could still predict from what is deleted here.",
            "Use the other LETHE_HOME. To use this one from now on, stop everything that runs in the other for good, "
            "then run `./lethe recover --take-over` here.",
        )


async def home_of(connection: AsyncConnection, name: str) -> str | None:
    """Return the id of the LETHE_HOME that serves the model, or None."""
    return await connection.scalar(select(LeaseRow.home).where(LeaseRow.name == name))


async def require_home(connection: AsyncConnection, home: str | None) -> None:
    """Raise `AnotherHome` if the database belongs to a LETHE_HOME with another id than `home`."""
    another = select(LeaseRow.name).where(LeaseRow.home.is_not(None), LeaseRow.home.is_distinct_from(home))
    if await connection.scalar(another.limit(1)) is not None:
        raise AnotherHome


async def claim_home(engine: AsyncEngine, lease: Lease, home: str) -> None:
    """Record the id of the LETHE_HOME that serves the model, unless one is recorded.

    For a holder that has checked that the database and its own home agree. Raises `Unavailable` and `LeaseLost`.
    """
    unclaimed = update(LeaseRow).where(held(lease), LeaseRow.home.is_(None))
    async with fenced_transaction(engine, lease) as conn:
        await conn.execute(unclaimed.values(home=home))


async def acquire(
    engine: AsyncEngine,
    name: str,
    holder: str,
    ttl_seconds: float,
    *,
    above: int = 0,
    after_failure: bool = False,
    home: str | None = None,
    take_over: bool = False,
) -> Lease | None:
    """Take the lease `name` for `ttl_seconds`; return None while another holder has it.

    Its fencing number exceeds all earlier ones, also the same holder's, and `above`, since a restored database has
    lost some. A failure is counted if another holder ended without releasing the lease, or if the caller knows of one
    (`after_failure`). An outage that a holder waited out is not counted.

    `home` is the id of the holder's LETHE_HOME. With `take_over` the model is served there from now on; otherwise from
    the time the holder claims it.

    Waits for a write of the former holder that is still being committed.

    Raises `Unavailable`, and `AnotherHome` if the model is served in another home.
    """
    asked_at = boottime()
    expires_at = func.clock_timestamp() + literal(timedelta(seconds=ttl_seconds))
    begun = {"holder": holder, "held_since": func.clock_timestamp(), "expires_at": expires_at}
    begun |= _columns(LeaseReport(Condition(Phase.LOADING)))
    is_own: ColumnElement[bool] = true()
    if home is not None:
        if take_over:
            begun["home"] = home
        else:
            is_own = or_(LeaseRow.home.is_(None), LeaseRow.home == home)
    taken = insert(LeaseRow).values(name=name, fencing=above + 1, **begun)
    taken = taken.on_conflict_do_update(
        index_elements=[LeaseRow.name],
        set_={"fencing": func.greatest(LeaseRow.fencing, above) + 1, **begun, **_failures(holder, after_failure)},
        where=and_(is_own, or_(LeaseRow.expires_at <= func.clock_timestamp(), LeaseRow.holder == holder)),
    )
    async with transaction(engine) as conn:
        fencing = await conn.scalar(taken.returning(LeaseRow.fencing))
        if fencing is None and not await conn.scalar(select(is_own).where(LeaseRow.name == name)):
            raise AnotherHome
    if fencing is None:
        return None
    return Lease(name, holder, fencing, ttl_seconds, asked_at + ttl_seconds * _USABLE_SHARE)


async def renew(engine: AsyncEngine, lease: Lease, report: LeaseReport | None = None) -> Lease:
    """Renew `lease` for its full time from now, and publish its holder's status; None keeps the present status.

    Raises `LeaseLost` if it has expired, and `Unavailable`.
    """
    asked_at = boottime()
    expires_at = func.clock_timestamp() + literal(timedelta(seconds=lease.ttl_seconds))
    values: dict[str, Any] = {"expires_at": expires_at} | ({} if report is None else _columns(report))
    renewed = update(LeaseRow).where(held(lease)).values(values).returning(LeaseRow.fencing)
    async with transaction(engine) as conn:
        if await conn.scalar(renewed) is None:
            raise lost(lease)
    give_up_at = asked_at + lease.ttl_seconds * _USABLE_SHARE
    return Lease(lease.name, lease.holder, lease.fencing, lease.ttl_seconds, give_up_at)


async def release(engine: AsyncEngine, lease: Lease) -> None:
    """Release the lease for another holder; does nothing if it is lost already. Raises `Unavailable`."""
    async with transaction(engine) as conn:
        report = _columns(LeaseReport(Condition(Phase.STOPPED)))
        await conn.execute(update(LeaseRow).where(held(lease)).values(expires_at=func.clock_timestamp(), **report))


async def holder(conn: AsyncConnection, name: str) -> Holder | None:
    """Return the status of the last holder of the lease `name`; None if nobody has ever held it."""
    row = LeaseRow.__table__.c
    query = select(
        *(row.phase, row.reason, row.repair_progress, row.device, row.checks, row.failures),
        (row.expires_at > func.clock_timestamp()).label("is_held"),
        _seconds_since(row.served_at).label("served_s"),
        _seconds_since(row.failing_since).label("failing_s"),
    ).where(row.name == name)
    found = (await conn.execute(query)).one_or_none()
    if found is None:
        return None
    report = LeaseReport(
        Condition(Phase(found.phase), found.reason),
        None if found.repair_progress is None else RepairProgress(**found.repair_progress),
        found.device,
        tuple(Check(**check) for check in found.checks),
    )
    served_s = None if found.served_s is None else float(found.served_s)
    return Holder(report, found.is_held, served_s, found.failures, float(found.failing_s or 0.0))


def _failures(holder: str, after_failure: bool) -> dict[str, Any]:
    """Return the failure columns that a new holder writes, given how the last one ended."""
    was_stopped = LeaseRow.phase == Phase.STOPPED.value
    failed = true() if after_failure else and_(not_(was_stopped), LeaseRow.holder != holder)
    # The first failure dates from when the last serving holder last served.
    first = func.coalesce(LeaseRow.failing_since, LeaseRow.served_at, func.clock_timestamp())
    return {
        "failures": case((failed, LeaseRow.failures + 1), (was_stopped, 0), else_=LeaseRow.failures),
        "failing_since": case((failed, first), (was_stopped, null()), else_=LeaseRow.failing_since),
    }


def _seconds_since(moment: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.extract("epoch", func.clock_timestamp() - moment)


def _columns(report: LeaseReport) -> dict[str, Any]:
    """Convert a holder's status to columns. No text in it can make a renewal fail."""
    columns: dict[str, Any] = {
        "phase": report.condition.phase.value,
        "reason": None if report.condition.reason is None else _storable(report.condition.reason),
        "repair_progress": None if report.repair is None else _progress(report.repair),
        "device": report.device,
        "checks": [asdict(check) | {"detail": _storable(check.detail)} for check in report.checks],
        "serving_since": null(),
    }
    if report.condition.phase is Phase.SERVING:
        # After this time the start has succeeded, and a later failure counts as the first.
        is_steady = LeaseRow.serving_since < func.clock_timestamp() - literal(timedelta(seconds=STEADY_S))
        columns |= {
            "served_at": func.clock_timestamp(),
            "serving_since": func.coalesce(LeaseRow.serving_since, func.clock_timestamp()),
            "failures": case((is_steady, 0), else_=LeaseRow.failures),
            "failing_since": case((is_steady, null()), else_=LeaseRow.failing_since),
        }
    return columns


def _progress(repair: RepairProgress) -> dict[str, Any]:
    """Convert to JSON, which has no infinite or undefined numbers."""
    bound = repair.bound_relative
    return asdict(repair) | {"bound_relative": bound if bound is not None and math.isfinite(bound) else None}


def _storable(said: str) -> str:
    """Remove characters that a file name may contain but a Postgres text may not."""
    return said[:_LONGEST].encode("utf-8", "replace").decode().replace("\0", "")
