"""Repairs: versions of their own, how each batch's and request's ended, and one `repaired` event per request."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_STATUS = "('none', 'pending', 'converged', 'not_converged')"
_INFINITY = "'Infinity'::double precision"


def _finite(*columns: str) -> str:
    return " AND ".join(f"{column} >= 0 AND {column} < {_INFINITY}" for column in columns)


_BOUNDS = (
    "distance_bound_before",
    "distance_bound_after",
    "distance_bound_before_relative",
    "distance_bound_after_relative",
)

UPGRADE = (
    f"""
    CREATE TABLE repairs (
        id uuid CONSTRAINT repairs_pkey PRIMARY KEY,
        model text NOT NULL CONSTRAINT repairs_model_fkey REFERENCES pointers (model),
        fencing bigint NOT NULL,
        status text NOT NULL CONSTRAINT repairs_status_check CHECK (status IN ('converged', 'not_converged')),
        requests integer NOT NULL,
        model_version_before bigint NOT NULL,
        model_version_after bigint NOT NULL,
        weights_sha256_before text NOT NULL,
        weights_sha256_after text NOT NULL,
        iterations integer NOT NULL,
        products integer NOT NULL,
        weight_change double precision NOT NULL,
        distance_bound_before double precision NOT NULL,
        distance_bound_after double precision NOT NULL,
        distance_bound_before_relative double precision,
        distance_bound_after_relative double precision,
        device text NOT NULL,
        durations_ms jsonb NOT NULL
            CONSTRAINT repairs_durations_ms_check CHECK (jsonb_typeof(durations_ms) = 'object'),
        span_residual double precision,
        committed_at timestamptz NOT NULL DEFAULT now(),
        finished_at timestamptz,
        CONSTRAINT repairs_model_model_version_after_key UNIQUE (model, model_version_after),
        CONSTRAINT repairs_size_check CHECK (fencing > 0 AND requests >= 0 AND iterations >= 0 AND products >= 0),
        CONSTRAINT repairs_model_versions_check
            CHECK (model_version_before >= 0 AND model_version_after > model_version_before),
        CONSTRAINT repairs_weights_digests_check
            CHECK (weights_sha256_before ~ '^[0-9a-f]{{64}}$' AND weights_sha256_after ~ '^[0-9a-f]{{64}}$'),
        CONSTRAINT repairs_figures_check CHECK ({_finite("weight_change", *_BOUNDS, "span_residual")}),
        CONSTRAINT repairs_finished_check CHECK ((finished_at IS NULL) = (span_residual IS NULL))
    )
    """,
    "CREATE UNIQUE INDEX repairs_unfinished ON repairs (model) WHERE finished_at IS NULL",
    f"""
    ALTER TABLE batches
        ADD COLUMN repair text NOT NULL DEFAULT 'none'
            CONSTRAINT batches_repair_check CHECK (repair IN {_STATUS}),
        ADD COLUMN repair_version bigint,
        ADD COLUMN repair_weights_sha256 text,
        ADD COLUMN repair_weight_change double precision,
        ADD CONSTRAINT batches_repair_iterations_check CHECK (repair_iterations >= 0),
        ADD CONSTRAINT batches_repair_version_check CHECK (
            (repair_version IS NULL) = (repair_weights_sha256 IS NULL)
            AND (repair_version IS NOT NULL OR repair <> 'converged')
            AND repair_version >= model_version_after AND repair_weights_sha256 ~ '^[0-9a-f]{{64}}$'
        ),
        ADD CONSTRAINT batches_repair_weight_change_check CHECK ({_finite("repair_weight_change")})
    """,
    """
    ALTER TABLE requests ADD CONSTRAINT requests_retrained_check
        CHECK ((guarantee = 'retrained') = (repair = 'converged'))
    """,
    "CREATE INDEX requests_repair_pending ON requests (model) WHERE repair = 'pending'",
    "CREATE UNIQUE INDEX events_repaired_once ON events (request_id) WHERE type = 'repaired'",
    f"""
    ALTER TABLE imports
        ADD COLUMN repair text NOT NULL DEFAULT 'none'
            CONSTRAINT imports_repair_check CHECK (repair IN {_STATUS}),
        ADD COLUMN repair_iterations integer
            CONSTRAINT imports_repair_iterations_check CHECK (repair_iterations >= 0),
        {", ".join(f"ADD COLUMN {column} double precision" for column in _BOUNDS)},
        ADD CONSTRAINT imports_bounds_check CHECK ({_finite(*_BOUNDS)})
    """,
)

DOWNGRADE = (
    f"""
    ALTER TABLE imports DROP COLUMN repair, DROP COLUMN repair_iterations,
        {", ".join(f"DROP COLUMN {column}" for column in _BOUNDS)}
    """,
    "DROP INDEX events_repaired_once, requests_repair_pending",
    "ALTER TABLE requests DROP CONSTRAINT requests_retrained_check",
    """
    ALTER TABLE batches DROP CONSTRAINT batches_repair_iterations_check,
        DROP COLUMN repair, DROP COLUMN repair_version, DROP COLUMN repair_weights_sha256,
        DROP COLUMN repair_weight_change
    """,
    "DROP TABLE repairs",
)


def upgrade() -> None:
    """Create the table of repairs and what batches, requests, events and imports need for theirs."""
    for statement in UPGRADE:
        op.execute(statement)


def downgrade() -> None:
    """Drop all of that, with the records of repairs."""
    for statement in DOWNGRADE:
        op.execute(statement)
