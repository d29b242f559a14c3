ALTER TABLE feed DROP CONSTRAINT feed_milestone_check,
    ADD CONSTRAINT feed_milestone_check CHECK (milestone IN ('accepted', 'applied', 'repaired', 'completed', 'failed',
        'late', 'held', 'released'));

CREATE OR REPLACE FUNCTION requests_feed_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO feed (request_id, api_key_id, milestone, status)
    SELECT moved.id, moved.api_key_id, reached.milestone, moved.status
    FROM added moved JOIN removed earlier ON earlier.id = moved.id, LATERAL (VALUES
        (1, 'accepted', moved.status = 'queued' AND earlier.status <> 'queued'),
        (2, 'applied', moved.status = 'applied' AND earlier.status <> 'applied'),
        (3, 'repaired', moved.repair = 'converged' AND earlier.repair IS DISTINCT FROM 'converged'),
        (4, 'completed', moved.status = 'completed' AND earlier.status <> 'completed'),
        (5, 'failed', moved.status = 'failed' AND earlier.status <> 'failed'),
        (6, 'held', moved.held_at IS NOT NULL AND earlier.held_at IS NULL),
        (7, 'released', moved.held_at IS NULL AND earlier.held_at IS NOT NULL AND moved.status = 'queued')
    ) reached (n, milestone, now)
    WHERE reached.now ORDER BY reached.n, moved.received_at, moved.id;
    RETURN NULL;
END
$$;
