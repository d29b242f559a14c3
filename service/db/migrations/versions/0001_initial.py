"""The first schema: requests, batches, audits, events, tombstones, outbox, pointers, leases, API keys."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    """
    CREATE TABLE api_keys (
        id uuid CONSTRAINT api_keys_pkey PRIMARY KEY,
        name text NOT NULL CONSTRAINT api_keys_named_check CHECK (name <> ''),
        scopes text[] NOT NULL CONSTRAINT api_keys_scopes_check CHECK (
            cardinality(scopes) > 0
            AND scopes <@ ARRAY['deletions:write', 'deletions:read', 'predictions:read', 'audit:read']::text[]
        ),
        hash bytea NOT NULL CONSTRAINT api_keys_hash_check CHECK (octet_length(hash) = 32),
        created_at timestamptz NOT NULL DEFAULT now(),
        revoked_at timestamptz,
        CONSTRAINT api_keys_hash_key UNIQUE (hash)
    )
    """,
    """
    CREATE TABLE leases (
        name text CONSTRAINT leases_pkey PRIMARY KEY,
        holder text NOT NULL CONSTRAINT leases_holder_check CHECK (holder <> ''),
        fencing bigint NOT NULL CONSTRAINT leases_fencing_check CHECK (fencing > 0),
        expires_at timestamptz NOT NULL,
        CONSTRAINT leases_name_fencing_key UNIQUE (name, fencing)
    )
    """,
    """
    CREATE TABLE pointers (
        model text CONSTRAINT pointers_pkey PRIMARY KEY,
        version bigint NOT NULL,
        fencing bigint NOT NULL,
        folder text NOT NULL CONSTRAINT pointers_folder_check CHECK (folder = version || '-' || fencing),
        digest text NOT NULL,
        weights_sha256 text NOT NULL,
        moved_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pointers_numbers_check CHECK (version >= 0 AND fencing >= 0),
        CONSTRAINT pointers_digests_check
            CHECK (digest ~ '^[0-9a-f]{64}$' AND weights_sha256 ~ '^[0-9a-f]{64}$')
    )
    """,
    """
    CREATE TABLE batches (
        id uuid CONSTRAINT batches_pkey PRIMARY KEY,
        model text NOT NULL CONSTRAINT batches_model_fkey REFERENCES pointers (model),
        fencing bigint NOT NULL,
        requests integer NOT NULL,
        nodes integer NOT NULL,
        features integer NOT NULL,
        edges integer NOT NULL,
        model_version_before bigint NOT NULL,
        model_version_after bigint NOT NULL,
        weights_sha256_before text NOT NULL,
        weights_sha256_after text NOT NULL,
        rank_before integer NOT NULL,
        rank_after integer NOT NULL,
        directions_removed integer NOT NULL,
        lost_direction_norm_before double precision,
        lost_direction_norm_after double precision,
        weight_change double precision NOT NULL,
        coefficient_residual double precision NOT NULL,
        factor_method text NOT NULL CONSTRAINT batches_factor_method_check
            CHECK (factor_method IN ('none', 'decompose', 'downdate', 'refactorise')),
        device text NOT NULL,
        durations_ms jsonb NOT NULL
            CONSTRAINT batches_durations_ms_check CHECK (jsonb_typeof(durations_ms) = 'object'),
        span_residual double precision,
        distance_bound_before double precision,
        distance_bound_after double precision,
        distance_bound_before_relative double precision,
        distance_bound_after_relative double precision,
        repair_iterations integer,
        committed_at timestamptz NOT NULL DEFAULT now(),
        finished_at timestamptz,
        CONSTRAINT batches_model_model_version_after_key UNIQUE (model, model_version_after),
        CONSTRAINT batches_size_check
            CHECK (fencing > 0 AND requests > 0 AND nodes >= 0 AND features >= 0 AND edges >= 0),
        CONSTRAINT batches_model_versions_check
            CHECK (model_version_before >= 0 AND model_version_after > model_version_before),
        CONSTRAINT batches_weights_digests_check
            CHECK (weights_sha256_before ~ '^[0-9a-f]{64}$' AND weights_sha256_after ~ '^[0-9a-f]{64}$'),
        CONSTRAINT batches_ranks_check CHECK (rank_after >= 0 AND rank_before >= 0 AND directions_removed >= 0),
        CONSTRAINT batches_finished_check CHECK ((finished_at IS NULL) = (span_residual IS NULL)),
        CONSTRAINT batches_figures_check CHECK (
            lost_direction_norm_before >= 0 AND lost_direction_norm_before < 'Infinity'::double precision
            AND lost_direction_norm_after >= 0 AND lost_direction_norm_after < 'Infinity'::double precision
            AND weight_change >= 0 AND weight_change < 'Infinity'::double precision
            AND coefficient_residual >= 0 AND coefficient_residual < 'Infinity'::double precision
            AND span_residual >= 0 AND span_residual < 'Infinity'::double precision
            AND distance_bound_before >= 0 AND distance_bound_before < 'Infinity'::double precision
            AND distance_bound_after >= 0 AND distance_bound_after < 'Infinity'::double precision
            AND distance_bound_before_relative >= 0
            AND distance_bound_before_relative < 'Infinity'::double precision
            AND distance_bound_after_relative >= 0
            AND distance_bound_after_relative < 'Infinity'::double precision
        )
    )
    """,
    """
    CREATE TABLE requests (
        id uuid CONSTRAINT requests_pkey PRIMARY KEY,
        model text NOT NULL CONSTRAINT requests_model_fkey REFERENCES pointers (model),
        kind text NOT NULL CONSTRAINT requests_kind_check CHECK (kind IN ('node', 'edge', 'features')),
        status text NOT NULL DEFAULT 'queued' CONSTRAINT requests_status_check
            CHECK (status IN ('queued', 'applied', 'completed', 'failed', 'cancelled')),
        count integer NOT NULL CONSTRAINT requests_count_check CHECK (count > 0),
        reference text,
        ciphertext bytea,
        api_key_id uuid NOT NULL CONSTRAINT requests_api_key_id_fkey REFERENCES api_keys (id),
        idempotency_key text,
        body_digest bytea,
        received_at timestamptz NOT NULL DEFAULT now(),
        swept_at timestamptz,
        batch_id uuid CONSTRAINT requests_batch_id_fkey REFERENCES batches (id),
        applied_at timestamptz,
        completed_at timestamptz,
        failed_at timestamptz,
        cancelled_at timestamptz,
        guarantee text CONSTRAINT requests_guarantee_check CHECK (guarantee IN ('span', 'retrained', 'graph_only')),
        repair text CONSTRAINT requests_repair_check
            CHECK (repair IN ('none', 'pending', 'converged', 'not_converged')),
        explanation text,
        failure text,
        already_deleted_by uuid CONSTRAINT requests_already_deleted_by_fkey REFERENCES requests (id),
        CONSTRAINT requests_idempotency_check
            CHECK ((idempotency_key IS NULL) = (body_digest IS NULL) AND octet_length(body_digest) = 32),
        CONSTRAINT requests_queued_check CHECK (
            status <> 'queued' OR (
                ciphertext IS NOT NULL AND applied_at IS NULL AND completed_at IS NULL
                AND failed_at IS NULL AND cancelled_at IS NULL AND guarantee IS NULL
            )
        ),
        CONSTRAINT requests_applied_check
            CHECK (status <> 'applied' OR (applied_at IS NOT NULL AND completed_at IS NULL)),
        CONSTRAINT requests_applied_at_check CHECK (
            (applied_at IS NULL) = (guarantee IS NULL) AND (applied_at IS NULL) = (repair IS NULL)
            AND (applied_at IS NULL OR (batch_id IS NOT NULL AND explanation IS NOT NULL))
        ),
        CONSTRAINT requests_completed_check CHECK (
            (status = 'completed') = (completed_at IS NOT NULL)
            AND (
                status <> 'completed' OR (
                    ciphertext IS NULL AND explanation IS NOT NULL AND (applied_at IS NULL) = (batch_id IS NULL)
                )
            )
        ),
        CONSTRAINT requests_already_deleted_by_check CHECK (
            (already_deleted_by IS NOT NULL) = (status = 'completed' AND batch_id IS NULL)
            AND already_deleted_by <> id
        ),
        CONSTRAINT requests_failed_check CHECK (
            (status = 'failed') = (failed_at IS NOT NULL) AND (status = 'failed') = (failure IS NOT NULL)
            AND (status <> 'failed' OR batch_id IS NULL)
        ),
        CONSTRAINT requests_cancelled_check CHECK (
            (status = 'cancelled') = (cancelled_at IS NOT NULL)
            AND (status <> 'cancelled' OR (ciphertext IS NULL AND batch_id IS NULL))
        )
    )
    """,
    """
    CREATE TABLE request_audits (
        request_id uuid CONSTRAINT request_audits_pkey PRIMARY KEY
            CONSTRAINT request_audits_request_id_fkey REFERENCES requests (id),
        batch_id uuid NOT NULL CONSTRAINT request_audits_batch_id_fkey REFERENCES batches (id),
        deleted integer NOT NULL CONSTRAINT request_audits_deleted_check CHECK (deleted > 0),
        injected_norm_before double precision,
        injected_norm_after double precision,
        channel_norm_before double precision,
        channel_norm_after double precision,
        CONSTRAINT request_audits_norms_check CHECK (
            injected_norm_before >= 0 AND injected_norm_before < 'Infinity'::double precision
            AND injected_norm_after >= 0 AND injected_norm_after < 'Infinity'::double precision
            AND channel_norm_before >= 0 AND channel_norm_before < 'Infinity'::double precision
            AND channel_norm_after >= 0 AND channel_norm_after < 'Infinity'::double precision
        )
    )
    """,
    """
    CREATE TABLE outbox (
        request_id uuid CONSTRAINT outbox_pkey PRIMARY KEY
            CONSTRAINT outbox_request_id_fkey REFERENCES requests (id),
        model text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    CREATE TABLE tombstone_keys (
        number smallint CONSTRAINT tombstone_keys_pkey PRIMARY KEY
            CONSTRAINT tombstone_keys_number_check CHECK (number > 0),
        fingerprint bytea NOT NULL
            CONSTRAINT tombstone_keys_fingerprint_check CHECK (octet_length(fingerprint) = 16)
    )
    """,
    """
    CREATE TABLE tombstones (
        hash bytea CONSTRAINT tombstones_pkey PRIMARY KEY
            CONSTRAINT tombstones_hash_check CHECK (octet_length(hash) = 32),
        kind text NOT NULL CONSTRAINT tombstones_kind_check CHECK (kind IN ('node', 'edge', 'features')),
        key_number smallint NOT NULL CONSTRAINT tombstones_key_number_fkey REFERENCES tombstone_keys (number),
        request_id uuid NOT NULL CONSTRAINT tombstones_request_id_fkey REFERENCES requests (id),
        created_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    """
    CREATE TABLE events (
        id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT events_pkey PRIMARY KEY,
        request_id uuid NOT NULL CONSTRAINT events_request_id_fkey REFERENCES requests (id),
        type text NOT NULL
            CONSTRAINT events_type_check CHECK (type IN ('applied', 'repaired', 'completed', 'failed')),
        payload jsonb NOT NULL CONSTRAINT events_payload_check CHECK (jsonb_typeof(payload) = 'object'),
        created_at timestamptz NOT NULL DEFAULT now()
    )
    """,
)

INDEXES = (
    "CREATE UNIQUE INDEX api_keys_name_in_use ON api_keys (name) WHERE revoked_at IS NULL",
    "CREATE UNIQUE INDEX batches_unfinished ON batches (model) WHERE finished_at IS NULL",
    "CREATE UNIQUE INDEX requests_idempotency ON requests (api_key_id, idempotency_key)"
    " WHERE idempotency_key IS NOT NULL",
    "CREATE INDEX requests_newest ON requests (received_at, id)",
    "CREATE INDEX requests_newest_of_key ON requests (api_key_id, received_at, id)",
    "CREATE INDEX requests_newest_by_status ON requests (status, received_at, id)",
    "CREATE INDEX requests_queued ON requests (model, received_at) INCLUDE (count) WHERE status = 'queued'",
    "CREATE INDEX requests_batch ON requests (batch_id) WHERE batch_id IS NOT NULL",
    "CREATE INDEX request_audits_batch ON request_audits (batch_id)",
    "CREATE INDEX outbox_oldest ON outbox (model, created_at)",
    "CREATE INDEX tombstones_request ON tombstones (request_id)",
    "CREATE INDEX events_request ON events (request_id, id)",
    "CREATE UNIQUE INDEX events_applied_once ON events (request_id) WHERE type = 'applied'",
    "CREATE UNIQUE INDEX events_completed_once ON events (request_id) WHERE type = 'completed'",
)

# The moves of a request are those of service.domain.states.TRANSITIONS; a test compares the two.
TRIGGERS = (
    """
    CREATE FUNCTION requests_check_transition() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (OLD.status, NEW.status) NOT IN (
            ('queued', 'applied'),
            ('queued', 'completed'),
            ('queued', 'failed'),
            ('queued', 'cancelled'),
            ('applied', 'completed'),
            ('failed', 'queued')
        ) THEN
            RAISE EXCEPTION 'request % cannot go from % to %', OLD.id, OLD.status, NEW.status
                USING ERRCODE = 'check_violation', TABLE = 'requests', CONSTRAINT = 'requests_transition';
        END IF;
        RETURN NEW;
    END
    $$
    """,
    """
    CREATE TRIGGER requests_transition BEFORE UPDATE OF status ON requests
        FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION requests_check_transition()
    """,
    """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION '%', TG_ARGV[0]
            USING ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
    END
    $$
    """,
    """
    CREATE TRIGGER requests_begin_queued BEFORE INSERT ON requests
        FOR EACH ROW WHEN (NEW.status <> 'queued') EXECUTE FUNCTION refuse('a request begins as queued')
    """,
    """
    CREATE TRIGGER pointers_forward BEFORE UPDATE ON pointers
        FOR EACH ROW WHEN (NEW.version <= OLD.version OR NEW.fencing < OLD.fencing)
        EXECUTE FUNCTION refuse('a pointer only moves forward')
    """,
    """
    CREATE TRIGGER leases_forward BEFORE UPDATE ON leases
        FOR EACH ROW WHEN (
            NEW.fencing < OLD.fencing OR (NEW.fencing = OLD.fencing AND NEW.holder <> OLD.holder)
        )
        EXECUTE FUNCTION refuse('a new holder gets a greater fencing number')
    """,
    """
    CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events
        FOR EACH STATEMENT EXECUTE FUNCTION refuse('events are never changed')
    """,
)


def upgrade() -> None:
    """Create tables, indexes and triggers."""
    for statement in (*TABLES, *INDEXES, *TRIGGERS):
        op.execute(statement)


def downgrade() -> None:
    """Drop everything, with all data."""
    op.execute(
        "DROP TABLE events, tombstones, tombstone_keys, outbox, request_audits, requests, batches, pointers, leases,"
        " api_keys"
    )
    op.execute("DROP FUNCTION refuse()")
    op.execute("DROP FUNCTION requests_check_transition()")
