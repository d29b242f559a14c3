-- Requests by which something joins, and requests that withdraw labels from training.

ALTER TABLE api_keys DROP CONSTRAINT api_keys_scopes_check,
    ADD CONSTRAINT api_keys_scopes_check CHECK (cardinality(scopes) > 0
        AND scopes <@ ARRAY['deletions:write', 'deletions:read', 'predictions:read', 'predictions:exact',
            'audit:read', 'graph:write']::text[]);

ALTER TABLE requests DROP CONSTRAINT requests_kind_check,
    ADD CONSTRAINT requests_kind_check
        CHECK (kind IN ('node', 'edge', 'features', 'label', 'addition', 'correction')),
    DROP CONSTRAINT requests_ciphertext_length,
    -- The longest entry of a deletion is an edge with its salts. Features are as long as the model has columns.
    ADD CONSTRAINT requests_ciphertext_length CHECK (octet_length(ciphertext) <=
        CASE WHEN kind IN ('addition', 'correction') THEN 8388608 ELSE 16384::bigint * (count + 1) END),
    DROP CONSTRAINT requests_commitments_check,
    -- An addition names nodes and edges.
    ADD CONSTRAINT requests_commitments_check CHECK (octet_length(reference_commitment) = 32
        AND octet_length(subject_commitments) % 32 = 0 AND octet_length(subject_commitments) BETWEEN
            count * CASE kind WHEN 'edge' THEN 64 ELSE 32 END
            AND count * CASE WHEN kind IN ('edge', 'addition') THEN 64 ELSE 32 END);

ALTER TABLE refused_requests DROP CONSTRAINT refused_requests_kind_check,
    ADD CONSTRAINT refused_requests_kind_check
        CHECK (kind IN ('node', 'edge', 'features', 'label', 'addition', 'correction'));

ALTER TABLE tombstones DROP CONSTRAINT tombstones_kind_check,
    ADD CONSTRAINT tombstones_kind_check CHECK (kind IN ('node', 'edge', 'features', 'label')),
    -- The request by which the deleted one joined again: the tombstone is void until a later request deletes it anew.
    ADD COLUMN rejoined_by uuid REFERENCES requests (id);

ALTER TABLE request_audits DROP CONSTRAINT request_audits_deleted_check,
    ADD COLUMN training_norm_before figure,
    ADD COLUMN training_norm_after figure,
    ADD COLUMN joined integer CHECK (joined >= 0),
    ADD COLUMN rejoined integer CHECK (rejoined >= 0),
    ADD CONSTRAINT request_audits_deleted_check CHECK (deleted >= 0 AND deleted + coalesce(joined, 0) > 0);

ALTER TABLE imports ADD COLUMN without_added boolean DEFAULT false NOT NULL;

ALTER TABLE imports ALTER COLUMN without_added DROP DEFAULT;

ALTER TABLE versions ADD COLUMN deleted_labels integer DEFAULT 0 NOT NULL CHECK (deleted_labels >= 0);

ALTER TABLE versions ALTER COLUMN deleted_labels DROP DEFAULT;

ALTER TABLE batches DROP CONSTRAINT batches_factor_method_check,
    ADD CONSTRAINT batches_factor_method_check
        CHECK (factor_method IN ('none', 'decompose', 'downdate', 'refactorise', 'update', 'rescale')),
    ADD COLUMN nodes_joined integer DEFAULT 0 NOT NULL CHECK (nodes_joined >= 0),
    ADD COLUMN edges_joined integer DEFAULT 0 NOT NULL CHECK (edges_joined >= 0),
    ADD COLUMN features_joined integer DEFAULT 0 NOT NULL CHECK (features_joined >= 0),
    ADD COLUMN labels_joined integer DEFAULT 0 NOT NULL CHECK (labels_joined >= 0),
    ADD COLUMN directions_gained integer DEFAULT 0 NOT NULL CHECK (directions_gained >= 0);

ALTER TABLE batches ALTER COLUMN nodes_joined DROP DEFAULT, ALTER COLUMN edges_joined DROP DEFAULT,
    ALTER COLUMN features_joined DROP DEFAULT, ALTER COLUMN labels_joined DROP DEFAULT,
    ALTER COLUMN directions_gained DROP DEFAULT;

-- The keyed hashes of nodes that an unfinished addition names: they may be deleted before they are in the graph.
CREATE TABLE queued_joins (
    hash bytea NOT NULL CHECK (octet_length(hash) = 32),
    request_id uuid NOT NULL REFERENCES requests (id) ON DELETE CASCADE,
    model text NOT NULL,
    key_number smallint NOT NULL CHECK (key_number > 0),
    PRIMARY KEY (hash, request_id),
    CONSTRAINT queued_joins_model_length CHECK (char_length(model) <= 512)
);

CREATE INDEX queued_joins_request ON queued_joins (request_id);

CREATE FUNCTION requests_join_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM queued_joins WHERE request_id = NEW.id;
    RETURN NULL;
END
$$;

-- A failed one may be tried again while its content is kept.
CREATE TRIGGER requests_join_ended AFTER UPDATE OF status, ciphertext ON requests
    FOR EACH ROW WHEN (NEW.kind = 'addition'
        AND (NEW.status IN ('applied', 'completed', 'cancelled') OR NEW.ciphertext IS NULL))
    EXECUTE FUNCTION requests_join_ended();

-- The scope that an API key needs for a request: a process of the api changes no request but by these functions.
CREATE FUNCTION request_scope(asked uuid) RETURNS text LANGUAGE sql STABLE
    RETURN coalesce((SELECT CASE WHEN kind IN ('addition', 'correction') THEN 'graph:write' END
        FROM requests WHERE id = asked), 'deletions:write');

CREATE OR REPLACE FUNCTION request_cancel(asked uuid, of_key uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, ARRAY[request_scope(asked)]) THEN
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

CREATE OR REPLACE FUNCTION request_retry(asked uuid, of_key uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, ARRAY[request_scope(asked), 'audit:read']) THEN
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

CREATE OR REPLACE FUNCTION request_handle(asked uuid, of_key uuid, why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, ARRAY[request_scope(asked), 'audit:read']) THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET handled_at = now(), ciphertext = NULL
    WHERE id = asked AND status = 'failed' AND handled_at IS NULL;
    IF FOUND THEN
        INSERT INTO decisions (request_id, type, reason, api_key_id) VALUES (asked, 'handled', why, of_key);
        PERFORM pg_notify('lethe_decisions', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

CREATE OR REPLACE FUNCTION request_extend(asked uuid, of_key uuid, until timestamptz, why text) RETURNS boolean
    LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, ARRAY[request_scope(asked), 'audit:read']) THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET due_at = until
    WHERE id = asked AND ended_at IS NULL AND due_at >= now() AND due_at < until;
    IF FOUND THEN
        INSERT INTO decisions (request_id, type, reason, due_at, api_key_id)
            VALUES (asked, 'extended', why, until, of_key);
        PERFORM pg_notify('lethe_decisions', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- With what joins, at its end.
CREATE OR REPLACE VIEW audit_export AS
    SELECT r.id, r.model, r.kind, r.status, r.count, r.received_at, r.applied_at, r.completed_at, r.failed_at,
           r.cancelled_at, r.guarantee, r.repair, r.already_deleted_by,
           extract(epoch FROM r.applied_at - r.received_at)::double precision AS seconds_to_applied,
           extract(epoch FROM r.completed_at - r.received_at)::double precision AS seconds_to_completed,
           v.id AS batch_id, v.committed_at, v.number_before AS model_version_before, v.number AS model_version_after,
           v.weights_sha256_before, v.weights_sha256 AS weights_sha256_after, b.rank_before, v.rank AS rank_after,
           v.directions_removed, v.live_nodes, a.deleted, a.injected_norm_before, a.injected_norm_after,
           b.lost_direction_norm_before, b.lost_direction_norm_after, a.channel_norm_before, a.channel_norm_after,
           v.span_residual, b.weight_change, v.distance_bound_before,
           CASE WHEN e.id IS NULL THEN v.distance_bound_after ELSE e.distance_bound_after END AS distance_bound_after,
           v.distance_bound_before_relative,
           CASE WHEN e.id IS NULL THEN v.distance_bound_after_relative ELSE e.distance_bound_after_relative END
               AS distance_bound_after_relative,
           e.repair_iterations, e.repair_weight_change, e.number AS repair_version,
           e.weights_sha256 AS repair_weights_sha256, b.coefficient_residual, b.factor_method, v.device,
           b.distance_bound_start_relative, e.repair_tolerance, b.factor_age_s, v.publication_epsilon, v.publication_delta,
           v.publications_planned, v.publication_mu, coalesce(e.commitment_salt, v.commitment_salt) AS commitment_salt,
           r.due_at, CASE WHEN r.ended_at IS NULL AND r.due_at < now() THEN true ELSE r.ended_late END AS late,
           r.ended_at, r.handled_at, r.handled_by, b.nodes_joined, b.edges_joined, b.features_joined, b.labels_joined,
           b.directions_gained, a.joined, a.rejoined, a.training_norm_before, a.training_norm_after
    FROM requests r
    LEFT JOIN request_audits a ON a.request_id = r.id AND r.status IN ('applied', 'completed')
    LEFT JOIN batches b ON b.id = a.batch_id LEFT JOIN versions v ON v.id = b.id
    LEFT JOIN versions e ON e.model = v.model AND e.number = v.repair_version;
