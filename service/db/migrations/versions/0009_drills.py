"""Drills: which requests delete canaries, and a view of what was read from the weights."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE drills (
        request_id uuid NOT NULL CONSTRAINT drills_pkey PRIMARY KEY
            CONSTRAINT drills_request_id_fkey REFERENCES requests (id),
        number bigint NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT drills_number_key UNIQUE,
        model text NOT NULL,
        cohort integer NOT NULL CONSTRAINT drills_cohort_check CHECK (cohort > 0),
        trigger text NOT NULL CONSTRAINT drills_trigger_check CHECK (trigger IN ('manual', 'scheduled')),
        requested_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    "CREATE INDEX drills_newest ON drills (model, number)",
    """
    CREATE TRIGGER drills_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON drills
        FOR EACH STATEMENT EXECUTE FUNCTION refuse('drills are never changed')
    """,
    # 1e-12 is `service.domain.drills.MOST_LEFT`.
    """
    CREATE VIEW audit_drills AS
        SELECT d.request_id, d.model, d.number, d.cohort, d.trigger, d.requested_at, r.status, r.applied_at,
               r.completed_at, r.failed_at,
               extract(epoch FROM r.completed_at - r.received_at)::double precision AS seconds_to_completed,
               a.channel_norm_before, a.channel_norm_after,
               CASE r.status
                   WHEN 'failed' THEN false
                   WHEN 'completed' THEN coalesce(
                       a.channel_norm_before > 0 AND a.channel_norm_after <= 1e-12 * a.channel_norm_before, false
                   )
               END AS passed
        FROM drills d JOIN requests r ON r.id = d.request_id
        LEFT JOIN request_audits a ON a.request_id = r.id AND r.status IN ('applied', 'completed')
    """,
)


def upgrade() -> None:
    """Create table and view."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """Drop them, with the record of which requests were drills."""
    op.execute("DROP VIEW audit_drills")
    op.execute("DROP TABLE drills")
