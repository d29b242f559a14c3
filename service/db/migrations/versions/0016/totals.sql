-- A drill is recorded after its request, in the same transaction: it is counted with the request and taken out at once.
-- Later changes of its request change no total.
DO $outer$
DECLARE
    name text;
    changes text;
    condition text;
BEGIN
    FOR name, changes, condition IN VALUES
        ('requests_total_insert', 'SELECT 1 AS sign, added.* FROM added', 'd.request_id IS NULL'),
        ('requests_total_update', 'SELECT 1 AS sign, added.* FROM added UNION ALL SELECT -1, removed.* FROM removed',
            'd.request_id IS NULL'),
        ('requests_total_delete', 'SELECT -1 AS sign, removed.* FROM removed', 'd.request_id IS NULL'),
        ('requests_total_drill', 'SELECT -1 AS sign, r.* FROM added JOIN requests r ON r.id = added.request_id', 'true')
    LOOP
        EXECUTE format($function$
            CREATE OR REPLACE FUNCTION %1$s() RETURNS trigger LANGUAGE plpgsql AS $$
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
        $function$, name, changes, condition);
    END LOOP;
END
$outer$;

CREATE TRIGGER drills_total AFTER INSERT ON drills REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION requests_total_drill();

-- What was counted of earlier drills; until now their `late` was null.
INSERT INTO audit_counts (model, day, status, kind, guarantee, repair, unchanged, late, requests)
SELECT r.model, (r.received_at AT TIME ZONE 'UTC')::date, r.status, r.kind, r.guarantee, r.repair,
       CASE WHEN r.applied_at IS NOT NULL THEN v.directions_removed = 0 END, NULL, -count(*)
FROM drills d JOIN requests r ON r.id = d.request_id LEFT JOIN versions v ON v.id = r.batch_id
GROUP BY 1, 2, 3, 4, 5, 6, 7;

INSERT INTO audit_times (model, day, step, class, requests)
SELECT r.model, (s.at AT TIME ZONE 'UTC')::date, s.step, audit_class(s.at - r.received_at), -count(*)
FROM drills d JOIN requests r ON r.id = d.request_id, LATERAL (VALUES
    ('received', r.received_at), ('applied', r.applied_at), ('completed', r.completed_at), ('failed', r.failed_at)
) s (step, at)
WHERE s.at IS NOT NULL GROUP BY 1, 2, 3, 4
