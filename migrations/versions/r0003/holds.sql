-- A queued request may be held. What is queued for the same nodes waits behind it.

ALTER TABLE requests
    -- Since when it is held. Null once it is released or ends.
    ADD COLUMN held_at timestamptz,
    -- The held request behind which the unlearner found it.
    ADD COLUMN waits_for uuid REFERENCES requests (id),
    ADD CONSTRAINT requests_held_at_bounded
        CHECK (held_at >= '1970-01-01 00:00:00+00' AND held_at < '9000-01-01 00:00:00+00'),
    ADD CONSTRAINT requests_held_check
        CHECK (held_at IS NULL OR (status = 'queued' AND batch_id IS NULL AND waits_for IS NULL)),
    ADD CONSTRAINT requests_waits_check
        CHECK (waits_for IS NULL OR (status = 'queued' AND batch_id IS NULL AND waits_for <> id));

CREATE INDEX requests_held ON requests (model) WHERE held_at IS NOT NULL;

CREATE INDEX requests_waiting ON requests (waits_for) WHERE waits_for IS NOT NULL;

DROP INDEX requests_open;

CREATE INDEX requests_open ON requests (model, received_at) INCLUDE (id, due_at, status, held_at)
    WHERE ended_at IS NULL;

-- The unlearner tells the store which tombstones a batch made void.
CREATE INDEX tombstones_rejoined_by ON tombstones (rejoined_by) WHERE rejoined_by IS NOT NULL;

CREATE FUNCTION requests_hold_ends() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.held_at := NULL;
    NEW.waits_for := NULL;
    RETURN NEW;
END
$$;

CREATE TRIGGER requests_hold_ends BEFORE UPDATE OF status ON requests
    FOR EACH ROW WHEN (NEW.status <> 'queued' AND (OLD.held_at IS NOT NULL OR OLD.waits_for IS NOT NULL))
    EXECUTE FUNCTION requests_hold_ends();

-- What waited goes to the unlearner again, in its order, which may find another hold in its way. One that is locked is
-- being held or cancelled. If a hold ends, wait for the outcome, since nothing else would free it. If one of those that
-- wait ends, others may have waited for it alone: do not wait then, so that two that end never wait for each other.
CREATE FUNCTION requests_go_on() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    freed uuid[];
BEGIN
    IF OLD.held_at IS NOT NULL THEN
        freed := ARRAY(SELECT id FROM requests WHERE waits_for = OLD.id ORDER BY id FOR UPDATE);
    ELSE
        freed := ARRAY(SELECT id FROM requests WHERE waits_for = OLD.waits_for ORDER BY id FOR UPDATE SKIP LOCKED);
    END IF;
    UPDATE requests SET waits_for = NULL, taken_at = NULL, swept_at = NULL, queued_at = now() WHERE id = ANY(freed);
    INSERT INTO outbox (request_id, model, created_at)
        SELECT id, model, now() + row_number() OVER (ORDER BY received_at, id) * interval '1 microsecond'
        FROM requests WHERE id = ANY(freed) OR (id = NEW.id AND NEW.status = 'queued')
        ON CONFLICT DO NOTHING;
    PERFORM pg_notify('lethe_outbox', '');
    RETURN NULL;
END
$$;

CREATE TRIGGER requests_go_on AFTER UPDATE OF held_at, status ON requests
    FOR EACH ROW WHEN ((OLD.held_at IS NOT NULL AND NEW.held_at IS NULL)
        OR (OLD.waits_for IS NOT NULL AND NEW.status <> 'queued'))
    EXECUTE FUNCTION requests_go_on();

-- A deletion records those of its nodes that are queued to join. So it ends well if their addition is cancelled.
DROP TRIGGER requests_join_ended ON requests;

CREATE TRIGGER requests_join_ended AFTER UPDATE OF status, ciphertext ON requests
    FOR EACH ROW WHEN (NEW.kind IN ('addition', 'node')
        AND (NEW.status IN ('applied', 'completed', 'cancelled') OR NEW.ciphertext IS NULL))
    EXECUTE FUNCTION requests_join_ended();

-- A key that may only write does not learn by cancelling that its request waits behind another.
CREATE OR REPLACE FUNCTION request_cancel(asked uuid, of_key uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, ARRAY[request_scope(asked)]) THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET status = 'cancelled', cancelled_at = now(), ciphertext = NULL, subject_commitments = NULL,
        reference_commitment = NULL
    WHERE id = asked AND status = 'queued' AND batch_id IS NULL
        AND (taken_at IS NULL OR held_at IS NOT NULL OR (waits_for IS NOT NULL
            AND (api_key_may(of_key, '{deletions:read}') OR api_key_may(of_key, '{audit:read}'))))
        AND (api_key_id = of_key OR api_key_may(of_key, '{audit:read}'));
    IF FOUND THEN
        DELETE FROM outbox WHERE request_id = asked;
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- Like `request_cancel`: it alone decides whether it is too late.
CREATE FUNCTION request_hold(asked uuid, of_key uuid, why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, ARRAY[request_scope(asked), 'audit:read']) THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET held_at = now(), waits_for = NULL
    WHERE id = asked AND status = 'queued' AND batch_id IS NULL AND held_at IS NULL
        AND (taken_at IS NULL OR waits_for IS NOT NULL);
    IF FOUND THEN
        INSERT INTO decisions (request_id, type, reason, api_key_id) VALUES (asked, 'held', why, of_key);
        PERFORM pg_notify('lethe_decisions', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- The deadline moves by the time for which the request was held.
CREATE FUNCTION request_release(asked uuid, of_key uuid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz;
BEGIN
    IF NOT api_key_may(of_key, ARRAY[request_scope(asked), 'audit:read']) THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET due_at = due_at + (now() - held_at), held_at = NULL, taken_at = NULL, swept_at = NULL,
        queued_at = now()
    WHERE id = asked AND held_at IS NOT NULL RETURNING due_at INTO until;
    IF FOUND THEN
        INSERT INTO decisions (request_id, type, due_at, api_key_id) VALUES (asked, 'released', until, of_key);
        PERFORM pg_notify('lethe_decisions', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- A held request's deadline moves once it is released.
CREATE OR REPLACE FUNCTION request_extend(asked uuid, of_key uuid, until timestamptz, why text) RETURNS boolean
    LANGUAGE plpgsql AS $$
BEGIN
    IF NOT api_key_may(of_key, ARRAY[request_scope(asked), 'audit:read']) THEN
        RETURN NULL;
    END IF;
    UPDATE requests SET due_at = until
    WHERE id = asked AND ended_at IS NULL AND held_at IS NULL AND due_at >= now() AND due_at < until;
    IF FOUND THEN
        INSERT INTO decisions (request_id, type, reason, due_at, api_key_id)
            VALUES (asked, 'extended', why, until, of_key);
        PERFORM pg_notify('lethe_decisions', '');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

ALTER TABLE decisions ALTER COLUMN reason DROP NOT NULL,
    DROP CONSTRAINT decisions_type_check,
    ADD CONSTRAINT decisions_type_check CHECK (type IN ('handled', 'extended', 'held', 'released')),
    ADD CONSTRAINT decisions_reason_given CHECK ((reason IS NULL) = (type = 'released')),
    DROP CONSTRAINT decisions_due_check,
    ADD CONSTRAINT decisions_due_check CHECK ((due_at IS NOT NULL) = (type IN ('extended', 'released')));

ALTER TABLE events DROP CONSTRAINT events_type_check,
    ADD CONSTRAINT events_type_check CHECK (type IN ('applied', 'repaired', 'not_repaired', 'completed', 'failed',
        'imported', 'recovered', 'certified', 'log_key_added', 'handled', 'extended', 'held', 'released'));
