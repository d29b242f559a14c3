"""Imports and recoveries say what rank and how many nodes they left, and the summary reads it from there."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TABLES = ("imports", "recoveries")


def _percentile(name: str, step: str, share: float) -> str:
    return (
        f"audit_seconds(min(class) FILTER (WHERE step = '{step}' AND up_to >= {share} * of_step))"
        f" AS {name}_seconds_to_{step}"
    )


def _percentiles(*shares: tuple[str, float]) -> str:
    return ", ".join(_percentile(name, step, share) for step in ("applied", "completed") for name, share in shares)


_SHARES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))

_SUMMARY = """
        WITH classes AS (
            SELECT model, step, class, sum(requests) AS requests FROM audit_times
            WHERE step IN ('applied', 'completed') GROUP BY model, step, class
        ), ranked AS (
            SELECT model, step, class, sum(requests) OVER (PARTITION BY model, step ORDER BY class) AS up_to,
                   sum(requests) OVER (PARTITION BY model, step) AS of_step
            FROM classes
        ), timed AS (
            SELECT model, {percentiles} FROM ranked WHERE of_step > 0 GROUP BY model
        ), counted AS (
            SELECT model, sum(requests) AS requests,
                   sum(requests) FILTER (WHERE status = 'queued') AS queued,
                   sum(requests) FILTER (WHERE status = 'applied') AS applied,
                   sum(requests) FILTER (WHERE status = 'completed') AS completed,
                   sum(requests) FILTER (WHERE status = 'failed') AS failed,
                   sum(requests) FILTER (WHERE status = 'cancelled') AS cancelled,
                   sum(requests) FILTER (WHERE guarantee = 'span') AS guarantee_span,
                   sum(requests) FILTER (WHERE guarantee = 'retrained') AS guarantee_retrained,
                   sum(requests) FILTER (WHERE guarantee = 'graph_only') AS guarantee_graph_only,
                   sum(requests) FILTER (WHERE repair = 'pending') AS repair_pending,
                   sum(requests) FILTER (WHERE repair = 'not_converged') AS repair_not_converged,
                   coalesce(sum(requests) FILTER (WHERE unchanged), 0)
                       / nullif(sum(requests) FILTER (WHERE unchanged IS NOT NULL), 0) AS unchanged_projection_share
            FROM audit_counts GROUP BY model
        ), opened AS (
            SELECT model, min(received_at) AS oldest_open_received_at,
                   count(*) FILTER (WHERE received_at < now() - interval '30 days') AS open_past_30_days
            FROM requests WHERE status IN ('queued', 'applied') GROUP BY model
        )
        SELECT p.model, p.version AS model_version, b.rank_after AS rank, b.live_nodes,
               coalesce(c.requests, 0)::bigint AS requests, coalesce(c.queued, 0)::bigint AS queued,
               coalesce(c.applied, 0)::bigint AS applied, coalesce(c.completed, 0)::bigint AS completed,
               coalesce(c.failed, 0)::bigint AS failed, coalesce(c.cancelled, 0)::bigint AS cancelled,
               coalesce(c.guarantee_span, 0)::bigint AS guarantee_span,
               coalesce(c.guarantee_retrained, 0)::bigint AS guarantee_retrained,
               coalesce(c.guarantee_graph_only, 0)::bigint AS guarantee_graph_only,
               coalesce(c.repair_pending, 0)::bigint AS repair_pending,
               coalesce(c.repair_not_converged, 0)::bigint AS repair_not_converged,
               c.unchanged_projection_share::double precision, o.oldest_open_received_at,
               coalesce(o.open_past_30_days, 0) AS open_past_30_days,
               t.p50_seconds_to_applied, t.p95_seconds_to_applied, t.p99_seconds_to_applied,
               t.p50_seconds_to_completed, t.p95_seconds_to_completed, t.p99_seconds_to_completed
        FROM pointers p LEFT JOIN counted c USING (model) LEFT JOIN timed t USING (model)
        LEFT JOIN opened o USING (model) LEFT JOIN LATERAL (
            {served}
        ) b ON true
"""
_OF_BATCHES = """
            SELECT rank_after, live_nodes FROM batches WHERE batches.model = p.model
            ORDER BY committed_at DESC LIMIT 1
"""
_OF_ALL = """
            SELECT rank_after, live_nodes FROM (
                (SELECT committed_at, rank_after, live_nodes FROM batches
                 WHERE batches.model = p.model ORDER BY committed_at DESC LIMIT 1)
                UNION ALL
                (SELECT committed_at, rank_after, coalesce(live_nodes, nodes - excluded_nodes) FROM imports
                 WHERE imports.model = p.model AND committed_at IS NOT NULL ORDER BY committed_at DESC LIMIT 1)
                UNION ALL
                (SELECT committed_at, rank_after, live_nodes FROM recoveries
                 WHERE recoveries.model = p.model ORDER BY committed_at DESC LIMIT 1)
            ) made ORDER BY committed_at DESC LIMIT 1
"""


def upgrade() -> None:
    """Add the columns, null for those that were before; have the summary read all three tables."""
    for table in _TABLES:
        op.execute(
            f"ALTER TABLE {table} ADD COLUMN rank_after integer, ADD COLUMN live_nodes integer,"
            f" ADD CONSTRAINT {table}_left_check CHECK (rank_after >= 0 AND live_nodes >= 0)"
        )
    _replace(_OF_ALL)


def downgrade() -> None:
    """Undo it."""
    _replace(_OF_BATCHES)
    for table in _TABLES:
        op.execute(f"ALTER TABLE {table} DROP COLUMN rank_after, DROP COLUMN live_nodes")


def _replace(served: str) -> None:
    view = _SUMMARY.format(percentiles=_percentiles(*_SHARES), served=served)
    op.execute(f"CREATE OR REPLACE VIEW audit_summary AS {view}")
