"""Indexes under searches by what was measured, and views of the audit for tools that read SQL."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_FIGURES = {
    "request_audits": ("injected_norm_before", "injected_norm_after"),
    "batches": ("distance_bound_before_relative", "distance_bound_after_relative", "span_residual"),
}
_INDEXES = {
    f"{table}_{figure}": f"{table} ({figure}) WHERE {figure} IS NOT NULL"
    for table, figures in _FIGURES.items()
    for figure in figures
} | {
    "requests_newest_by_kind": "requests (kind, received_at, id)",
    "requests_ended_as": "requests (repair, guarantee, kind, received_at, id) WHERE repair IS NOT NULL",
}


def _percentile(name: str, step: str, share: float) -> str:
    return (
        f"audit_seconds(min(class) FILTER (WHERE step = '{step}' AND up_to >= {share} * of_step))"
        f" AS {name}_seconds_to_{step}"
    )


def _percentiles(*shares: tuple[str, float]) -> str:
    return ", ".join(_percentile(name, step, share) for step in ("applied", "completed") for name, share in shares)


_SHARES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))

VIEWS = {
    "audit_summary": f"""
        WITH classes AS (
            SELECT model, step, class, sum(requests) AS requests FROM audit_times
            WHERE step IN ('applied', 'completed') GROUP BY model, step, class
        ), ranked AS (
            SELECT model, step, class, sum(requests) OVER (PARTITION BY model, step ORDER BY class) AS up_to,
                   sum(requests) OVER (PARTITION BY model, step) AS of_step
            FROM classes
        ), timed AS (
            SELECT model, {_percentiles(*_SHARES)} FROM ranked WHERE of_step > 0 GROUP BY model
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
            SELECT rank_after, live_nodes FROM batches WHERE batches.model = p.model
            ORDER BY committed_at DESC LIMIT 1
        ) b ON true
    """,
    "audit_series": """
        WITH classes AS (
            SELECT model, day, step, class, sum(requests) AS requests FROM audit_times GROUP BY model, day, step, class
        ), ranked AS (
            SELECT *, sum(requests) OVER (PARTITION BY model, day, step ORDER BY class) AS up_to,
                   sum(requests) OVER (PARTITION BY model, day, step) AS of_step
            FROM classes
        )
        SELECT model, day, day::timestamp AT TIME ZONE 'UTC' AS start,
               coalesce(sum(requests) FILTER (WHERE step = 'received'), 0)::bigint AS received,
               coalesce(sum(requests) FILTER (WHERE step = 'applied'), 0)::bigint AS applied,
               coalesce(sum(requests) FILTER (WHERE step = 'completed'), 0)::bigint AS completed,
               coalesce(sum(requests) FILTER (WHERE step = 'failed'), 0)::bigint AS failed,
               audit_seconds(min(class) FILTER (WHERE step = 'completed' AND up_to >= 0.50 * of_step))
                   AS median_seconds_to_completed,
               audit_seconds(min(class) FILTER (WHERE step = 'completed' AND up_to >= 0.95 * of_step))
                   AS p95_seconds_to_completed
        FROM ranked WHERE of_step > 0 GROUP BY model, day
    """,
    "audit_export": """
        SELECT r.id, r.model, r.kind, r.status, r.count, r.received_at, r.applied_at, r.completed_at, r.failed_at,
               r.cancelled_at, r.guarantee, r.repair, r.already_deleted_by,
               extract(epoch FROM r.applied_at - r.received_at)::double precision AS seconds_to_applied,
               extract(epoch FROM r.completed_at - r.received_at)::double precision AS seconds_to_completed,
               b.id AS batch_id, b.committed_at, b.model_version_before, b.model_version_after,
               b.weights_sha256_before, b.weights_sha256_after, b.rank_before, b.rank_after, b.directions_removed,
               b.live_nodes, a.deleted, a.injected_norm_before, a.injected_norm_after, b.lost_direction_norm_before,
               b.lost_direction_norm_after, a.channel_norm_before, a.channel_norm_after, b.span_residual,
               b.weight_change, b.distance_bound_before, b.distance_bound_after, b.distance_bound_before_relative,
               b.distance_bound_after_relative, b.repair_iterations, b.repair_weight_change, b.repair_version,
               b.repair_weights_sha256, b.coefficient_residual, b.factor_method, b.device
        FROM requests r
        LEFT JOIN request_audits a ON a.request_id = r.id AND r.status IN ('applied', 'completed')
        LEFT JOIN batches b ON b.id = a.batch_id
    """,
}


def upgrade() -> None:
    """Create indexes and views."""
    for name, definition in _INDEXES.items():
        op.execute(f"CREATE INDEX {name} ON {definition}")
    for name, query in VIEWS.items():
        op.execute(f"CREATE VIEW {name} AS {query}")


def downgrade() -> None:
    """Drop them."""
    for name in VIEWS:
        op.execute(f"DROP VIEW {name}")
    op.execute(f"DROP INDEX {', '.join(_INDEXES)}")
