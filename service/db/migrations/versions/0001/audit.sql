-- What triggers derive from requests for the queries of the audit, and views for tools that read SQL.

CREATE TABLE audit_counts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model text NOT NULL,
    day date NOT NULL,
    status text NOT NULL CHECK (status IN ('queued', 'applied', 'completed', 'failed', 'cancelled')),
    kind text NOT NULL,
    guarantee text,
    repair text,
    unchanged boolean,
    requests bigint NOT NULL,
    folded boolean DEFAULT false NOT NULL
);

CREATE INDEX audit_counts_days ON audit_counts (model, day);

CREATE UNIQUE INDEX audit_counts_folded ON audit_counts (model, day, status, kind, guarantee, repair, unchanged) NULLS
    NOT DISTINCT WHERE folded;

CREATE INDEX audit_counts_unfolded ON audit_counts (id) WHERE NOT folded;

CREATE TABLE audit_times (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model text NOT NULL,
    day date NOT NULL,
    step text NOT NULL CHECK (step IN ('received', 'applied', 'completed', 'failed')),
    class smallint NOT NULL,
    requests bigint NOT NULL,
    folded boolean DEFAULT false NOT NULL
);

CREATE INDEX audit_times_days ON audit_times (model, step, day) INCLUDE (class, requests);

CREATE UNIQUE INDEX audit_times_folded ON audit_times (model, day, step, class) WHERE folded;

CREATE INDEX audit_times_unfolded ON audit_times (id) WHERE NOT folded;

-- From a millisecond on, in steps of 2 %: the middle of a class is within 1 % of all that is in it.
CREATE FUNCTION audit_class(age interval) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ceil(ln(greatest(extract(epoch FROM age)::double precision, 0.001)) / ln(1.02::double precision))::smallint
$$;

CREATE FUNCTION audit_seconds(class smallint) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 2 * power(1.02::double precision, class) / 2.02
$$;

-- A change of requests adds signed rows to the totals and changes none, so no transaction waits for another's.
DO $outer$
DECLARE
    operation text;
    tables text;
    changes text;
BEGIN
    FOR operation, tables, changes IN VALUES
        ('insert', 'NEW TABLE AS added', 'SELECT 1 AS sign, added.* FROM added'),
        ('update', 'OLD TABLE AS removed NEW TABLE AS added',
            'SELECT 1 AS sign, added.* FROM added UNION ALL SELECT -1, removed.* FROM removed'),
        ('delete', 'OLD TABLE AS removed', 'SELECT -1 AS sign, removed.* FROM removed')
    LOOP
        EXECUTE format($function$
            CREATE FUNCTION requests_total_%1$s() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO audit_counts (model, day, status, kind, guarantee, repair, unchanged, requests)
                SELECT c.model, (c.received_at AT TIME ZONE 'UTC')::date, c.status, c.kind, c.guarantee, c.repair,
                       CASE WHEN c.applied_at IS NOT NULL THEN v.directions_removed = 0 END AS unchanged, sum(c.sign)
                FROM (%2$s) c LEFT JOIN versions v ON v.id = c.batch_id
                GROUP BY 1, 2, 3, 4, 5, 6, 7 HAVING sum(c.sign) <> 0;
                INSERT INTO audit_times (model, day, step, class, requests)
                SELECT c.model, (s.at AT TIME ZONE 'UTC')::date, s.step, audit_class(s.at - c.received_at), sum(c.sign)
                FROM (%2$s) c, LATERAL (VALUES
                    ('received', c.received_at), ('applied', c.applied_at), ('completed', c.completed_at),
                    ('failed', c.failed_at)
                ) s (step, at)
                WHERE s.at IS NOT NULL GROUP BY 1, 2, 3, 4 HAVING sum(c.sign) <> 0;
                RETURN NULL;
            END $$
        $function$, operation, changes);
        EXECUTE format('CREATE TRIGGER requests_total_%1$s AFTER %1$s ON requests REFERENCING %2$s
            FOR EACH STATEMENT EXECUTE FUNCTION requests_total_%1$s()', operation, tables);
    END LOOP;
END
$outer$;

CREATE FUNCTION audit_fold() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH added AS (
        DELETE FROM audit_counts WHERE NOT folded
        RETURNING model, day, status, kind, guarantee, repair, unchanged, requests
    )
    INSERT INTO audit_counts (model, day, status, kind, guarantee, repair, unchanged, requests, folded)
    SELECT model, day, status, kind, guarantee, repair, unchanged, sum(requests), true FROM added
    GROUP BY model, day, status, kind, guarantee, repair, unchanged HAVING sum(requests) <> 0
    ON CONFLICT (model, day, status, kind, guarantee, repair, unchanged) WHERE folded
    DO UPDATE SET requests = audit_counts.requests + excluded.requests;
    WITH added AS (DELETE FROM audit_times WHERE NOT folded RETURNING model, day, step, class, requests)
    INSERT INTO audit_times (model, day, step, class, requests, folded)
    SELECT model, day, step, class, sum(requests), true FROM added
    GROUP BY model, day, step, class HAVING sum(requests) <> 0
    ON CONFLICT (model, day, step, class) WHERE folded
    DO UPDATE SET requests = audit_times.requests + excluded.requests;
END
$$;

-- One narrow row per request, in place of an index for every filter. Rows are updated a few times soon after they came:
-- there is room for that within the page, so that no index is written for it.
CREATE TABLE request_search (
    request_id uuid PRIMARY KEY,
    api_key_id uuid NOT NULL,
    received_at timestamptz NOT NULL,
    status text NOT NULL,
    kind text NOT NULL,
    guarantee text,
    repair text,
    injected_norm_before double precision,
    injected_norm_after double precision,
    distance_bound_before_relative double precision,
    distance_bound_after_relative double precision,
    span_residual double precision
) WITH (fillfactor = 75);

CREATE INDEX request_search_newest ON request_search (received_at, request_id);

CREATE INDEX request_search_newest_of_key ON request_search (api_key_id, received_at, request_id);

CREATE FUNCTION request_search_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO request_search (request_id, api_key_id, received_at, status, kind, guarantee, repair)
    SELECT id, api_key_id, received_at, status, kind, guarantee, repair FROM added;
    RETURN NULL;
END
$$;

CREATE TRIGGER request_search_insert AFTER INSERT ON requests REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION request_search_insert();

CREATE FUNCTION request_search_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE request_search s SET (api_key_id, received_at, status, kind, guarantee, repair) =
        ROW(a.api_key_id, a.received_at, a.status, a.kind, a.guarantee, a.repair)
    FROM added a WHERE s.request_id = a.id
        AND (s.api_key_id, s.received_at, s.status, s.kind, s.guarantee, s.repair)
            IS DISTINCT FROM (a.api_key_id, a.received_at, a.status, a.kind, a.guarantee, a.repair);
    RETURN NULL;
END
$$;

CREATE TRIGGER request_search_update AFTER UPDATE ON requests REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION request_search_update();

CREATE FUNCTION request_search_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM request_search s USING removed WHERE s.request_id = removed.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER request_search_delete AFTER DELETE ON requests REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION request_search_delete();

-- The bound is that of the version in which the batch's repair ended, where it has.
CREATE VIEW audit_measured AS
    SELECT a.request_id, a.batch_id, a.injected_norm_before, a.injected_norm_after, v.distance_bound_before_relative,
           CASE WHEN e.id IS NULL THEN v.distance_bound_after_relative ELSE e.distance_bound_after_relative END
               AS distance_bound_after_relative, v.span_residual
    FROM request_audits a JOIN versions v ON v.id = a.batch_id
    LEFT JOIN versions e ON e.model = v.model AND e.number = v.repair_version;

CREATE FUNCTION request_search_measured() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE request_search s SET (
        injected_norm_before, injected_norm_after, distance_bound_before_relative, distance_bound_after_relative,
        span_residual
    ) = ROW(
        m.injected_norm_before, m.injected_norm_after, m.distance_bound_before_relative,
        m.distance_bound_after_relative, m.span_residual
    )
    FROM added a JOIN audit_measured m ON m.request_id = a.request_id WHERE s.request_id = a.request_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER request_search_measured AFTER INSERT ON request_audits REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION request_search_measured();

CREATE TRIGGER request_search_corrected AFTER UPDATE ON request_audits REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION request_search_measured();

CREATE FUNCTION request_search_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE request_search s
    SET (distance_bound_before_relative, distance_bound_after_relative, span_residual) =
        ROW(m.distance_bound_before_relative, m.distance_bound_after_relative, m.span_residual)
    FROM added a JOIN audit_measured m ON m.batch_id = a.id WHERE s.request_id = m.request_id
        AND (s.distance_bound_before_relative, s.distance_bound_after_relative, s.span_residual)
            IS DISTINCT FROM (m.distance_bound_before_relative, m.distance_bound_after_relative, m.span_residual);
    RETURN NULL;
END
$$;

CREATE TRIGGER request_search_ended AFTER UPDATE ON versions REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION request_search_ended();

CREATE VIEW audit_summary AS
    WITH classes AS (
        SELECT model, step, class, sum(requests) AS requests FROM audit_times
        WHERE step IN ('applied', 'completed') GROUP BY model, step, class
    ), ranked AS (
        SELECT model, step, class, sum(requests) OVER (PARTITION BY model, step ORDER BY class) AS up_to,
               sum(requests) OVER (PARTITION BY model, step) AS of_step
        FROM classes
    ), timed AS (
        SELECT model, step, audit_seconds(min(class) FILTER (WHERE up_to >= 0.5 * of_step)) AS p50,
               audit_seconds(min(class) FILTER (WHERE up_to >= 0.95 * of_step)) AS p95,
               audit_seconds(min(class) FILTER (WHERE up_to >= 0.99 * of_step)) AS p99
        FROM ranked WHERE of_step > 0 GROUP BY model, step
    ), counted AS (
        SELECT p.model, coalesce(sum(requests), 0)::bigint AS requests,
               coalesce(sum(requests) FILTER (WHERE status = 'queued'), 0)::bigint AS queued,
               coalesce(sum(requests) FILTER (WHERE status = 'applied'), 0)::bigint AS applied,
               coalesce(sum(requests) FILTER (WHERE status = 'completed'), 0)::bigint AS completed,
               coalesce(sum(requests) FILTER (WHERE status = 'failed'), 0)::bigint AS failed,
               coalesce(sum(requests) FILTER (WHERE status = 'cancelled'), 0)::bigint AS cancelled,
               coalesce(sum(requests) FILTER (WHERE guarantee = 'span'), 0)::bigint AS guarantee_span,
               coalesce(sum(requests) FILTER (WHERE guarantee = 'retrained'), 0)::bigint AS guarantee_retrained,
               coalesce(sum(requests) FILTER (WHERE guarantee = 'graph_only'), 0)::bigint AS guarantee_graph_only,
               coalesce(sum(requests) FILTER (WHERE repair = 'pending'), 0)::bigint AS repair_pending,
               coalesce(sum(requests) FILTER (WHERE repair = 'not_converged'), 0)::bigint AS repair_not_converged,
               (coalesce(sum(requests) FILTER (WHERE unchanged), 0)
                   / nullif(sum(requests) FILTER (WHERE unchanged IS NOT NULL), 0))::double precision
                   AS unchanged_projection_share
        FROM pointers p LEFT JOIN audit_counts c ON c.model = p.model GROUP BY p.model
    ), opened AS (
        SELECT model, min(received_at) AS oldest_open_received_at,
               count(*) FILTER (WHERE received_at < now() - interval '30 days') AS open_past_30_days
        FROM requests WHERE status IN ('queued', 'applied') GROUP BY model
    )
    SELECT p.model, p.version AS model_version, v.rank, v.live_nodes,
           c.requests, c.queued, c.applied, c.completed, c.failed, c.cancelled, c.guarantee_span, c.guarantee_retrained,
           c.guarantee_graph_only, c.repair_pending, c.repair_not_converged, c.unchanged_projection_share,
           o.oldest_open_received_at,
           coalesce(o.open_past_30_days, 0) AS open_past_30_days,
           a.p50 AS p50_seconds_to_applied, a.p95 AS p95_seconds_to_applied, a.p99 AS p99_seconds_to_applied,
           d.p50 AS p50_seconds_to_completed, d.p95 AS p95_seconds_to_completed, d.p99 AS p99_seconds_to_completed
    FROM pointers p JOIN counted c ON c.model = p.model
    LEFT JOIN versions v ON v.model = p.model AND v.number = p.version LEFT JOIN opened o ON o.model = p.model
    LEFT JOIN timed a ON a.model = p.model AND a.step = 'applied'
    LEFT JOIN timed d ON d.model = p.model AND d.step = 'completed';

CREATE VIEW audit_series AS
    WITH classes AS (
        SELECT model, day, step, class, sum(requests) AS requests FROM audit_times GROUP BY model, day, step, class
    ), ranked AS (
        SELECT *, sum(requests) OVER (PARTITION BY model, day, step ORDER BY class) AS up_to,
               sum(requests) OVER (PARTITION BY model, day, step) AS of_step
        FROM classes
    )
    SELECT model, day, day::timestamp AT TIME ZONE 'UTC' AS start,
           coalesce(sum(requests) FILTER (WHERE step = 'received'), 0)::bigint AS received,
           coalesce(sum(requests) FILTER (WHERE step = 'applied'), 0)::bigint AS applied,
           coalesce(sum(requests) FILTER (WHERE step = 'completed'), 0)::bigint AS completed,
           coalesce(sum(requests) FILTER (WHERE step = 'failed'), 0)::bigint AS failed,
           audit_seconds(min(class) FILTER (WHERE step = 'completed' AND up_to >= 0.50 * of_step))
               AS median_seconds_to_completed,
           audit_seconds(min(class) FILTER (WHERE step = 'completed' AND up_to >= 0.95 * of_step))
               AS p95_seconds_to_completed
    FROM ranked WHERE of_step > 0 GROUP BY model, day;

CREATE VIEW audit_export AS
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
           e.weights_sha256 AS repair_weights_sha256, b.coefficient_residual, b.factor_method, v.device
    FROM requests r
    LEFT JOIN request_audits a ON a.request_id = r.id AND r.status IN ('applied', 'completed')
    LEFT JOIN batches b ON b.id = a.batch_id LEFT JOIN versions v ON v.id = b.id
    LEFT JOIN versions e ON e.model = v.model AND e.number = v.repair_version;

-- The service works as a role that may write none of what is derived here. What does so has its owner's rights, looks
-- names up where the tables are and never among temporary ones that a caller has made, and is nobody else's to use.
DO $$
DECLARE
    trusted regprocedure;
BEGIN
    FOR trusted IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
        AND proname ~ '^(requests_total_|request_search_|audit_fold$|vault_key_replace$)'
    LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', trusted, current_schema());
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', trusted);
    END LOOP;
END
$$;
