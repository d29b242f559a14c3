-- Human decisions about a request: a failed one is handled, or a deadline is extended. The unlearner later writes each
-- decision to the log as an event.

CREATE TABLE decisions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_id uuid NOT NULL REFERENCES requests (id),
    type text NOT NULL CHECK (type IN ('handled', 'extended')),
    reason text NOT NULL CHECK (reason <> ''),
    due_at timestamptz,
    api_key_id uuid NOT NULL REFERENCES api_keys (id),
    decided_at timestamptz DEFAULT now() NOT NULL,
    event_id bigint UNIQUE REFERENCES events (id),
    CONSTRAINT decisions_reason_length CHECK (char_length(reason) <= 500),
    CONSTRAINT decisions_due_check CHECK ((due_at IS NOT NULL) = (type = 'extended'))
);

CREATE INDEX decisions_not_logged ON decisions (id) WHERE event_id IS NULL;

CREATE TRIGGER decisions_logged BEFORE UPDATE ON decisions
    FOR EACH ROW WHEN (OLD.event_id IS NOT NULL) EXECUTE FUNCTION refuse('decisions in the log are never changed');

CREATE TRIGGER decisions_append_only BEFORE DELETE OR TRUNCATE ON decisions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('decisions are never removed');

-- Like `request_cancel`: an api process may only call this function.
CREATE FUNCTION request_handle(asked uuid, of_key uuid, why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, '{deletions:write,audit:read}') THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET handled_at = now(), ciphertext = NULL
    WHERE id = asked AND status = 'failed' AND handled_at IS NULL;
    IF FOUND THEN
        INSERT INTO decisions (request_id, type, reason, api_key_id) VALUES (asked, 'handled', why, of_key);
        PERFORM pg_notify('lethe_decisions', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- Only before the deadline, and only to a later time: a late request stays late. The column bounds reject a deadline
-- outside of every calendar.
CREATE FUNCTION request_extend(asked uuid, of_key uuid, until timestamptz, why text) RETURNS boolean
    LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, '{deletions:write,audit:read}') THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET due_at = until
    WHERE id = asked AND ended_at IS NULL AND due_at >= now() AND due_at < until;
    IF FOUND THEN
        INSERT INTO decisions (request_id, type, reason, due_at, api_key_id)
            VALUES (asked, 'extended', why, until, of_key);
        PERFORM pg_notify('lethe_decisions', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;
