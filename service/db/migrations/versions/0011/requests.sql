-- Since when a request waits in the queue: from its receipt, or from when it was tried again. No login writes it.
ALTER TABLE requests ADD COLUMN queued_at timestamptz DEFAULT now() NOT NULL;

CREATE FUNCTION requests_queue_again() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.queued_at := now();
    RETURN NEW;
END
$$;

CREATE TRIGGER requests_queued_again BEFORE UPDATE OF status ON requests
    FOR EACH ROW WHEN (OLD.status <> NEW.status AND NEW.status = 'queued') EXECUTE FUNCTION requests_queue_again()
