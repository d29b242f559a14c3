"""The audit in figures: one summary, and a series by hour or day. The database views report the same."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from projector.forgetting.status import RepairStatus
from service.db import locks
from service.db.locks import Lock
from service.domain.kinds import RequestKind
from service.domain.states import Guarantee, RequestStatus, noise_in_a_sentence
from service.reports.queries import OpenCounts
from service.reports.schemas import Month, OpenRequest, Percentiles, SeriesPoint, SeriesStep, Summary


async def fold(conn: AsyncConnection) -> None:
    """Fold newly added rows into totals; does nothing if another process is folding."""
    if await locks.take_if_free(conn, Lock.TOTALS):
        await conn.execute(text("SELECT audit_fold()"))


_State = TypeVar("_State", bound=StrEnum)
_DAYS = "(CAST(:since AS date) IS NULL OR day >= :since) AND (CAST(:until AS date) IS NULL OR day < :until)"

_COUNTS = text(f"""
    SELECT status, kind, guarantee, repair, unchanged, sum(requests)::bigint AS requests
    FROM audit_counts WHERE model = :model AND {_DAYS}
    GROUP BY status, kind, guarantee, repair, unchanged HAVING sum(requests) <> 0
""")
_TIMES = text(f"""
    WITH classes AS (
        SELECT step, class, sum(requests) AS requests FROM audit_times
        WHERE model = :model AND step IN ('applied', 'completed') AND {_DAYS} GROUP BY step, class
    ), ranked AS (
        SELECT step, class, sum(requests) OVER (PARTITION BY step ORDER BY class) AS up_to,
               sum(requests) OVER (PARTITION BY step) AS total
        FROM classes
    )
    SELECT step, audit_seconds(min(class) FILTER (WHERE up_to >= 0.50 * total)) AS p50,
           audit_seconds(min(class) FILTER (WHERE up_to >= 0.95 * total)) AS p95,
           audit_seconds(min(class) FILTER (WHERE up_to >= 0.99 * total)) AS p99
    FROM ranked WHERE total > 0 GROUP BY step
""")
_REFUSED = text("""
    SELECT count(*) FROM refused_requests
    WHERE model = :model
      AND (CAST(:since AS date) IS NULL OR refused_at >= CAST(:since AS date)::timestamp AT TIME ZONE 'UTC')
      AND (CAST(:until AS date) IS NULL OR refused_at < CAST(:until AS date)::timestamp AT TIME ZONE 'UTC')
""")
_DEADLINE = text("SELECT deadline_days FROM service_settings")
_OPEN = text("""
    SELECT coalesce(sum(open), 0)::bigint, coalesce(sum(open_past_deadline), 0)::bigint,
           coalesce(sum(open_near_deadline), 0)::bigint, coalesce(sum(open_failed), 0)::bigint,
           coalesce(sum(open_held), 0)::bigint,
           coalesce(extract(epoch FROM now() - min(oldest_open_received_at)), 0)::double precision
    FROM audit_open WHERE model = :model
""")
_OLDEST = text("""
    SELECT id, received_at FROM requests r
    WHERE model = :model AND ended_at IS NULL AND held_at IS NULL
        AND NOT EXISTS (SELECT FROM drills d WHERE d.request_id = r.id)
    ORDER BY received_at LIMIT 1
""")
_MONTHS = text("""
    SELECT month, on_time, late, on_time_share FROM audit_months
    WHERE model = :model AND (CAST(:since AS date) IS NULL OR month >= date_trunc('month', CAST(:since AS date)))
        AND (CAST(:until AS date) IS NULL OR month < :until)
    ORDER BY month
""")
_FIRST = text("SELECT min(day) FROM audit_counts WHERE model = :model")
_RECEIVED = text("""
    SELECT date_trunc('month', day)::date AS month FROM audit_counts
    WHERE model = :model AND (CAST(:since AS date) IS NULL OR day >= :since)
    GROUP BY 1 HAVING sum(requests) > 0 ORDER BY 1
""")
#: The served version at the moment `:at`.
_SERVED = """
    SELECT rank AS rank_after, live_nodes FROM versions
    WHERE model = :model AND committed_at < {at} ORDER BY committed_at DESC LIMIT 1
"""
_MODEL = text("""
    SELECT version, rank, live_nodes, publication_epsilon, publication_delta, publications_planned, publication_mu
    FROM pointers p LEFT JOIN versions v ON v.model = p.model AND v.number = p.version WHERE p.model = :model
""")
_BY_DAY = """
    SELECT day::timestamp AT TIME ZONE 'UTC' AS start, step, class, sum(requests) AS requests FROM audit_times
    WHERE model = :model AND day >= CAST(:first AS timestamptz) AT TIME ZONE 'UTC'
        AND day < CAST(:last AS timestamptz) AT TIME ZONE 'UTC' GROUP BY day, step, class
"""
_BY_HOUR = " UNION ALL ".join(
    f"""
    SELECT date_trunc('hour', {step}_at, 'UTC') AS start, '{step}' AS step,
           audit_class({step}_at - received_at) AS class, count(*) AS requests FROM requests r
    WHERE model = :model AND {step}_at >= :first AND {step}_at < :last
        AND NOT EXISTS (SELECT FROM drills d WHERE d.request_id = r.id)
    GROUP BY 1, 3
    """
    for step in ("received", "applied", "completed", "failed")
)
_SERIES = """
    WITH points AS (
        SELECT start, start + CAST(:width AS interval) AS stop
        FROM generate_series(CAST(:first AS timestamptz), CAST(:last AS timestamptz) - interval '1 us',
                             CAST(:width AS interval), 'UTC') start
    ), counted AS (
        {counted}
    ), stepped AS (
        SELECT start, sum(requests) FILTER (WHERE step = 'received') AS received,
               sum(requests) FILTER (WHERE step = 'applied') AS applied,
               sum(requests) FILTER (WHERE step = 'completed') AS completed,
               sum(requests) FILTER (WHERE step = 'failed') AS failed
        FROM counted GROUP BY start
    ), ranked AS (
        SELECT start, class, sum(requests) OVER (PARTITION BY start ORDER BY class) AS up_to,
               sum(requests) OVER (PARTITION BY start) AS total
        FROM counted WHERE step = 'completed'
    ), timed AS (
        SELECT start, audit_seconds(min(class) FILTER (WHERE up_to >= 0.50 * total)) AS median,
               audit_seconds(min(class) FILTER (WHERE up_to >= 0.95 * total)) AS p95
        FROM ranked WHERE total > 0 GROUP BY start
    ), bounds AS (
        SELECT date_bin(CAST(:width AS interval), v.committed_at, CAST(:first AS timestamptz)) AS start,
               max(CASE WHEN v.repair_version <> v.number THEN (
                       SELECT e.distance_bound_after_relative FROM versions e
                       WHERE e.model = v.model AND e.number = v.repair_version
                   ) ELSE v.distance_bound_after_relative END) AS bound
        FROM versions v
        WHERE v.model = :model AND v.cause = 'batch' AND v.committed_at >= :first AND v.committed_at < :last GROUP BY 1
    )
    SELECT points.start, coalesce(received, 0)::bigint AS received, coalesce(applied, 0)::bigint AS applied,
           coalesce(completed, 0)::bigint AS completed, coalesce(failed, 0)::bigint AS failed,
           median AS median_seconds_to_completed, p95 AS p95_seconds_to_completed, rank_after, live_nodes,
           bound AS max_distance_bound_after_relative
    FROM points LEFT JOIN stepped USING (start) LEFT JOIN timed USING (start) LEFT JOIN bounds USING (start)
    LEFT JOIN LATERAL ({served}) served ON true ORDER BY points.start
"""


async def summary(
    conn: AsyncConnection,
    model: str,
    since: date | None = None,
    until: date | None = None,
) -> Summary:
    """Return a model's audit in figures; `since` and `until` are days in UTC, the second excluded."""
    days = {"model": model, "since": since, "until": until}
    counts = (await conn.execute(_COUNTS, days)).all()
    times = {row.step: Percentiles(row.p50, row.p95, row.p99) for row in await conn.execute(_TIMES, days)}
    refused = (await conn.execute(_REFUSED, days)).scalar_one()
    still_open = await open_counts(conn, model)
    oldest = (await conn.execute(_OLDEST, {"model": model})).one_or_none()
    served = (await conn.execute(_MODEL, {"model": model})).one_or_none()
    changed, unchanged = (sum(row.requests for row in counts if row.unchanged is is_so) for is_so in (False, True))
    deletions = [row for row in counts if not RequestKind(row.kind).rules.joins]
    completed: Counter[str | None] = Counter()
    for row in deletions:
        if row.status == RequestStatus.COMPLETED:
            completed[row.guarantee] += row.requests
    nothing = Percentiles(None, None, None)
    return Summary(
        model=model,
        since=since,
        until=until,
        requests=sum(row.requests for row in counts),
        by_status=_by(counts, "status", RequestStatus),
        by_kind=_by(counts, "kind", RequestKind),
        by_guarantee=_by(deletions, "guarantee", Guarantee),
        by_repair=_by(counts, "repair", RepairStatus),
        completed_deletions=completed.total() - completed[None],
        completed_retrained=completed[Guarantee.RETRAINED],
        completed_without_work=completed[None],
        refused=refused,
        open=still_open.open,
        oldest_open=None if oldest is None else OpenRequest(oldest.id, oldest.received_at),
        open_past_deadline=still_open.past_deadline,
        open_near_deadline=still_open.near_deadline,
        open_failed=still_open.failed,
        open_held=still_open.held,
        deadline_days=(await conn.execute(_DEADLINE)).scalar_one(),
        months=[Month(*row) for row in await conn.execute(_MONTHS, days)],
        seconds_to_applied=times.get("applied", nothing),
        seconds_to_completed=times.get("completed", nothing),
        unchanged_projection_share=unchanged / (changed + unchanged) if changed + unchanged else None,
        model_version=None if served is None else served.version,
        rank=None if served is None else served.rank,
        live_nodes=None if served is None else served.live_nodes,
        noise=None if served is None else noise_in_a_sentence(served._asdict()),
    )


async def first_received(conn: AsyncConnection, model: str) -> date | None:
    """Return the day (UTC) of the first request; None without one."""
    first: date | None = await conn.scalar(_FIRST, {"model": model})
    return first


async def months_received(conn: AsyncConnection, model: str, since: date | None = None) -> list[date]:
    """Return the first day of every month (UTC) with received requests, oldest first."""
    return list((await conn.execute(_RECEIVED, {"model": model, "since": since})).scalars())


async def open_counts(conn: AsyncConnection, model: str) -> OpenCounts:
    """Return a model's open requests as counts."""
    return OpenCounts(*(await conn.execute(_OPEN, {"model": model})).one())


async def series(
    conn: AsyncConnection, model: str, since: datetime, until: datetime, step: SeriesStep
) -> list[SeriesPoint]:
    """Return a point for every hour or day (UTC), from that of `since` to the last that begins before `until`."""
    first, width = _begin(since, step), timedelta(days=1) if step is SeriesStep.DAY else timedelta(hours=1)
    begun = _begin(until, step)
    values = {
        "model": model,
        "first": first,
        "last": begun if begun == until else begun + width,
        "width": width,
    }
    counted = _BY_DAY if step is SeriesStep.DAY else _BY_HOUR
    query = _SERIES.format(counted=counted, served=_SERVED.format(at="points.stop"))
    return [SeriesPoint(**row._mapping) for row in await conn.execute(text(query), values)]


def _begin(moment: datetime, step: SeriesStep) -> datetime:
    whole = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return whole.replace(hour=0) if step is SeriesStep.DAY else whole


def _by(counts: Sequence[Row[Any]], name: str, states: type[_State]) -> Mapping[_State, int]:
    found: Counter[str] = Counter()
    for row in counts:
        found[getattr(row, name)] += row.requests
    return {state: found[state.value] for state in states}
