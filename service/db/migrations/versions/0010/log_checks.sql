-- How far each API key has checked the log, and when: what a watcher or a browser says once it has found all in order.
CREATE TABLE log_checks (
    api_key_id uuid PRIMARY KEY REFERENCES api_keys (id),
    size bigint NOT NULL CHECK (size >= 0),
    checked_at timestamptz DEFAULT now() NOT NULL
);

-- A report names what failed in a month, of which there is little.
CREATE INDEX events_failed ON events (created_at) WHERE type = 'failed';

-- A list may be in the order of deadlines, which seldom change.
CREATE INDEX request_search_due ON request_search (due_at, request_id)
