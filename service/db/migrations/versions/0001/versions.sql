-- Times are Postgres' own; none is compared with another in a constraint, because a clock that is set back must not stop
-- a deletion.

-- Who may write a model, which version of it is committed, and every version there was, with the details of each cause.

CREATE TABLE leases (
    name text NOT NULL,
    holder text NOT NULL,
    fencing bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT leases_pkey PRIMARY KEY (name),
    CONSTRAINT leases_fencing_check CHECK (fencing > 0),
    CONSTRAINT leases_holder_check CHECK (holder <> ''),
    CONSTRAINT leases_name_fencing_key UNIQUE (name, fencing)
);

CREATE TRIGGER leases_forward BEFORE UPDATE ON leases
    FOR EACH ROW WHEN (NEW.fencing < OLD.fencing OR (NEW.fencing = OLD.fencing AND NEW.holder <> OLD.holder))
    EXECUTE FUNCTION refuse('a new holder gets a greater fencing number');

CREATE TABLE pointers (
    model text NOT NULL,
    version bigint NOT NULL,
    fencing bigint NOT NULL,
    folder text NOT NULL,
    digest text NOT NULL,
    weights_sha256 text NOT NULL,
    moved_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT pointers_pkey PRIMARY KEY (model),
    CONSTRAINT pointers_numbers_check CHECK (version >= 0 AND fencing >= 0),
    CONSTRAINT pointers_folder_check CHECK (folder = version || '-' || fencing),
    CONSTRAINT pointers_digests_check CHECK (digest ~ '^[0-9a-f]{64}$' AND weights_sha256 ~ '^[0-9a-f]{64}$')
);

CREATE TRIGGER pointers_forward BEFORE UPDATE ON pointers
    FOR EACH ROW WHEN (NEW.version <= OLD.version OR NEW.fencing < OLD.fencing)
    EXECUTE FUNCTION refuse('a pointer only moves forward');

CREATE TABLE versions (
    id uuid NOT NULL,
    model text NOT NULL,
    number bigint NOT NULL,
    fencing bigint NOT NULL,
    cause text NOT NULL,
    folder text NOT NULL,
    digest text NOT NULL,
    weights_sha256 text NOT NULL,
    number_before bigint NOT NULL,
    weights_sha256_before text NOT NULL,
    rank integer NOT NULL,
    live_nodes integer NOT NULL,
    edges integer NOT NULL,
    device text NOT NULL,
    durations_ms jsonb NOT NULL,
    requests integer NOT NULL,
    deleted_nodes integer NOT NULL,
    deleted_features integer NOT NULL,
    deleted_edges integer NOT NULL,
    directions_removed integer NOT NULL,
    span_residual double precision,
    distance_bound_before double precision,
    distance_bound_after double precision,
    distance_bound_before_relative double precision,
    distance_bound_after_relative double precision,
    repair text NOT NULL,
    repair_version bigint,
    repair_iterations integer,
    repair_products integer,
    repair_weight_change double precision,
    repair_tolerance double precision,
    guarantee text GENERATED ALWAYS AS (CASE WHEN repair = 'converged' THEN 'retrained' ELSE 'span' END) STORED NOT
        NULL,
    committed_at timestamptz DEFAULT now() NOT NULL,
    finished_at timestamptz,
    CONSTRAINT versions_pkey PRIMARY KEY (id),
    CONSTRAINT versions_cause_check CHECK (cause IN ('import', 'batch', 'repair', 'recovery')),
    CONSTRAINT versions_numbers_check CHECK (number > number_before AND number_before >= 0 AND fencing > 0),
    CONSTRAINT versions_folder_check CHECK (folder = number || '-' || fencing),
    CONSTRAINT versions_digests_check CHECK (
        digest ~ '^[0-9a-f]{64}$' AND weights_sha256 ~ '^[0-9a-f]{64}$' AND weights_sha256_before ~ '^[0-9a-f]{64}$'
    ),
    CONSTRAINT versions_counts_check CHECK (
        rank >= 0 AND live_nodes >= 0 AND edges >= 0 AND requests >= 0 AND deleted_nodes >= 0
        AND deleted_features >= 0 AND deleted_edges >= 0 AND directions_removed >= 0 AND repair_iterations >= 0
        AND repair_products >= 0
    ),
    CONSTRAINT versions_figures_check CHECK (
        span_residual >= 0 AND span_residual < 'Infinity'::double precision AND distance_bound_before >= 0
        AND distance_bound_before < 'Infinity'::double precision AND distance_bound_before_relative >= 0
        AND distance_bound_before_relative < 'Infinity'::double precision AND distance_bound_after >= 0
        AND distance_bound_after < 'Infinity'::double precision AND distance_bound_after_relative >= 0
        AND distance_bound_after_relative < 'Infinity'::double precision AND repair_weight_change >= 0
        AND repair_weight_change < 'Infinity'::double precision
    ),
    CONSTRAINT versions_durations_ms_check CHECK (jsonb_typeof(durations_ms) = 'object'),
    CONSTRAINT versions_repair_check CHECK (repair IN ('none', 'pending', 'converged', 'not_converged')),
    CONSTRAINT versions_repair_version_check CHECK (
        repair_version >= number AND (repair_version IS NOT NULL OR repair <> 'converged')
    ),
    CONSTRAINT versions_tolerance_check CHECK (
        repair_tolerance > 0 AND repair_tolerance <= 1e-06
        AND (repair <> 'converged' OR repair_version > number OR distance_bound_after_relative <= repair_tolerance)
    ),
    CONSTRAINT versions_finished_check CHECK (finished_at IS NULL OR span_residual IS NOT NULL OR cause = 'recovery'),
    CONSTRAINT versions_model_number_key UNIQUE (model, number),
    CONSTRAINT versions_repair_version_fkey FOREIGN KEY (model, repair_version) REFERENCES versions (model, number),
    CONSTRAINT versions_model_fkey FOREIGN KEY (model) REFERENCES pointers (model)
);

CREATE INDEX versions_committed_at ON versions (model, committed_at) INCLUDE (rank, live_nodes);

CREATE UNIQUE INDEX versions_unfinished ON versions (model) WHERE finished_at IS NULL AND cause <> 'recovery';

CREATE TABLE batches (
    id uuid NOT NULL,
    rank_before integer NOT NULL,
    weight_change double precision NOT NULL,
    coefficient_residual double precision NOT NULL,
    lost_direction_norm_before double precision,
    lost_direction_norm_after double precision,
    factor_method text NOT NULL,
    distance_bound_start_relative double precision,
    factor_age_s double precision,
    CONSTRAINT batches_pkey PRIMARY KEY (id),
    CONSTRAINT batches_rank_before_check CHECK (rank_before >= 0),
    CONSTRAINT batches_factor_method_check CHECK (factor_method IN ('none', 'decompose', 'downdate', 'refactorise')),
    CONSTRAINT batches_figures_check CHECK (
        weight_change >= 0 AND weight_change < 'Infinity'::double precision AND coefficient_residual >= 0
        AND coefficient_residual < 'Infinity'::double precision AND lost_direction_norm_before >= 0
        AND lost_direction_norm_before < 'Infinity'::double precision AND lost_direction_norm_after >= 0
        AND lost_direction_norm_after < 'Infinity'::double precision AND distance_bound_start_relative >= 0
        AND distance_bound_start_relative < 'Infinity'::double precision
        AND factor_age_s >= 0 AND factor_age_s < 'Infinity'::double precision
    ),
    CONSTRAINT batches_id_fkey FOREIGN KEY (id) REFERENCES versions (id)
);

CREATE TABLE imports (
    id uuid NOT NULL,
    model text NOT NULL,
    status text DEFAULT 'pending' NOT NULL,
    exclude_deleted boolean NOT NULL,
    requested_at timestamptz DEFAULT now() NOT NULL,
    refusal text,
    finished_at timestamptz,
    CONSTRAINT imports_pkey PRIMARY KEY (id),
    CONSTRAINT imports_status_check CHECK (status IN ('pending', 'committed', 'completed', 'refused')),
    CONSTRAINT imports_refused_check CHECK ((status = 'refused') = (refusal IS NOT NULL)),
    CONSTRAINT imports_finished_check CHECK ((status IN ('completed', 'refused')) = (finished_at IS NOT NULL))
);

CREATE UNIQUE INDEX imports_open ON imports (model) WHERE finished_at IS NULL;

CREATE TRIGGER imports_final BEFORE UPDATE OR DELETE ON imports
    FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL)
    EXECUTE FUNCTION refuse('a finished import is never changed');

CREATE TABLE recoveries (
    id uuid NOT NULL,
    database_before text,
    store_before text NOT NULL,
    unknown_nodes integer NOT NULL,
    requests_failed integer,
    CONSTRAINT recoveries_pkey PRIMARY KEY (id),
    CONSTRAINT recoveries_counts_check CHECK (unknown_nodes >= 0 AND requests_failed >= 0),
    CONSTRAINT recoveries_id_fkey FOREIGN KEY (id) REFERENCES versions (id)
);

CREATE TRIGGER recoveries_final BEFORE UPDATE OR DELETE ON recoveries
    FOR EACH ROW WHEN (OLD.requests_failed IS NOT NULL)
    EXECUTE FUNCTION refuse('a finished recovery is never changed');
