"""Recoveries of stores and databases that were not of the same moment."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE recoveries (
        id uuid CONSTRAINT recoveries_pkey PRIMARY KEY,
        model text NOT NULL,
        fencing bigint NOT NULL,
        database_before text,
        store_before text NOT NULL,
        version bigint NOT NULL,
        weights_sha256_before text NOT NULL,
        weights_sha256_after text NOT NULL,
        nodes integer NOT NULL,
        features integer NOT NULL,
        edges integer NOT NULL,
        directions_removed integer NOT NULL,
        unknown_nodes integer NOT NULL,
        requests_failed integer CONSTRAINT recoveries_requests_failed_check CHECK (requests_failed >= 0),
        committed_at timestamptz NOT NULL DEFAULT now(),
        finished_at timestamptz,
        CONSTRAINT recoveries_numbers_check CHECK (fencing > 0 AND version >= 0),
        CONSTRAINT recoveries_counts_check CHECK (
            nodes >= 0 AND features >= 0 AND edges >= 0 AND unknown_nodes >= 0 AND directions_removed >= 0
        ),
        CONSTRAINT recoveries_weights_digests_check
            CHECK (weights_sha256_before ~ '^[0-9a-f]{64}$' AND weights_sha256_after ~ '^[0-9a-f]{64}$'),
        CONSTRAINT recoveries_finished_check CHECK ((finished_at IS NULL) = (requests_failed IS NULL))
    )
    """,
    "CREATE INDEX recoveries_open ON recoveries (model) WHERE finished_at IS NULL",
    """
    CREATE TRIGGER recoveries_final BEFORE UPDATE OR DELETE ON recoveries
        FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL)
        EXECUTE FUNCTION refuse('a finished recovery is never changed')
    """,
)


def upgrade() -> None:
    """Create the table of recoveries."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """Drop it, with all records of recoveries."""
    op.execute("DROP TABLE recoveries")
