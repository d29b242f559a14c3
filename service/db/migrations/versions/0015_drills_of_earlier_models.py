"""The view of drills tells those of a model that an import has replaced from those of the served one."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# As in 0009: 1e-12 is `service.domain.drills.MOST_LEFT`.
_COLUMNS = """
    d.request_id, d.model, d.number, d.cohort, d.trigger, d.requested_at, r.status, r.applied_at,
    r.completed_at, r.failed_at,
    extract(epoch FROM r.completed_at - r.received_at)::double precision AS seconds_to_completed,
    a.channel_norm_before, a.channel_norm_after,
    CASE r.status
        WHEN 'failed' THEN false
        WHEN 'completed' THEN coalesce(
            a.channel_norm_before > 0 AND a.channel_norm_after <= 1e-12 * a.channel_norm_before, false
        )
    END AS passed
"""
# As `service.db.drills` has it.
_REPLACED = """
    (
        SELECT i.committed_at FROM imports i
        WHERE i.model = d.model AND i.committed_at IS NOT NULL
            AND CASE WHEN b.id IS NOT NULL THEN i.version_after > b.model_version_after
                ELSE i.committed_at > d.requested_at END
        ORDER BY i.version_after LIMIT 1
    ) AS model_replaced_at
"""
_FROM = """
    FROM drills d JOIN requests r ON r.id = d.request_id
    LEFT JOIN request_audits a ON a.request_id = r.id AND r.status IN ('applied', 'completed')
"""


def upgrade() -> None:
    """Add the column."""
    joined = f"{_FROM} LEFT JOIN batches b ON b.id = a.batch_id"
    op.execute(f"CREATE OR REPLACE VIEW audit_drills AS SELECT {_COLUMNS}, {_REPLACED} {joined}")


def downgrade() -> None:
    """Drop it; a view keeps its columns as long as it is there."""
    op.execute("DROP VIEW audit_drills")
    op.execute(f"CREATE VIEW audit_drills AS SELECT {_COLUMNS} {_FROM}")
