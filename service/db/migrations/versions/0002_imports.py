"""Imports of newly trained models into a service that runs."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE imports (
        id uuid CONSTRAINT imports_pkey PRIMARY KEY,
        model text NOT NULL,
        status text NOT NULL DEFAULT 'pending' CONSTRAINT imports_status_check
            CHECK (status IN ('pending', 'committed', 'completed', 'refused')),
        exclude_deleted boolean NOT NULL,
        requested_at timestamptz NOT NULL DEFAULT now(),
        version_before bigint,
        version_after bigint,
        weights_sha256_before text,
        weights_sha256_after text,
        nodes integer,
        excluded_nodes integer,
        excluded_features integer,
        excluded_edges integer,
        directions_removed integer,
        span_residual double precision,
        refusal text,
        committed_at timestamptz,
        finished_at timestamptz,
        CONSTRAINT imports_model_version_after_key UNIQUE (model, version_after),
        CONSTRAINT imports_refused_check CHECK ((status = 'refused') = (refusal IS NOT NULL)),
        CONSTRAINT imports_finished_check
            CHECK ((status IN ('completed', 'refused')) = (finished_at IS NOT NULL)),
        CONSTRAINT imports_committed_check
            CHECK ((status IN ('committed', 'completed')) = (committed_at IS NOT NULL)),
        CONSTRAINT imports_imported_check CHECK (
            num_nulls(
                committed_at, version_before, version_after, weights_sha256_before, weights_sha256_after, nodes,
                excluded_nodes, excluded_features, excluded_edges, directions_removed, span_residual
            ) IN (0, 11)
        ),
        CONSTRAINT imports_versions_check CHECK (version_before >= 0 AND version_after > version_before),
        CONSTRAINT imports_weights_digests_check
            CHECK (weights_sha256_before ~ '^[0-9a-f]{64}$' AND weights_sha256_after ~ '^[0-9a-f]{64}$'),
        CONSTRAINT imports_counts_check CHECK (
            nodes > 0 AND excluded_nodes >= 0 AND excluded_features >= 0 AND excluded_edges >= 0
            AND directions_removed >= 0
        ),
        CONSTRAINT imports_figures_check
            CHECK (span_residual >= 0 AND span_residual < 'Infinity'::double precision)
    )
    """,
    "CREATE UNIQUE INDEX imports_open ON imports (model) WHERE finished_at IS NULL",
    """
    CREATE TRIGGER imports_final BEFORE UPDATE OR DELETE ON imports
        FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL)
        EXECUTE FUNCTION refuse('a finished import is never changed')
    """,
)


def upgrade() -> None:
    """Create the table of imports."""
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """Drop it, with all records of imports."""
    op.execute("DROP TABLE imports")
