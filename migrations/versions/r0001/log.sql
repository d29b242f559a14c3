-- The transparency log: events, their leaves, the complete subtrees above them, and signed checkpoints.

CREATE TABLE events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_id uuid REFERENCES requests (id),
    type text NOT NULL
        CHECK (type IN ('applied', 'repaired', 'not_repaired', 'completed', 'failed', 'imported', 'recovered', 'certified',
            'log_key_added', 'handled', 'extended')),
    payload jsonb NOT NULL CHECK (jsonb_typeof(payload) = 'object'),
    created_at timestamptz DEFAULT now() NOT NULL,
    opening jsonb CHECK (jsonb_typeof(opening) = 'object'),
    CONSTRAINT events_request_check
        CHECK ((request_id IS NULL) = (type IN ('imported', 'recovered', 'certified', 'log_key_added')))
);

CREATE UNIQUE INDEX events_applied_once ON events (request_id) WHERE type = 'applied';

CREATE UNIQUE INDEX events_completed_once ON events (request_id) WHERE type = 'completed';

-- Reports name a month's failures, which are few.
CREATE INDEX events_failed ON events (created_at) WHERE type = 'failed';

CREATE UNIQUE INDEX events_handled_once ON events (request_id) WHERE type = 'handled';

CREATE UNIQUE INDEX events_not_repaired_once ON events (request_id) WHERE type = 'not_repaired';

CREATE INDEX events_of_no_request ON events (id) WHERE request_id IS NULL;

CREATE UNIQUE INDEX events_repaired_once ON events (request_id) WHERE type = 'repaired';

CREATE INDEX events_request ON events (request_id, id);

CREATE TABLE leaves (
    index bigint PRIMARY KEY CHECK (index >= 0),
    event_id bigint NOT NULL UNIQUE REFERENCES events (id),
    data text NOT NULL,
    hash bytea NOT NULL,
    root bytea NOT NULL,
    CONSTRAINT leaves_hashes_check CHECK (octet_length(hash) = 32 AND octet_length(root) = 32)
);

CREATE TABLE log_nodes (
    level smallint NOT NULL,
    position bigint NOT NULL,
    hash bytea NOT NULL CHECK (octet_length(hash) = 32),
    CONSTRAINT log_nodes_pkey PRIMARY KEY (level, position),
    CONSTRAINT log_nodes_place_check CHECK (level BETWEEN 1 AND 62 AND position >= 0)
);

CREATE TABLE checkpoints (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    size bigint NOT NULL CHECK (size >= 0),
    note text NOT NULL,
    signed_at timestamptz DEFAULT now() NOT NULL
);

DO $$
DECLARE
    grown text;
BEGIN
    FOREACH grown IN ARRAY ARRAY['events', 'leaves', 'log_nodes', 'checkpoints', 'log_keys'] LOOP
        EXECUTE format(
            'CREATE TRIGGER %1$s_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION refuse(''%1$s are never changed'')', grown);
    END LOOP;
END
$$;

CREATE FUNCTION events_check_logged() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM leaves WHERE event_id = NEW.id) THEN
        RAISE EXCEPTION 'event % has no leaf in the log', NEW.id
            USING ERRCODE = 'check_violation', TABLE = 'events', CONSTRAINT = 'events_logged';
    END IF;
    RETURN NULL;
END
$$;

-- At commit, an event and its leaf exist together or not at all.
CREATE CONSTRAINT TRIGGER events_logged AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION events_check_logged();

-- How far each API key has checked the log, and when, as reported by a watcher or browser that found it in order.
CREATE TABLE log_checks (
    api_key_id uuid PRIMARY KEY REFERENCES api_keys (id),
    size bigint NOT NULL CHECK (size >= 0),
    against_size bigint NOT NULL CHECK (against_size >= 0),
    checked_at timestamptz DEFAULT now() NOT NULL
);

CREATE FUNCTION log_check_dated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.checked_at := now();
    RETURN NEW;
END
$$;

CREATE TRIGGER log_checks_dated BEFORE INSERT OR UPDATE ON log_checks FOR EACH ROW EXECUTE FUNCTION log_check_dated();
