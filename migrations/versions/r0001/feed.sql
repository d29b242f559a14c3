-- Events of requests for subscribers, written by the same transaction that moves a request.

CREATE TABLE feed (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- In order of writing, which is not the order of commits.
    number bigint GENERATED ALWAYS AS IDENTITY,
    -- In order of publication, without gaps. Null until published.
    place bigint UNIQUE CHECK (place > 0),
    request_id uuid NOT NULL REFERENCES requests (id),
    api_key_id uuid NOT NULL REFERENCES api_keys (id),
    milestone text NOT NULL CHECK (milestone IN ('accepted', 'applied', 'repaired', 'completed', 'failed', 'late')),
    status text NOT NULL CHECK (status IN ('queued', 'applied', 'completed', 'failed', 'cancelled')),
    at timestamptz DEFAULT now() NOT NULL,
    due_at timestamptz,
    CONSTRAINT feed_told_check CHECK (place IS NULL OR due_at IS NOT NULL),
    CONSTRAINT feed_late_check CHECK (milestone <> 'late' OR due_at IS NOT NULL)
);

CREATE INDEX feed_untold ON feed (number) WHERE place IS NULL;

CREATE INDEX feed_of_key ON feed (api_key_id, place);

CREATE UNIQUE INDEX feed_late_once ON feed (request_id, due_at) WHERE milestone = 'late';

CREATE TRIGGER feed_told BEFORE UPDATE ON feed
    FOR EACH ROW WHEN (OLD.place IS NOT NULL) EXECUTE FUNCTION refuse('events of the feed are never changed');

CREATE TRIGGER feed_append_only BEFORE DELETE OR TRUNCATE ON feed
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('events of the feed are never changed');

CREATE FUNCTION requests_feed_accepted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO feed (request_id, api_key_id, milestone, status)
    SELECT id, api_key_id, 'accepted', status FROM added ORDER BY received_at, id;
    RETURN NULL;
END
$$;

CREATE TRIGGER requests_feed_accepted AFTER INSERT ON requests REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION requests_feed_accepted();

-- A retried request is accepted again. The milestones of one move are published in their own order.
CREATE FUNCTION requests_feed_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO feed (request_id, api_key_id, milestone, status)
    SELECT moved.id, moved.api_key_id, reached.milestone, moved.status
    FROM added moved JOIN removed earlier ON earlier.id = moved.id, LATERAL (VALUES
        (1, 'accepted', moved.status = 'queued' AND earlier.status <> 'queued'),
        (2, 'applied', moved.status = 'applied' AND earlier.status <> 'applied'),
        (3, 'repaired', moved.repair = 'converged' AND earlier.repair IS DISTINCT FROM 'converged'),
        (4, 'completed', moved.status = 'completed' AND earlier.status <> 'completed'),
        (5, 'failed', moved.status = 'failed' AND earlier.status <> 'failed')
    ) reached (n, milestone, now)
    WHERE reached.now ORDER BY reached.n, moved.received_at, moved.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER requests_feed_moved AFTER UPDATE ON requests REFERENCING OLD TABLE AS removed NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION requests_feed_moved();
