-- The totals by day tell on time and late. Drills are neither: nobody has a right to them within a time.
ALTER TABLE audit_counts ADD COLUMN late boolean;

DROP INDEX audit_counts_folded;

CREATE UNIQUE INDEX audit_counts_folded ON audit_counts (model, day, status, kind, guarantee, repair, unchanged, late)
    NULLS NOT DISTINCT WHERE folded;

DELETE FROM audit_counts;

INSERT INTO audit_counts (model, day, status, kind, guarantee, repair, unchanged, late, requests, folded)
SELECT r.model, (r.received_at AT TIME ZONE 'UTC')::date, r.status, r.kind, r.guarantee, r.repair,
       CASE WHEN r.applied_at IS NOT NULL THEN v.directions_removed = 0 END,
       CASE WHEN d.request_id IS NULL THEN r.ended_late END, count(*), true
FROM requests r LEFT JOIN versions v ON v.id = r.batch_id LEFT JOIN drills d ON d.request_id = r.id
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8;

-- As before, and with `late`.
DO $outer$
DECLARE
    operation text;
    changes text;
BEGIN
    FOR operation, changes IN VALUES
        ('insert', 'SELECT 1 AS sign, added.* FROM added'),
        ('update', 'SELECT 1 AS sign, added.* FROM added UNION ALL SELECT -1, removed.* FROM removed'),
        ('delete', 'SELECT -1 AS sign, removed.* FROM removed')
    LOOP
        EXECUTE format($function$
            CREATE OR REPLACE FUNCTION requests_total_%1$s() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO audit_counts (model, day, status, kind, guarantee, repair, unchanged, late, requests)
                SELECT c.model, (c.received_at AT TIME ZONE 'UTC')::date, c.status, c.kind, c.guarantee, c.repair,
                       CASE WHEN c.applied_at IS NOT NULL THEN v.directions_removed = 0 END AS unchanged,
                       CASE WHEN d.request_id IS NULL THEN c.ended_late END AS late, sum(c.sign)
                FROM (%2$s) c LEFT JOIN versions v ON v.id = c.batch_id LEFT JOIN drills d ON d.request_id = c.id
                GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 HAVING sum(c.sign) <> 0;
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
    END LOOP;
END
$outer$;

CREATE OR REPLACE FUNCTION audit_fold() RETURNS void LANGUAGE plpgsql AS $$
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
$$
