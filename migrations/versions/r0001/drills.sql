-- The requests that are drills, with figures read from the weights.

CREATE TABLE drills (
    request_id uuid PRIMARY KEY REFERENCES requests (id),
    number bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    model text NOT NULL,
    cohort integer NOT NULL CHECK (cohort > 0),
    requested_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT drills_model_length CHECK (char_length(model) <= 512)
);

CREATE INDEX drills_newest ON drills (model, number);

CREATE TRIGGER drills_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON drills
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('drills are never changed');

-- 1e-12 is service.domain.drills.MOST_LEFT. A drill no longer describes the served model once an import has replaced
-- it: an import after the version that applied the drill, or after its request if it was never applied.
CREATE VIEW audit_drills AS
    SELECT d.request_id, d.model, d.number, d.cohort, d.requested_at, r.status, r.applied_at, r.completed_at,
           r.failed_at, extract(epoch FROM r.completed_at - r.received_at)::double precision AS seconds_to_completed,
           a.channel_norm_before, a.channel_norm_after,
           CASE r.status
               WHEN 'failed' THEN false
               WHEN 'completed' THEN coalesce(
                   a.channel_norm_before > 0 AND a.channel_norm_after <= 1e-12 * a.channel_norm_before, false
               )
           END AS passed,
           (
               SELECT i.committed_at FROM versions i
               WHERE i.model = d.model AND i.cause = 'import'
                   AND CASE WHEN v.id IS NOT NULL THEN i.number > v.number ELSE i.committed_at > d.requested_at END
               ORDER BY i.number LIMIT 1
           ) AS model_replaced_at
    FROM drills d JOIN requests r ON r.id = d.request_id
    LEFT JOIN request_audits a ON a.request_id = r.id AND r.status IN ('applied', 'completed')
    LEFT JOIN versions v ON v.id = a.batch_id;
