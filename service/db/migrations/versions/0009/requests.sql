-- When each request is due, whether it ended in time, and what became of one that failed.

-- One row: what a start writes, and what is read by triggers and views alike.
CREATE TABLE service_settings (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    deadline_days double precision NOT NULL CHECK (deadline_days > 0 AND deadline_days < 'Infinity'::double precision)
);

INSERT INTO service_settings (deadline_days) VALUES (30);

-- Rewritten, and not updated: no trigger is told of it.
ALTER TABLE requests
    ADD COLUMN due_at timestamptz,
    ADD COLUMN handled_at timestamptz,
    ADD COLUMN handled_by uuid REFERENCES requests (id);

ALTER TABLE requests
    ALTER COLUMN due_at TYPE timestamptz USING received_at + interval '30 days',
    ALTER COLUMN due_at SET NOT NULL;

-- A request is open until it has ended. One that was withdrawn is neither late nor in time.
ALTER TABLE requests
    ADD COLUMN ended_at timestamptz GENERATED ALWAYS AS (coalesce(completed_at, cancelled_at, handled_at)) STORED,
    ADD COLUMN ended_late boolean GENERATED ALWAYS AS (
        CASE WHEN cancelled_at IS NULL THEN coalesce(completed_at, handled_at) > due_at END
    ) STORED,
    ADD CONSTRAINT requests_due_check CHECK (due_at > received_at),
    ADD CONSTRAINT requests_handled_check CHECK (handled_at IS NULL OR (status = 'failed' AND ciphertext IS NULL)),
    ADD CONSTRAINT requests_handled_by_check CHECK (handled_by IS NULL OR (handled_at IS NOT NULL AND handled_by <> id));

DROP INDEX requests_open;

CREATE INDEX requests_open ON requests (model, received_at) INCLUDE (id, due_at, status) WHERE ended_at IS NULL;

-- Those that failed and whose ids are still kept: to be tried again, or settled by a later request.
CREATE INDEX requests_failed_kept ON requests (model, failed_at) WHERE status = 'failed' AND ciphertext IS NOT NULL;

CREATE INDEX requests_handled_by ON requests (handled_by) WHERE handled_by IS NOT NULL;

-- The deadline runs from receipt, and is the one that was in force then.
CREATE FUNCTION requests_set_due() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.due_at := NEW.received_at + (SELECT make_interval(secs => deadline_days * 86400) FROM service_settings);
    RETURN NEW;
END
$$;

CREATE TRIGGER requests_due BEFORE INSERT OR UPDATE OF received_at ON requests
    FOR EACH ROW EXECUTE FUNCTION requests_set_due()
