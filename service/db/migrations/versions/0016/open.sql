-- As before, without drills.
CREATE OR REPLACE VIEW audit_open AS
    SELECT model, count(*) AS open, min(received_at) AS oldest_open_received_at,
           count(*) FILTER (WHERE due_at < now()) AS open_past_deadline,
           count(*) FILTER (WHERE due_at >= now() AND received_at + 0.8 * (due_at - received_at) < now())
               AS open_near_deadline,
           count(*) FILTER (WHERE status = 'failed') AS open_failed
    FROM requests r
    WHERE ended_at IS NULL AND NOT EXISTS (SELECT FROM drills d WHERE d.request_id = r.id) GROUP BY model
