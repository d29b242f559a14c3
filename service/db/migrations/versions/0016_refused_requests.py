"""Refused deletion requests are recorded, and a request that the unlearner has taken up is marked."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_QUEUED = "CREATE INDEX requests_queued ON requests (model, received_at) INCLUDE ({}) WHERE status = 'queued'"

STATEMENTS = (
    # What is taken up cannot be cancelled any more, whether or not there turns out to be anything left to delete.
    "ALTER TABLE requests ADD COLUMN taken_at timestamptz",
    """
    CREATE TABLE refused_requests (
        id bigint NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT refused_requests_pkey PRIMARY KEY,
        model text NOT NULL,
        api_key_id uuid NOT NULL CONSTRAINT refused_requests_api_key_id_fkey REFERENCES api_keys (id),
        kind text NOT NULL CONSTRAINT refused_requests_kind_check CHECK (kind IN ('node', 'edge', 'features')),
        named integer NOT NULL CONSTRAINT refused_requests_named_check CHECK (named > 0),
        reason text NOT NULL,
        refused_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    "CREATE INDEX refused_requests_newest ON refused_requests (model, refused_at)",
    """
    CREATE TRIGGER refused_requests_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON refused_requests
        FOR EACH STATEMENT EXECUTE FUNCTION refuse('refused requests are never changed')
    """,
    # How much of the queue each key has is read from the index alone.
    "DROP INDEX requests_queued",
    _QUEUED.format("count, api_key_id"),
    """
    CREATE VIEW audit_refusals AS
        SELECT r.refused_at, r.model, k.name AS api_key, r.kind, r.named, r.reason
        FROM refused_requests r JOIN api_keys k ON k.id = r.api_key_id
    """,
)


def upgrade() -> None:
    """Create column, table and view."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """Drop them, with the record of what was refused."""
    op.execute("DROP VIEW audit_refusals")
    op.execute("DROP TABLE refused_requests")
    op.execute("DROP INDEX requests_queued")
    op.execute(_QUEUED.format("count"))
    op.execute("ALTER TABLE requests DROP COLUMN taken_at")
