-- Daily totals for audit queries, derived from requests by triggers. Drills are excluded, because their synthetic nodes
-- belong to nobody.

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
    folded boolean DEFAULT false NOT NULL,
    late boolean
);

CREATE INDEX audit_counts_days ON audit_counts (model, day);

CREATE UNIQUE INDEX audit_counts_folded ON audit_counts (model, day, status, kind, guarantee, repair, unchanged, late)
    NULLS NOT DISTINCT WHERE folded;

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

-- Classes start at one millisecond, in steps of 2 %: a class's middle is within 1 % of all its values. A function with
-- an SQL body resolves names at creation. Unlike one with its own search path, it is still inlined.
CREATE FUNCTION audit_class(age interval) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ceil(ln(greatest(extract(epoch FROM age)::double precision, 0.001)) / ln(1.02::double precision))::smallint;

CREATE FUNCTION audit_seconds(class smallint) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN 2 * power(1.02::double precision, class) / 2.02;

-- A change of requests only adds signed rows to the totals, so no transaction waits for another. A drill is recorded
-- after its request, in the same transaction: it is counted with the request and subtracted immediately.
DO $outer$
DECLARE
    operation text;
    event text;
    tables text;
    changes text;
    condition text;
BEGIN
    FOR operation, event, tables, changes, condition IN VALUES
        ('insert', 'INSERT ON requests', 'NEW TABLE AS added', 'SELECT 1 AS sign, added.* FROM added',
            'd.request_id IS NULL'),
        ('update', 'UPDATE ON requests', 'OLD TABLE AS removed NEW TABLE AS added',
            'SELECT 1 AS sign, added.* FROM added UNION ALL SELECT -1, removed.* FROM removed', 'd.request_id IS NULL'),
        ('delete', 'DELETE ON requests', 'OLD TABLE AS removed', 'SELECT -1 AS sign, removed.* FROM removed',
            'd.request_id IS NULL'),
        ('drill', 'INSERT ON drills', 'NEW TABLE AS added',
            'SELECT -1 AS sign, r.* FROM added JOIN requests r ON r.id = added.request_id', 'true')
    LOOP
        EXECUTE format($function$
            CREATE FUNCTION requests_total_%1$s() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO audit_counts (model, day, status, kind, guarantee, repair, unchanged, late, requests)
                SELECT c.model, (c.received_at AT TIME ZONE 'UTC')::date, c.status, c.kind, c.guarantee, c.repair,
                       CASE WHEN c.applied_at IS NOT NULL THEN v.directions_removed = 0 END AS unchanged,
                       c.ended_late, sum(c.sign)
                FROM (%2$s) c LEFT JOIN versions v ON v.id = c.batch_id LEFT JOIN drills d ON d.request_id = c.id
                WHERE %3$s GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 HAVING sum(c.sign) <> 0;
                INSERT INTO audit_times (model, day, step, class, requests)
                SELECT c.model, (s.at AT TIME ZONE 'UTC')::date, s.step, audit_class(s.at - c.received_at), sum(c.sign)
                FROM (%2$s) c LEFT JOIN drills d ON d.request_id = c.id, LATERAL (VALUES
                    ('received', c.received_at), ('applied', c.applied_at), ('completed', c.completed_at),
                    ('failed', c.failed_at)
                ) s (step, at)
                WHERE %3$s AND s.at IS NOT NULL GROUP BY 1, 2, 3, 4 HAVING sum(c.sign) <> 0;
                RETURN NULL;
            END $$
        $function$, operation, changes, condition);
        EXECUTE format('CREATE TRIGGER requests_total_%1$s AFTER %2$s REFERENCING %3$s
            FOR EACH STATEMENT EXECUTE FUNCTION requests_total_%1$s()', operation, event, tables);
    END LOOP;
END
$outer$;

CREATE FUNCTION audit_fold() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH added AS (
        DELETE FROM audit_counts WHERE NOT folded
        RETURNING model, day, status, kind, guarantee, repair, unchanged, late, requests
    )
    INSERT INTO audit_counts (model, day, status, kind, guarantee, repair, unchanged, late, requests, folded)
    SELECT model, day, status, kind, guarantee, repair, unchanged, late, sum(requests), true FROM added
    GROUP BY model, day, status, kind, guarantee, repair, unchanged, late HAVING sum(requests) <> 0
    ON CONFLICT (model, day, status, kind, guarantee, repair, unchanged, late) WHERE folded
    DO UPDATE SET requests = audit_counts.requests + excluded.requests;
    WITH added AS (DELETE FROM audit_times WHERE NOT folded RETURNING model, day, step, class, requests)
    INSERT INTO audit_times (model, day, step, class, requests, folded)
    SELECT model, day, step, class, sum(requests), true FROM added
    GROUP BY model, day, step, class HAVING sum(requests) <> 0
    ON CONFLICT (model, day, step, class) WHERE folded
    DO UPDATE SET requests = audit_times.requests + excluded.requests;
END
$$;
