-- Deletion requests, what was measured for each, those on their way to the stream, and those that were refused.

CREATE TABLE requests (
    id uuid PRIMARY KEY,
    model text NOT NULL REFERENCES pointers (model),
    kind text NOT NULL CHECK (kind IN ('node', 'edge', 'features')),
    status text DEFAULT 'queued' NOT NULL CHECK (status IN ('queued', 'applied', 'completed', 'failed', 'cancelled')),
    count integer NOT NULL CHECK (count > 0),
    reference text,
    ciphertext bytea,
    api_key_id uuid NOT NULL REFERENCES api_keys (id),
    idempotency_key text,
    body_digest bytea,
    received_at timestamptz DEFAULT now() NOT NULL,
    swept_at timestamptz,
    taken_at timestamptz,
    batch_id uuid REFERENCES batches (id),
    applied_at timestamptz,
    completed_at timestamptz,
    failed_at timestamptz,
    cancelled_at timestamptz,
    guarantee text CHECK (guarantee IN ('span', 'retrained', 'graph_only')),
    repair text CHECK (repair IN ('none', 'pending', 'converged', 'not_converged')),
    explanation text,
    failure text,
    already_deleted_by uuid REFERENCES requests (id),
    subject_commitments bytea,
    reference_commitment bytea,
    CONSTRAINT requests_idempotency_check CHECK ((idempotency_key IS NULL) = (body_digest IS NULL)
        AND octet_length(body_digest) = 32),
    CONSTRAINT requests_queued_check CHECK (status <> 'queued' OR (ciphertext IS NOT NULL AND applied_at IS NULL
        AND completed_at IS NULL AND failed_at IS NULL AND cancelled_at IS NULL AND guarantee IS NULL)),
    CONSTRAINT requests_applied_check CHECK (status <> 'applied' OR (applied_at IS NOT NULL AND completed_at IS NULL)),
    CONSTRAINT requests_applied_at_check CHECK ((applied_at IS NULL) = (guarantee IS NULL)
        AND (applied_at IS NULL) = (repair IS NULL) AND (applied_at IS NULL OR (batch_id IS NOT NULL
        AND explanation IS NOT NULL))),
    CONSTRAINT requests_completed_check CHECK ((status = 'completed') = (completed_at IS NOT NULL)
        AND (status <> 'completed' OR (ciphertext IS NULL AND explanation IS NOT NULL
        AND (applied_at IS NULL) = (batch_id IS NULL)))),
    CONSTRAINT requests_already_deleted_by_check CHECK (already_deleted_by IS NULL OR (status = 'completed'
        AND batch_id IS NULL AND already_deleted_by <> id)),
    CONSTRAINT requests_failed_check CHECK ((status = 'failed') = (failed_at IS NOT NULL)
        AND (status = 'failed') = (failure IS NOT NULL) AND (status <> 'failed' OR batch_id IS NULL)),
    CONSTRAINT requests_cancelled_check CHECK ((status = 'cancelled') = (cancelled_at IS NOT NULL)
        AND (status <> 'cancelled' OR (ciphertext IS NULL AND batch_id IS NULL))),
    CONSTRAINT requests_retrained_check CHECK ((guarantee = 'retrained') = (repair = 'converged')),
    CONSTRAINT requests_commitments_check CHECK (octet_length(subject_commitments) = count * CASE kind WHEN 'edge'
        THEN 64 ELSE 32 END AND octet_length(reference_commitment) = 32)
);

CREATE INDEX requests_applied_at ON requests (model, applied_at) INCLUDE (received_at) WHERE applied_at IS NOT NULL;

CREATE INDEX requests_batch ON requests (batch_id) WHERE batch_id IS NOT NULL;

CREATE INDEX requests_completed_at ON requests (model, completed_at) INCLUDE (received_at) 
    WHERE completed_at IS NOT NULL;

CREATE INDEX requests_failed_at ON requests (model, failed_at) INCLUDE (received_at) WHERE failed_at IS NOT NULL;

CREATE UNIQUE INDEX requests_idempotency ON requests (api_key_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE INDEX requests_newest_by_status ON requests (status, received_at, id);

CREATE INDEX requests_open ON requests (model, received_at) INCLUDE (id) WHERE status IN ('queued', 'applied');

CREATE INDEX requests_queued ON requests (model, received_at) INCLUDE (count, api_key_id) WHERE status = 'queued';

CREATE INDEX requests_reference ON requests (reference, received_at, id) WHERE reference IS NOT NULL;

CREATE INDEX requests_repair_pending ON requests (model) WHERE repair = 'pending';

-- The moves are those of service.domain.states.TRANSITIONS; a test compares the two.
CREATE FUNCTION requests_check_transition() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.status, NEW.status) NOT IN (
        ('queued', 'applied'), ('queued', 'completed'), ('queued', 'failed'), ('queued', 'cancelled'),
        ('applied', 'completed'), ('failed', 'queued')
    ) THEN
        RAISE EXCEPTION 'request % cannot go from % to %', OLD.id, OLD.status, NEW.status
            USING ERRCODE = 'check_violation', TABLE = 'requests', CONSTRAINT = 'requests_transition';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER requests_transition BEFORE UPDATE OF status ON requests
    FOR EACH ROW WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION requests_check_transition();

CREATE TRIGGER requests_begin_queued BEFORE INSERT ON requests
    FOR EACH ROW WHEN (NEW.status <> 'queued') EXECUTE FUNCTION refuse('a request begins as queued');

CREATE TABLE request_audits (
    request_id uuid PRIMARY KEY REFERENCES requests (id),
    batch_id uuid NOT NULL REFERENCES batches (id),
    deleted integer NOT NULL CHECK (deleted > 0),
    injected_norm_before figure,
    injected_norm_after figure,
    channel_norm_before figure,
    channel_norm_after figure
);

CREATE INDEX request_audits_batch ON request_audits (batch_id);

CREATE TABLE outbox (
    request_id uuid PRIMARY KEY REFERENCES requests (id),
    model text NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL
);

CREATE INDEX outbox_oldest ON outbox (model, created_at);

CREATE TABLE refused_requests (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model text NOT NULL,
    api_key_id uuid NOT NULL REFERENCES api_keys (id),
    kind text NOT NULL CHECK (kind IN ('node', 'edge', 'features')),
    named integer NOT NULL CHECK (named > 0),
    reason text NOT NULL,
    refused_at timestamptz DEFAULT now() NOT NULL
);

CREATE INDEX refused_requests_newest ON refused_requests (model, refused_at);

CREATE TRIGGER refused_requests_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON refused_requests
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('refused requests are never changed');

CREATE VIEW audit_refusals AS
    SELECT r.refused_at, r.model, k.name AS api_key, r.kind, r.named, r.reason
    FROM refused_requests r JOIN api_keys k ON k.id = r.api_key_id;
