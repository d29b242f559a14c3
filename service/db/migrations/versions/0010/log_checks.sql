-- How far each API key has checked the log, and when: what a watcher or a browser says once it has found all in order.
CREATE TABLE log_checks (
    api_key_id uuid PRIMARY KEY REFERENCES api_keys (id),
    size bigint NOT NULL CHECK (size >= 0),
    checked_at timestamptz DEFAULT now() NOT NULL
);

-- A report names what failed in a month, of which there is little.
CREATE INDEX events_failed ON events (created_at) WHERE type = 'failed';

-- Whether the model that a drill was of is still served: of imports there are few.
CREATE INDEX versions_imported ON versions (model, number) WHERE cause = 'import';

-- A series reads the bound of every version of its time: from the index alone.
DROP INDEX versions_committed_at;

CREATE INDEX versions_committed_at ON versions (model, committed_at)
    INCLUDE (rank, live_nodes, cause, number, repair_version, distance_bound_after_relative);

-- A list may be in the order of deadlines, which seldom change.
CREATE INDEX request_search_due ON request_search (due_at, request_id)
