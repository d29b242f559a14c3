-- Deletion requests, their measurements, those on their way to the stream, and refused ones.

-- One row, which every start writes and which triggers and views read.
CREATE TABLE service_settings (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    deadline_days double precision NOT NULL CHECK (deadline_days > 0 AND deadline_days < 'Infinity'::double precision)
);

INSERT INTO service_settings (deadline_days) VALUES (30);

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
    -- Location of the id list's key: the slot file and the place in it. Kept until the key is destroyed, which happens
    -- after the ciphertext is dropped.
    key_file smallint CHECK (key_file >= 0),
    key_place integer CHECK (key_place > 0),
    due_at timestamptz NOT NULL,
    handled_at timestamptz,
    handled_by uuid REFERENCES requests (id),
    -- A request is open until it ends. A withdrawn one is neither late nor on time.
    ended_at timestamptz GENERATED ALWAYS AS (coalesce(completed_at, cancelled_at, handled_at)) STORED,
    ended_late boolean GENERATED ALWAYS AS (
        CASE WHEN cancelled_at IS NULL THEN coalesce(completed_at, handled_at) > due_at END
    ) STORED,
    -- Since when a request waits in the queue: its receipt or its last retry. No login writes it.
    queued_at timestamptz DEFAULT now() NOT NULL,
    -- The Lethe process that accepts a request vouches for it with a key outside the database.
    voucher bytea CHECK (octet_length(voucher) = 32),
    -- The largest LETHE_MAX_NODES_PER_REQUEST: one row must not fill the queue of all API keys.
    CONSTRAINT requests_count_most CHECK (count <= 100000),
    CONSTRAINT requests_reference_length CHECK (char_length(reference) <= 200),
    CONSTRAINT requests_idempotency_key_length CHECK (char_length(idempotency_key) <= 255),
    -- The longest entry is an edge with its salts.
    CONSTRAINT requests_ciphertext_length CHECK (octet_length(ciphertext) <= 16384::bigint * (count + 1)),
    CONSTRAINT requests_key_slot_check CHECK ((key_file IS NULL) = (key_place IS NULL)),
    CONSTRAINT requests_due_check CHECK (due_at > received_at),
    CONSTRAINT requests_handled_check CHECK (handled_at IS NULL OR (status = 'failed' AND ciphertext IS NULL)),
    CONSTRAINT requests_handled_by_check CHECK (handled_by IS NULL OR (handled_at IS NOT NULL AND handled_by <> id)),
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

-- Failed requests whose ids are kept for a retry or for a later request that settles them.
CREATE INDEX requests_failed_kept ON requests (model, failed_at) WHERE status = 'failed' AND ciphertext IS NOT NULL;

CREATE INDEX requests_handled_by ON requests (handled_by) WHERE handled_by IS NOT NULL;

CREATE UNIQUE INDEX requests_idempotency ON requests (api_key_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE INDEX requests_keys_dropped ON requests (id) WHERE ciphertext IS NULL AND key_place IS NOT NULL;

CREATE INDEX requests_newest_by_status ON requests (status, received_at, id);

CREATE INDEX requests_open ON requests (model, received_at) INCLUDE (id, due_at, status) WHERE ended_at IS NULL;

CREATE INDEX requests_queued ON requests (model, received_at) INCLUDE (count, api_key_id) WHERE status = 'queued';

CREATE INDEX requests_reference ON requests (reference, received_at, id) WHERE reference IS NOT NULL;

CREATE INDEX requests_repair_pending ON requests (model) WHERE repair = 'pending';

-- The moves match service.domain.states.TRANSITIONS, as a test checks.
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

-- The deadline starts at receipt and uses the setting in force at that time.
CREATE FUNCTION requests_set_due() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.due_at := NEW.received_at + (SELECT make_interval(secs => deadline_days * 86400) FROM service_settings);
    RETURN NEW;
END
$$;

CREATE TRIGGER requests_due BEFORE INSERT OR UPDATE OF received_at ON requests
    FOR EACH ROW EXECUTE FUNCTION requests_set_due();

CREATE FUNCTION requests_queue_again() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.queued_at := now();
    RETURN NEW;
END
$$;

CREATE TRIGGER requests_queued_again BEFORE UPDATE OF status ON requests
    FOR EACH ROW WHEN (OLD.status <> NEW.status AND NEW.status = 'queued') EXECUTE FUNCTION requests_queue_again();

CREATE FUNCTION requests_key_dropped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('lethe_keys', 'dropped');
    RETURN NULL;
END
$$;

-- Wake the process that destroys the key of a dropped ciphertext.
CREATE TRIGGER requests_key_dropped AFTER UPDATE OF ciphertext ON requests
    FOR EACH ROW WHEN (OLD.ciphertext IS NOT NULL AND NEW.ciphertext IS NULL)
    EXECUTE FUNCTION requests_key_dropped();

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
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT outbox_model_length CHECK (char_length(model) <= 512)
);

CREATE INDEX outbox_oldest ON outbox (model, created_at);

CREATE TABLE refused_requests (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model text NOT NULL,
    api_key_id uuid NOT NULL REFERENCES api_keys (id),
    kind text NOT NULL CHECK (kind IN ('node', 'edge', 'features')),
    named integer NOT NULL CHECK (named > 0),
    reason text NOT NULL,
    refused_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT refused_requests_model_length CHECK (char_length(model) <= 512),
    CONSTRAINT refused_requests_named_most CHECK (named <= 100000),
    CONSTRAINT refused_requests_reason_length CHECK (char_length(reason) <= 100)
);

CREATE INDEX refused_requests_newest ON refused_requests (model, refused_at);

CREATE TRIGGER refused_requests_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON refused_requests
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('refused requests are never changed');

CREATE VIEW audit_refusals AS
    SELECT r.refused_at, r.model, k.name AS api_key, r.kind, r.named, r.reason
    FROM refused_requests r JOIN api_keys k ON k.id = r.api_key_id;

-- An api process never changes a request directly, but calls these functions. They alone decide whether it is too late.
-- They return null for a key that the route would refuse. Without audit:read, a key cancels only its own requests.
CREATE FUNCTION request_cancel(asked uuid, of_key uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, '{deletions:write}') THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET status = 'cancelled', cancelled_at = now(), ciphertext = NULL, subject_commitments = NULL,
        reference_commitment = NULL
    WHERE id = asked AND status = 'queued' AND batch_id IS NULL AND taken_at IS NULL
        AND (api_key_id = of_key OR api_key_may(of_key, '{audit:read}'));
    IF FOUND THEN
        DELETE FROM outbox WHERE request_id = asked;
        RETURN true;
    END IF;
    RETURN false;
END
$$;

CREATE FUNCTION request_retry(asked uuid, of_key uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, '{deletions:write,audit:read}') THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET status = 'queued', failed_at = NULL, failure = NULL, swept_at = NULL, taken_at = NULL
    WHERE id = asked AND status = 'failed' AND ciphertext IS NOT NULL;
    IF FOUND THEN
        INSERT INTO outbox (request_id, model) SELECT id, model FROM requests WHERE id = asked ON CONFLICT DO NOTHING;
        RETURN true;
    END IF;
    RETURN false;
END
$$;
