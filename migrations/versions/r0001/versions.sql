-- Times are Postgres' own. No constraint compares two of them, because a clock set back must not stop a deletion.

-- Who may write a model, its committed version, and all its versions with the details of their causes.

CREATE TABLE leases (
    name text PRIMARY KEY,
    holder text NOT NULL CHECK (holder <> ''),
    fencing bigint NOT NULL CHECK (fencing > 0),
    expires_at timestamptz NOT NULL,
    -- The holder publishes its status here.
    phase text NOT NULL DEFAULT 'stopped' CHECK (phase <> ''),
    reason text,
    repair_progress jsonb CHECK (jsonb_typeof(repair_progress) = 'object'),
    device text,
    checks jsonb NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(checks) = 'array'),
    -- When a holder last reported that it serves.
    served_at timestamptz,
    -- Since when the holder has been serving, and how many holders in a row failed without serving for long.
    serving_since timestamptz,
    failures integer DEFAULT 0 NOT NULL CHECK (failures >= 0),
    failing_since timestamptz,
    -- When the lease was last acquired, including by the same holder.
    held_since timestamptz,
    -- The LETHE_HOME whose processes serve the model: two would serve two different publications.
    home text CHECK (home ~ '^[0-9a-f]{32}$'),
    CONSTRAINT leases_name_fencing_key UNIQUE (name, fencing)
);

CREATE TRIGGER leases_forward BEFORE UPDATE ON leases
    FOR EACH ROW WHEN (NEW.fencing < OLD.fencing OR (NEW.fencing = OLD.fencing AND NEW.holder <> OLD.holder))
    EXECUTE FUNCTION refuse('a new holder gets a greater fencing number');

CREATE TABLE pointers (
    model text PRIMARY KEY,
    version bigint NOT NULL CHECK (version >= 0),
    fencing bigint NOT NULL CHECK (fencing >= 0),
    folder text NOT NULL,
    digest hex_digest NOT NULL,
    weights_sha256 hex_digest NOT NULL,
    moved_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT pointers_folder_check CHECK (folder = version || '-' || fencing)
);

CREATE TRIGGER pointers_forward BEFORE UPDATE ON pointers
    FOR EACH ROW WHEN (NEW.version <= OLD.version OR NEW.fencing < OLD.fencing)
    EXECUTE FUNCTION refuse('a pointer only moves forward');

CREATE TABLE versions (
    id uuid PRIMARY KEY,
    model text NOT NULL REFERENCES pointers (model),
    number bigint NOT NULL,
    fencing bigint NOT NULL,
    cause text NOT NULL CHECK (cause IN ('import', 'batch', 'repair', 'certification', 'recovery')),
    folder text NOT NULL,
    digest hex_digest NOT NULL,
    weights_sha256 hex_digest NOT NULL,
    number_before bigint NOT NULL,
    weights_sha256_before hex_digest NOT NULL,
    rank integer NOT NULL CHECK (rank >= 0),
    live_nodes integer NOT NULL CHECK (live_nodes >= 0),
    edges integer NOT NULL CHECK (edges >= 0),
    device text NOT NULL,
    durations_ms jsonb NOT NULL CHECK (jsonb_typeof(durations_ms) = 'object'),
    requests integer NOT NULL CHECK (requests >= 0),
    deleted_nodes integer NOT NULL CHECK (deleted_nodes >= 0),
    deleted_features integer NOT NULL CHECK (deleted_features >= 0),
    deleted_edges integer NOT NULL CHECK (deleted_edges >= 0),
    directions_removed integer NOT NULL CHECK (directions_removed >= 0),
    span_residual figure,
    distance_bound_before figure,
    distance_bound_after figure,
    distance_bound_before_relative figure,
    distance_bound_after_relative figure,
    repair text NOT NULL CHECK (repair IN ('none', 'pending', 'converged', 'not_converged')),
    repair_version bigint,
    repair_iterations integer CHECK (repair_iterations >= 0),
    repair_products integer CHECK (repair_products >= 0),
    repair_weight_change figure,
    repair_tolerance double precision,
    -- Refers to its own weights: a later version's repair does not change those of the batch.
    guarantee text NOT NULL GENERATED ALWAYS AS
        (CASE WHEN repair = 'converged' AND repair_version = number THEN 'retrained' ELSE 'span' END) STORED,
    committed_at timestamptz DEFAULT now() NOT NULL,
    finished_at timestamptz,
    -- How a version is published with noise, and what opens the commitments to values computed without it.
    publication_epsilon double precision,
    publication_delta double precision,
    publications_planned integer,
    publication_mu double precision CHECK (publication_mu > 0),
    commitment_salt hex_digest,
    CONSTRAINT versions_publication_check CHECK (num_nulls(
        publication_epsilon, publication_delta, publications_planned, publication_mu, commitment_salt) IN (0, 5)),
    CONSTRAINT versions_numbers_check CHECK (number > number_before AND number_before >= 0 AND fencing > 0),
    CONSTRAINT versions_folder_check CHECK (folder = number || '-' || fencing),
    CONSTRAINT versions_repair_version_check
        CHECK (repair_version >= number AND (repair_version IS NOT NULL OR repair <> 'converged')),
    CONSTRAINT versions_tolerance_check CHECK (repair_tolerance > 0 AND repair_tolerance <= 1e-06
        AND (repair <> 'converged' OR repair_version > number OR distance_bound_after_relative <= repair_tolerance)),
    CONSTRAINT versions_finished_check CHECK (finished_at IS NULL OR span_residual IS NOT NULL OR cause = 'recovery'),
    CONSTRAINT versions_model_number_key UNIQUE (model, number),
    CONSTRAINT versions_repair_version_fkey FOREIGN KEY (model, repair_version) REFERENCES versions (model, number)
);

-- A series reads the bound of every version in its period from this index alone.
CREATE INDEX versions_committed_at ON versions (model, committed_at)
    INCLUDE (rank, live_nodes, cause, number, repair_version, distance_bound_after_relative);

-- Finds whether a drill's model is still served. Imports are few.
CREATE INDEX versions_imported ON versions (model, number) WHERE cause = 'import';

CREATE INDEX versions_published ON versions (model, number) WHERE publication_mu IS NOT NULL;

CREATE UNIQUE INDEX versions_unfinished ON versions (model) WHERE finished_at IS NULL AND cause <> 'recovery';

CREATE TABLE batches (
    id uuid PRIMARY KEY REFERENCES versions (id),
    rank_before integer NOT NULL CHECK (rank_before >= 0),
    weight_change figure NOT NULL,
    coefficient_residual figure NOT NULL,
    lost_direction_norm_before figure,
    lost_direction_norm_after figure,
    factor_method text NOT NULL CHECK (factor_method IN ('none', 'decompose', 'downdate', 'refactorise')),
    distance_bound_start_relative figure,
    factor_age_s figure
);

CREATE TABLE imports (
    id uuid PRIMARY KEY,
    model text NOT NULL,
    status text DEFAULT 'pending' NOT NULL CHECK (status IN ('pending', 'committed', 'completed', 'refused')),
    exclude_deleted boolean NOT NULL,
    requested_at timestamptz DEFAULT now() NOT NULL,
    refusal text,
    finished_at timestamptz,
    CONSTRAINT imports_refused_check CHECK ((status = 'refused') = (refusal IS NOT NULL)),
    CONSTRAINT imports_finished_check CHECK ((status IN ('completed', 'refused')) = (finished_at IS NOT NULL))
);

CREATE UNIQUE INDEX imports_open ON imports (model) WHERE finished_at IS NULL;

CREATE TRIGGER imports_final BEFORE UPDATE OR DELETE ON imports
    FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL)
    EXECUTE FUNCTION refuse('a finished import is never changed');

CREATE TABLE recoveries (
    id uuid PRIMARY KEY REFERENCES versions (id),
    database_before text,
    store_before text NOT NULL,
    unknown_nodes integer NOT NULL CHECK (unknown_nodes >= 0),
    requests_failed integer CHECK (requests_failed >= 0)
);

CREATE TRIGGER recoveries_final BEFORE UPDATE OR DELETE ON recoveries
    FOR EACH ROW WHEN (OLD.requests_failed IS NOT NULL)
    EXECUTE FUNCTION refuse('a finished recovery is never changed');
