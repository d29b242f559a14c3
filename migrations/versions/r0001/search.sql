-- One narrow row per request replaces an index per filter. Rows are updated a few times soon after insertion. The page
-- reserves space for that, so that updates write no index.
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
    span_residual double precision,
    due_at timestamptz NOT NULL,
    ended_at timestamptz,
    ended_late boolean
) WITH (fillfactor = 75);

CREATE INDEX request_search_newest ON request_search (received_at, request_id);

CREATE INDEX request_search_newest_of_key ON request_search (api_key_id, received_at, request_id);

-- Listings may be sorted by deadline, which seldom changes.
CREATE INDEX request_search_due ON request_search (due_at, request_id);

CREATE FUNCTION request_search_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO request_search (request_id, api_key_id, received_at, status, kind, guarantee, repair, due_at, ended_at,
        ended_late)
    SELECT id, api_key_id, received_at, status, kind, guarantee, repair, due_at, ended_at, ended_late FROM added;
    RETURN NULL;
END
$$;

CREATE TRIGGER request_search_insert AFTER INSERT ON requests REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION request_search_insert();

CREATE FUNCTION request_search_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE request_search s SET (api_key_id, received_at, status, kind, guarantee, repair, due_at, ended_at, ended_late) =
        ROW(a.api_key_id, a.received_at, a.status, a.kind, a.guarantee, a.repair, a.due_at, a.ended_at, a.ended_late)
    FROM added a WHERE s.request_id = a.id
        AND (s.api_key_id, s.received_at, s.status, s.kind, s.guarantee, s.repair, s.due_at, s.ended_at, s.ended_late)
            IS DISTINCT FROM (a.api_key_id, a.received_at, a.status, a.kind, a.guarantee, a.repair, a.due_at,
                a.ended_at, a.ended_late);
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

-- Uses the bound of the version in which the batch's repair ended, if it has ended.
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
