"""The stored totals of the audit against a count of every request."""

from collections import Counter
from typing import Any

#: Requests that are not drills, for a FROM.
BY_PEOPLE = "(SELECT * FROM requests WHERE id NOT IN (SELECT request_id FROM drills)) requests"

COUNTED = """
    SELECT r.model, (received_at AT TIME ZONE 'UTC')::date, status, kind, r.guarantee, r.repair,
           CASE WHEN applied_at IS NOT NULL THEN directions_removed = 0 END,
           CASE WHEN cancelled_at IS NULL THEN coalesce(completed_at, handled_at) > due_at END AS late, count(*)
    FROM requests r LEFT JOIN versions v ON v.id = batch_id WHERE r.id NOT IN (SELECT request_id FROM drills)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
"""


TOTALLED = """
    SELECT model, day, status, kind, guarantee, repair, unchanged, late, sum(requests)::bigint FROM audit_counts
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 HAVING sum(requests) <> 0
"""


TIMED = " UNION ALL ".join(
    f"""
    SELECT model, ({step}_at AT TIME ZONE 'UTC')::date, '{step}', audit_class({step}_at - received_at), count(*)
    FROM {BY_PEOPLE} WHERE {step}_at IS NOT NULL GROUP BY 1, 2, 4
    """
    for step in ("received", "applied", "completed", "failed")
)


TIMES_TOTALLED = """
    SELECT model, day, step, class, sum(requests)::bigint FROM audit_times GROUP BY 1, 2, 3, 4 HAVING sum(requests) <> 0
"""


SEARCHED = """
    SELECT request_id, api_key_id, received_at, status, kind, guarantee, repair, injected_norm_before,
           injected_norm_after, distance_bound_before_relative, distance_bound_after_relative, span_residual, due_at,
           ended_at, ended_late
    FROM request_search
"""


SEARCHABLE = """
    SELECT r.id, api_key_id, received_at, status, kind, r.guarantee, r.repair, injected_norm_before,
           injected_norm_after, v.distance_bound_before_relative,
           CASE WHEN e.id IS NULL THEN v.distance_bound_after_relative ELSE e.distance_bound_after_relative END,
           v.span_residual, due_at, coalesce(completed_at, cancelled_at, handled_at),
           CASE WHEN cancelled_at IS NULL THEN coalesce(completed_at, handled_at) > due_at END AS late
    FROM requests r LEFT JOIN request_audits a ON request_id = r.id LEFT JOIN versions v ON v.id = a.batch_id
    LEFT JOIN versions e ON e.model = v.model AND e.number = v.repair_version
"""


async def total(world: Any, statement: str) -> Counter[Any]:
    return Counter(tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in await world.rows(statement))


async def assert_totals_are_right(world: Any) -> None:
    assert await total(world, SEARCHED) == await total(world, SEARCHABLE)
    assert await total(world, TOTALLED) == await total(world, COUNTED)
    assert await total(world, TIMES_TOTALLED) == await total(world, TIMED)
